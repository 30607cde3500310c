/* Takes requests of an HTTP/1.1 client apart and hands their bodies on. Invariant: the framing that was
 * decided at the head is the only one: bytes behind it belong to the next request. */
#include "proxy/front1.h"

#include <stdio.h>
#include <string.h>

/* A head that cannot be parsed: answered without an exchange of its own. */
void front1_refuse(struct front1 *c, enum answer_kind kind, const char *p, size_t n)
{
    char out[512];
    const char *text = kind == ANSWER_HEAD_TOO_LARGE    ? "Request header fields too large"
                       : kind == ANSWER_REQUEST_TIMEOUT ? "The request did not arrive in time"
                                                        : "Bad request";
    int status = kind == ANSWER_HEAD_TOO_LARGE ? 431 : kind == ANSWER_REQUEST_TIMEOUT ? 408 : 400;
    char body[128];
    int length = snprintf(body, sizeof body, "{\"message\":\"%s\",\"code\":%d}", text, status);
    int total =
        snprintf(out, sizeof out,
                 "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nConnection: "
                 "close\r\n\r\n%s",
                 status, http_reason(status), length, body);
    dp_io_write(&c->io, out, (size_t)total);
    access_log_refused(c->worker, c->address, p, n, status, c->head_ms);
    front1_linger(c);
}

/* Hands body bytes to the back. Returns how many were used; the exchange may be over after it. */
size_t front1_body_feed(struct front1 *c, const char *p, size_t n)
{
    struct exchange *x = c->x;
    size_t used = n;
    bool complete = false;
    if (n == 0)
        return 0;
    switch (c->body) {
    case BODY_LENGTH:
        if (used > c->left)
            used = (size_t)c->left;
        c->left -= used;
        complete = c->left == 0;
        break;
    case BODY_CHUNKED: {
        enum chunked_event ev = chunked_skip(&c->chunked, p, n, &used);
        if (ev == CHUNKED_BAD) {
            /* The service has seen only well-formed chunks; it gets a reset, the client the reason if it
             * still can. */
            c->close_after = true;
            exchange_fail(x, ANSWER_BAD_REQUEST, "Invalid chunked body");
            return n;
        }
        complete = c->chunked.state == CHUNKED_STATE_END;
        break;
    }
    default:
        break;
    }
    x->back->data(x, p, used);
    if (c->x == x && complete) {
        c->body_done = true;
        x->back->finish(x, NULL);
    }
    return used;
}

/* The head of `n` bytes starts an exchange. Returns false when it cannot. */
static bool head_take(struct front1 *c, const char *p, size_t n)
{
    struct worker *w = c->worker;
    struct exchange *x = exchange_new(w, &front1_ops, c, n);
    if (x == NULL) {
        front1_close(c, true);
        return false;
    }
    memcpy(x->head, p, n);
    int rc = exchange_parse(x);
    if (rc != 0) {
        exchange_discard(x);
        front1_refuse(c, rc == HTTP_TOO_LARGE ? ANSWER_HEAD_TOO_LARGE : ANSWER_BAD_REQUEST, p, n);
        return false;
    }
    const struct http_head *m = &w->request;
    c->x = x;
    c->head_ms = 0;
    c->state = FRONT_BUSY;
    c->body = m->chunked ? BODY_CHUNKED : m->content_length > 0 ? BODY_LENGTH : BODY_NONE;
    c->left = m->content_length > 0 ? (uint64_t)m->content_length : 0;
    c->chunked = (struct chunked){0};
    c->body_done = c->body == BODY_NONE;
    c->close_after = m->close || (m->minor == 0 && !m->keep_alive);
    c->active_ms = dp_now_ms(w->loop);
    x->request_done = c->body_done;
    x->tls = c->tls;
    x->client = c->address;
    x->verbatim = m->minor == 1;
    c->starting = true;
    exchange_start(x);
    c->starting = false;
    return true;
}

/* Whether the back takes body bytes now. */
bool front1_can_feed(const struct front1 *c)
{
    return c->x && c->x->back && !c->body_done && !c->x->back->blocked(c->x);
}

/* Bytes at the start of a request (and perhaps of its body). Returns how many were used. */
size_t front1_bytes_take(struct front1 *c, const char *p, size_t n)
{
    size_t skipped = 0;
    while (c->scan.at == 0 && skipped + 1 < n && p[skipped] == '\r' && p[skipped + 1] == '\n' && skipped < 4)
        skipped += 2; /* RFC 9112 §2.2: an empty line before a request line */
    int end = http_head_end(&c->scan, p + skipped, n - skipped);
    if (end == HTTP_MORE) {
        if (skipped)
            c->scan = (struct http_scan){0};
        return 0;
    }
    if (end < 0) {
        front1_refuse(c, end == HTTP_TOO_LARGE ? ANSWER_HEAD_TOO_LARGE : ANSWER_BAD_REQUEST, p + skipped,
                      n - skipped);
        return n;
    }
    size_t used = skipped + (size_t)end;
    if (!head_take(c, p + skipped, (size_t)end))
        return n;
    if (used < n && front1_can_feed(c))
        used += front1_body_feed(c, p + used, n - used);
    if (c->x && c->x->back)
        c->x->back->flush(c->x);
    if (c->x && !c->body_done)
        dp_timer_start(c->worker->loop, &c->timer, exchange_body_step(c->worker));
    return used;
}
