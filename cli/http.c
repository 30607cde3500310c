/* Owns the use of libcurl; invariant: no redirect is followed, no proxy from the environment is used, and a
 * collected answer is bounded. */
#include "cli/http.h"

#include <curl/curl.h>
#include <jansson.h>
#include <string.h>

#define COLLECT_MAX (64u << 20)

struct sink {
    bool (*piece)(const char *p, size_t n, void *data);
    void *data;
    bool stopped;
};

void http_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct sink *s = arg;
    if (s->piece(p, size * n, s->data))
        return size * n;
    s->stopped = true;
    return 0;
}

int http_stream(const char *method, const char *url, const char *const *headers, const void *body,
                size_t body_len, long timeout_ms, long *status,
                bool (*piece)(const char *p, size_t n, void *data), void *data, struct err *e)
{
    CURL *c = curl_easy_init();
    if (!c)
        return err_set(e, ERR_INTERNAL, "starting libcurl");
    struct curl_slist *list = NULL;
    for (; headers && *headers; headers++)
        list = curl_slist_append(list, *headers);
    list = curl_slist_append(list, "Expect:");
    struct sink sink = {.piece = piece, .data = data};
    char why[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &sink);
    curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
    if (body) {
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_len);
    }
    CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, status);
    curl_slist_free_all(list);
    curl_easy_cleanup(c);
    if (rc == CURLE_OK || (rc == CURLE_WRITE_ERROR && sink.stopped))
        return 0;
    enum err_code code = rc == CURLE_OPERATION_TIMEDOUT ? ERR_DEADLINE : ERR_UNAVAILABLE;
    return err_set(e, code, "%s %s: %s", method, url, why[0] ? why : curl_easy_strerror(rc));
}

static bool collect(const char *p, size_t n, void *data)
{
    struct buf *out = data;
    if (out->len + n > COLLECT_MAX)
        return false;
    buf_append(out, p, n);
    return !out->failed;
}

int http_call(const char *method, const char *url, const char *const *headers, const char *body,
              long timeout_ms, long *status, struct buf *out, struct err *e)
{
    return http_stream(method, url, headers, body, body ? strlen(body) : 0, timeout_ms, status, collect, out,
                       e);
}

static enum err_code code_of_status(long status)
{
    for (int c = ERR_OK + 1; c < ERR_CODES; c++)
        if (err_code_http((enum err_code)c) == status)
            return (enum err_code)c;
    return ERR_INTERNAL;
}

int http_api_error(long status, struct buf *body, struct err *e)
{
    json_t *o = json_loadb(body->data ? body->data : "", body->len, JSON_REJECT_DUPLICATES, NULL);
    const char *message = json_string_value(json_object_get(o, "message"));
    const char *remedy = json_string_value(json_object_get(o, "remediation"));
    err_set(e, code_of_status(status), "%ld: %s", status,
            message ? message : "the answer carries no message");
    if (remedy)
        err_remedy(e, "%s", remedy);
    json_decref(o);
    return -1;
}
