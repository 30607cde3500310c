/* Owns the client side of one Connect stream; invariant: an envelope is acted on only when it is whole and at
 * most 4 MiB. */
#include "cli/envd.h"
#include "cli/http.h"
#include "lib/base/cleanup.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define ENVELOPE_MAX (4u << 20)
#define ENVELOPE_HEAD 5 /* flags u8, length u32 big-endian */

struct stream {
    struct buf in;
    void (*out)(int stream, const char *p, size_t n, void *data);
    void *data;
    struct envd_result *result;
    struct err *e;
    bool ended; /* the process's end event was seen */
    bool failed;
};

struct headers {
    char text[4][256];
    const char *list[8];
};

static void give_output(struct stream *s, json_t *value, int number)
{
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    if (!text || n == 0)
        return;
    unsigned char *raw = malloc(n);
    int len = raw ? EVP_DecodeBlock(raw, (const unsigned char *)text, (int)n) : -1;
    if (len > 0) {
        len -= text[n - 1] == '=';
        len -= n > 1 && text[n - 2] == '=';
        s->out(number, (char *)raw, (size_t)len, s->data);
    }
    free(raw);
}

static void take_event(struct stream *s, json_t *event)
{
    json_t *data = json_object_get(event, "data");
    give_output(s, json_object_get(data, "stdout"), 1);
    give_output(s, json_object_get(data, "stderr"), 2);
    json_t *end = json_object_get(event, "end");
    if (!end)
        return;
    s->ended = true;
    s->result->exit_code = (int)json_integer_value(json_object_get(end, "exitCode"));
    const char *status = json_string_value(json_object_get(end, "status"));
    snprintf(s->result->status, sizeof s->result->status, "%s", status ? status : "");
}

static void take_envelope(struct stream *s, int flags, const char *p, size_t n)
{
    json_t *o = json_loadb(p, n, JSON_REJECT_DUPLICATES, NULL);
    json_t *error = json_object_get(o, "error");
    if (!o || error) {
        const char *message = json_string_value(json_object_get(error, "message"));
        s->failed = true;
        err_set(s->e, ERR_INTERNAL, "%s", message ? message : "the sandbox's answer cannot be read");
    } else if (!(flags & 2)) {
        take_event(s, json_object_get(o, "event"));
    }
    json_decref(o);
}

static bool on_piece(const char *p, size_t n, void *arg)
{
    struct stream *s = arg;
    buf_append(&s->in, p, n);
    while (s->in.len >= ENVELOPE_HEAD && !s->failed) {
        const unsigned char *h = (const unsigned char *)s->in.data;
        if (h[0] > 3)
            break; /* not an envelope: an error body, kept for the caller */
        size_t len = (size_t)h[1] << 24 | (size_t)h[2] << 16 | (size_t)h[3] << 8 | h[4];
        if (len > ENVELOPE_MAX)
            return false;
        if (s->in.len < ENVELOPE_HEAD + len)
            break;
        take_envelope(s, h[0], s->in.data + ENVELOPE_HEAD, len);
        buf_consume(&s->in, ENVELOPE_HEAD + len);
    }
    return !s->failed && !s->in.failed && s->in.len <= ENVELOPE_MAX + ENVELOPE_HEAD;
}

static char *start_request(char *const *argv, const char *cwd)
{
    json_t *args = json_array();
    for (int i = 1; argv[i]; i++)
        json_array_append_new(args, json_string(argv[i]));
    json_t *process = json_pack("{s:s, s:o}", "cmd", argv[0], "args", args);
    if (cwd)
        json_object_set_new(process, "cwd", json_string(cwd));
    json_t *o = json_pack("{s:o, s:b}", "process", process, "stdin", 0);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

static void make_headers(const struct envd_target *t, long timeout_ms, struct headers *h)
{
    size_t n = 0, k = 0;
    h->list[n++] = "Content-Type: application/connect+json";
    h->list[n++] = "Connect-Protocol-Version: 1";
    h->list[n++] = "E2b-Sandbox-Port: 49983";
    snprintf(h->text[k], sizeof h->text[k], "E2b-Sandbox-Id: %s", t->sandbox_id);
    h->list[n++] = h->text[k++];
    if (t->access_token && *t->access_token) {
        snprintf(h->text[k], sizeof h->text[k], "X-Access-Token: %s", t->access_token);
        h->list[n++] = h->text[k++];
    }
    if (t->user) {
        char plain[64];
        unsigned char encoded[96];
        int len = snprintf(plain, sizeof plain, "%.60s:", t->user);
        EVP_EncodeBlock(encoded, (unsigned char *)plain, len);
        snprintf(h->text[k], sizeof h->text[k], "Authorization: Basic %s", (char *)encoded);
        h->list[n++] = h->text[k++];
    }
    if (timeout_ms > 0) {
        snprintf(h->text[k], sizeof h->text[k], "Connect-Timeout-Ms: %ld", timeout_ms);
        h->list[n++] = h->text[k++];
    }
    h->list[n] = NULL;
}

int envd_run(const struct envd_target *t, char *const *argv, const char *cwd, long timeout_ms,
             void (*out)(int stream, const char *p, size_t n, void *data), void *data,
             struct envd_result *result, struct err *e)
{
    struct headers h;
    make_headers(t, timeout_ms, &h);
    _cleanup_free_ char *json = start_request(argv, cwd);
    if (!json)
        return err_set(e, ERR_INVALID, "the command is not valid UTF-8");
    size_t n = strlen(json);
    _cleanup_buf_ struct buf body = {0};
    char head[ENVELOPE_HEAD] = {0, (char)(n >> 24), (char)(n >> 16), (char)(n >> 8), (char)n};
    buf_append(&body, head, sizeof head);
    buf_append(&body, json, n);
    char url[512];
    snprintf(url, sizeof url, "%s/process.Process/Start", t->base_url);

    struct stream s = {.out = out, .data = data, .result = result, .e = e};
    long status = 0;
    int bad = http_stream("POST", url, h.list, body.data, body.len, timeout_ms > 0 ? timeout_ms + 5000 : 0,
                          &status, on_piece, &s, e);
    if (bad == 0 && status != 200)
        bad = http_api_error(status, &s.in, e);
    else if (bad == 0 && s.failed)
        bad = -1;
    else if (bad == 0 && !s.ended)
        bad = err_set(e, ERR_UNAVAILABLE, "the stream from sandbox %s ended before the command did",
                      t->sandbox_id);
    buf_free(&s.in);
    return bad;
}
