/* Owns the waiting for calls of the load client. */
#include "bench/web.h"

#include "lib/base/jsonw.h"
#include "lib/net/fiber.h"
#include "lib/net/jsonin.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct one {
    struct fiber_event done;
    struct buf *body;
    int status;
    int64_t us;
};

static void on_one(int status, const char *body, size_t n, int64_t us, void *data)
{
    struct one *o = data;
    o->status = status;
    o->us = us;
    if (o->body)
        buf_append(o->body, body, n);
    fiber_event_set(&o->done);
}

int web_call(struct httpc *h, const char *method, const char *path, const char *request, struct buf *body,
             int64_t *us)
{
    struct one o = {.body = body};
    httpc_call(h, method, path, request ? "application/json" : NULL, request, request ? strlen(request) : 0,
               on_one, &o);
    fiber_event_wait(&o.done, -1);
    if (us)
        *us = o.us;
    return o.status;
}

/* One message of the stream: output is decoded, the end gives the exit code. */
static void take_event(const char *text, size_t n, struct buf *out, int *code)
{
    _cleanup_json_ json_t *v = json_loadb(text, n, 0, NULL);
    const json_t *event = json_object_get(v, "event");
    const char *data = json_string_value(json_object_get(json_object_get(event, "data"), "stdout"));
    const json_t *end = json_object_get(event, "end");
    if (data) {
        size_t len = strlen(data);
        if (!buf_reserve(out, len))
            return;
        int got = EVP_DecodeBlock((uint8_t *)out->data + out->len, (const uint8_t *)data, (int)len);
        for (size_t i = len; got > 0 && i > 0 && data[i - 1] == '='; i--)
            got--;
        out->len += got > 0 ? (size_t)got : 0;
    }
    if (end)
        *code = (int)json_integer_value(json_object_get(end, "exitCode"));
}

int web_run(struct httpc *h, const char *command, struct buf *out, int64_t *us, struct err *e)
{
    _cleanup_buf_ struct buf json = {0}, request = {0}, answer = {0};
    struct jsonw w = jsonw_start(&json);
    jsonw_obj(&w);
    jsonw_key(&w, "process");
    jsonw_obj(&w);
    jsonw_kstr(&w, "cmd", "/bin/bash");
    jsonw_key(&w, "args");
    jsonw_arr(&w);
    jsonw_str(&w, "-l");
    jsonw_str(&w, "-c");
    jsonw_str(&w, command);
    jsonw_arr_end(&w);
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
    uint8_t head[5] = {0, (uint8_t)(json.len >> 24), (uint8_t)(json.len >> 16), (uint8_t)(json.len >> 8),
                       (uint8_t)json.len};
    buf_append(&request, head, sizeof head);
    buf_append(&request, json.data, json.len);
    struct one o = {.body = &answer};
    httpc_call(h, "POST", "/process.Process/Start", "application/connect+json", request.data, request.len,
               on_one, &o);
    fiber_event_wait(&o.done, -1);
    if (us)
        *us = o.us;
    int code = -1;
    const uint8_t *p = (const uint8_t *)answer.data;
    for (size_t at = 0; o.status == 200 && at + 5 <= answer.len;) {
        size_t n = (size_t)p[at + 1] << 24 | (size_t)p[at + 2] << 16 | (size_t)p[at + 3] << 8 | p[at + 4];
        if (n > answer.len - at - 5)
            break;
        take_event((const char *)p + at + 5, n, out, &code);
        at += 5 + n;
    }
    if (code < 0)
        err_set(e, ERR_INTERNAL, "running a command answered %d: %.150s", o.status, buf_cstr(&answer));
    return code;
}

bool web_string(struct buf *json, const char *key, char *out, size_t room)
{
    struct err e = {0};
    const char *s = NULL;
    _cleanup_json_ json_t *v = jsonin_load_object(json->data ? json->data : "", json->len, 16u << 20, &e);
    if (!v || jsonin_str(v, key, room - 1, &s, &e) != 1)
        return false;
    snprintf(out, room, "%s", s);
    return true;
}

struct many {
    struct fiber_event done;
    size_t n, ended, failed;
    void (*seen)(size_t i, int status, const char *body, size_t len, int64_t us, void *data);
    void *data;
};

struct item {
    struct many *many;
    size_t i;
};

static void on_item(int status, const char *body, size_t n, int64_t us, void *data)
{
    struct item *it = data;
    struct many *m = it->many;
    m->failed += status / 100 != 2;
    if (m->seen)
        m->seen(it->i, status, body, n, us, m->data);
    if (++m->ended == m->n)
        fiber_event_set(&m->done);
}

size_t web_many(struct httpc *h, size_t n, const char *method,
                void (*make)(size_t i, char path[256], struct buf *body, void *data),
                void (*seen)(size_t i, int status, const char *body, size_t len, int64_t us, void *data),
                void *data)
{
    struct many m = {.n = n, .seen = seen, .data = data};
    struct item *items = calloc(n ? n : 1, sizeof *items);
    if (!items)
        abort();
    for (size_t i = 0; i < n; i++) {
        char path[256];
        _cleanup_buf_ struct buf body = {0};
        items[i] = (struct item){.many = &m, .i = i};
        make(i, path, &body, data);
        httpc_call(h, method, path, body.len ? "application/json" : NULL, body.data, body.len, on_item,
                   &items[i]);
    }
    if (n > 0)
        fiber_event_wait(&m.done, -1);
    free(items);
    return m.failed;
}
