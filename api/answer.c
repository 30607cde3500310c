/* Owns the ends of a request. Invariant: one answer per request; every empty 2xx is a 204 or carries
 * `content-length: 0`, and every error is the contract's JSON (contracts/e2b.md §0.2). */
#include "api/errors.h"
#include "api/metrics.h"
#include "api/server.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *call_alloc(struct call *c, size_t n)
{
    return h2o_mem_alloc_pool(&c->req->pool, n ? n : 1);
}

char *call_strdup(struct call *c, const char *s)
{
    size_t n = strlen(s);
    return memcpy(call_alloc(c, n + 1), s, n + 1);
}

const char *call_header(struct call *c, const char *name)
{
    ssize_t at = h2o_find_header_by_str(&c->req->headers, name, strlen(name), SIZE_MAX);
    if (at < 0)
        return NULL;
    h2o_iovec_t v = c->req->headers.entries[at].value;
    char *s = call_alloc(c, v.len + 1);
    memcpy(s, v.base, v.len);
    s[v.len] = '\0';
    return s;
}

void call_add_header(struct call *c, const char *name, const char *value)
{
    const char *n = call_strdup(c, name), *v = call_strdup(c, value);
    h2o_add_header_by_str(&c->req->pool, &c->req->res.headers, n, strlen(n), 1, NULL, v, strlen(v));
}

void call_add_number(struct call *c, const char *name, size_t name_len, int64_t n)
{
    char *end = (char *)call_alloc(c, 21) + 21, *at = end;
    uint64_t rest = n < 0 ? 0 : (uint64_t)n;
    do {
        *--at = (char)('0' + rest % 10);
    } while (rest /= 10);
    h2o_add_header_by_str(&c->req->pool, &c->req->res.headers, name, name_len, 0, NULL, at,
                          (size_t)(end - at));
}

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } table[] = {{200, "OK"},
                 {201, "Created"},
                 {202, "Accepted"},
                 {204, "No Content"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {409, "Conflict"},
                 {410, "Gone"},
                 {413, "Content Too Large"},
                 {429, "Too Many Requests"},
                 {499, "Client Closed Request"},
                 {500, "Internal Server Error"},
                 {501, "Not Implemented"},
                 {503, "Service Unavailable"},
                 {504, "Gateway Timeout"},
                 {507, "Insufficient Storage"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].status == status)
            return table[i].text;
    return "Status";
}

static void add_warning(struct call *c)
{
    if (c->unknown.n == 0)
        return;
    char text[sizeof c->unknown.names + 64];
    snprintf(text, sizeof text, "299 cube-api \"unknown fields: %s\"", c->unknown.names);
    call_add_header(c, "warning", text);
    api_metrics_unknown_fields(c->unknown.n);
    log_info("%s: unknown fields in the request: %s", c->route ? c->route->name : "", c->unknown.names);
}

static void answer(struct call *c, int status, const char *type, const char *text, size_t n)
{
    c->answered = true;
    add_warning(c);
    api_metrics_request(c->route ? c->match.id : ROUTE_COUNT, status, clock_mono_us() - c->start_us);
    h2o_req_t *req = c->req;
    if (c->conn)
        conn_unwatch(c->conn);
    req->res.status = status;
    req->res.reason = reason(status);
    if (type)
        h2o_add_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL, type, strlen(type));
    if (status != 204)
        req->res.content_length = n;
    h2o_send_inline(req, text, n);
}

struct jsonw call_json(struct call *c)
{
    buf_reset(&c->w->out);
    return jsonw_start(&c->w->out);
}

void call_send_json(struct call *c, int status)
{
    struct buf *out = &c->w->out;
    if (out->failed) {
        buf_free(out);
        call_error(c, ERR_INTERNAL, "writing the answer: out of memory");
        return;
    }
    answer(c, status, "application/json", out->data, out->len);
}

void call_send_text(struct call *c, int status, const char *content_type, const char *text, size_t n)
{
    answer(c, status, content_type, text, n);
}

void call_send_empty(struct call *c, int status)
{
    answer(c, status, NULL, "", 0);
}

void call_fail_as(struct call *c, int status, const struct err *e)
{
    if (status >= 500 && status != 501)
        log_line(LOG_ERROR, &(struct log_about){.err = e, .trace = c->trace}, "%s: answered %d",
                 c->route ? c->route->name : "request", status);
    if (e->code == ERR_UNAVAILABLE)
        call_add_header(c, "retry-after", "1");
    buf_reset(&c->w->out);
    error_write(&c->w->out, status, e);
    answer(c, status, "application/json", c->w->out.data, c->w->out.len);
}

void call_fail(struct call *c, const struct err *e)
{
    call_fail_as(c, err_code_http(e->code), e);
}

void call_error(struct call *c, enum err_code code, const char *fmt, ...)
{
    struct err e = {.code = code};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.msg, sizeof e.msg, fmt, ap);
    va_end(ap);
    call_fail(c, &e);
}
