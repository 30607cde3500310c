/* The HTTP/1.1 side towards a client: keep-alive, one request after the other, each routed on its own.
 * Invariant: no byte of the next request is looked at before the answer of the one before is complete; a body
 * is read only while the service takes it. */
#include "proxy/proxy.h"

#include "lib/base/log.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 8, LINGER_MS = 2000, LINGER_BYTES = 4 << 20 };
enum state { FRONT_HEAD, FRONT_BUSY, FRONT_RAW, FRONT_LINGER, FRONT_CLOSED };

struct front1 {
    struct dp_io io; /* first */
    struct front_link link;
    struct worker *worker;
    struct client *client;
    struct exchange *x;
    enum state state;
    bool undecided; /* no byte yet: may be h2 */
    bool tls, starting, close_after, answer_done, body_done, chunk_out, raw_in_done, raw_out_done, in_read;
    char *in; /* bytes that nobody takes yet */
    uint32_t in_off, in_len, in_cap;
    uint32_t corked; /* bytes of an answer head that wait in worker->answer_head for company */
    struct http_scan scan;
    enum body_kind body;
    uint64_t left;
    struct chunked chunked;
    uint32_t lingered;
    int64_t head_ms;   /* when an unfinished head began; 0 = none */
    int64_t active_ms; /* last byte in either direction */
    struct dp_timer timer;
    struct dp_task again, bury;
    char address[46];
};

static const struct front_ops front1_ops;
static void front_read(struct front1 *c);

/* ---- closing ---- */

static void on_bury(struct dp_task *t)
{
    struct front1 *c = (struct front1 *)((char *)t - offsetof(struct front1, bury));
    if (c->again.queued)
        dp_bury(c->worker->loop, t);
    else
        free(c);
}

static void in_free(struct front1 *c)
{
    dp_mem_put(c->in, c->in_cap);
    c->in = NULL;
    c->in_off = c->in_len = c->in_cap = 0;
}

static void front_close(struct front1 *c, bool reset)
{
    if (c->state == FRONT_CLOSED)
        return;
    c->state = FRONT_CLOSED;
    struct exchange *x = c->x;
    c->x = NULL;
    if (x)
        exchange_cancel(x);
    dp_timer_stop(&c->timer);
    front_link_remove(c->worker, &c->link);
    client_leave(c->worker, c->client);
    in_free(c);
    dp_io_close(&c->io, reset);
    dp_bury(c->worker->loop, &c->bury);
}

static void again(struct front1 *c)
{
    dp_defer(c->worker->loop, &c->again);
}

/* The client gets the end of the stream, and what it still sends is thrown away for a while: closing at once
 * would make its kernel drop the answer. */
static void front_linger(struct front1 *c)
{
    c->state = FRONT_LINGER;
    in_free(c);
    dp_io_shutdown(&c->io);
    dp_timer_start(c->worker->loop, &c->timer, LINGER_MS);
    again(c);
}

/* ---- bytes that wait ---- */

static bool in_keep(struct front1 *c, const char *p, size_t n)
{
    if (n == 0)
        return true;
    if (c->in && c->in_off + c->in_len + n > c->in_cap && c->in_len + n <= c->in_cap) {
        memmove(c->in, c->in + c->in_off, c->in_len);
        c->in_off = 0;
    }
    if (c->in == NULL || c->in_off + c->in_len + n > c->in_cap) {
        uint32_t cap;
        char *q = dp_mem_get(c->in_len + n, &cap);
        if (q == NULL)
            return false;
        if (c->in_len)
            memcpy(q, c->in + c->in_off, c->in_len);
        dp_mem_put(c->in, c->in_cap);
        c->in = q;
        c->in_cap = cap;
        c->in_off = 0;
    }
    memcpy(c->in + c->in_off + c->in_len, p, n);
    c->in_len += (uint32_t)n;
    return true;
}

/* ---- the answer ---- */

static bool front_write(struct front1 *c, struct iovec *v, int count)
{
    /* v[0] is kept free for a corked head. */
    if (c->corked) {
        v[0] = (struct iovec){c->worker->answer_head, c->corked};
        c->corked = 0;
    } else {
        v[0] = (struct iovec){(char *)"", 0};
    }
    c->active_ms = dp_now_ms(c->worker->loop);
    if (dp_io_writev(&c->io, v, count))
        return true;
    again(c); /* not here: the caller is in the middle of the answer */
    return false;
}

static void front_flush(struct exchange *x)
{
    struct front1 *c = x->front_data;
    struct iovec v[1];
    if (c->corked)
        front_write(c, v, 1);
}

static void front_head(struct exchange *x, const struct http_head *m)
{
    struct front1 *c = x->front_data;
    bool raw = m->status == 101;
    c->chunk_out = x->answer_body == BODY_UNTIL_CLOSE && !x->http10 && !x->is_head;
    if (x->answer_body == BODY_UNTIL_CLOSE && x->http10)
        c->close_after = true;
    if (x->answer_body == BODY_CHUNKED && x->http10)
        c->close_after = true; /* decoded; the end of the stream ends it */
    if (!c->body_done)
        c->close_after = true; /* an early answer: what is left of the body is not waited for */
    if (atomic_load_explicit(&c->worker->proxy->draining, memory_order_relaxed))
        c->close_after = true;
    enum body_kind said = x->answer_body;
    if (c->chunk_out)
        x->answer_body = BODY_CHUNKED;
    size_t n =
        response_build(x, m, c->close_after && !raw, c->worker->answer_head, sizeof c->worker->answer_head);
    x->answer_body = said;
    if (n == 0) {
        front_close(c, true);
        return;
    }
    c->corked = (uint32_t)n;
    if (raw) {
        front_flush(x);
        c->state = FRONT_RAW;
        c->body_done = true;
        again(c); /* the client may have spoken already */
    }
}

static void front_interim(struct exchange *x, const struct http_head *m)
{
    struct front1 *c = x->front_data;
    if (x->http10)
        return;
    char out[8192];
    size_t n = response_build(x, m, false, out, sizeof out);
    if (n && !dp_io_write(&c->io, out, n))
        again(c);
}

static void front_data(struct exchange *x, const char *p, size_t n)
{
    struct front1 *c = x->front_data;
    struct iovec v[4];
    char size[20];
    x->bytes_out += n;
    if (!c->chunk_out) {
        v[1] = (struct iovec){(char *)p, n};
        front_write(c, v, 2);
        return;
    }
    v[1] = (struct iovec){size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n)};
    v[2] = (struct iovec){(char *)p, n};
    v[3] = (struct iovec){(char *)"\r\n", 2};
    front_write(c, v, 4);
}

static void raw_check(struct front1 *c)
{
    struct exchange *x = c->x;
    if (!c->raw_in_done || !c->raw_out_done || dp_io_blocked(&c->io) || (x->back && x->back->blocked(x)))
        return;
    c->x = NULL;
    if (x->back)
        x->back->cancel(x);
    x->back = NULL;
    x->conn = NULL;
    exchange_done(x);
    front_close(c, false);
}

static void front_finish(struct exchange *x, const struct http_head *trailers)
{
    struct front1 *c = x->front_data;
    front_flush(x);
    if (c->state == FRONT_RAW) {
        c->raw_out_done = true;
        dp_io_shutdown(&c->io);
        again(c);
        return;
    }
    if (c->chunk_out)
        dp_io_write(&c->io, "0\r\n\r\n", 5);
    c->x = NULL;
    exchange_done(x);
    if (c->state == FRONT_CLOSED)
        return;
    c->chunk_out = false;
    c->scan = (struct http_scan){0};
    if (c->close_after) {
        front_linger(c);
        return;
    }
    c->state = FRONT_HEAD;
    if (c->in_len || (c->io.readable && !c->in_read))
        again(c);
}

static void front_abort(struct exchange *x)
{
    struct front1 *c = x->front_data;
    c->corked = 0;
    front_close(c, true); /* a reset, so that a cut answer is not taken for a whole one */
}

static bool front_blocked(struct exchange *x)
{
    struct front1 *c = x->front_data;
    return dp_io_blocked(&c->io);
}

static void front_pull(struct exchange *x)
{
    struct front1 *c = x->front_data;
    if (c->starting)
        return;
    x->back->flush(
        x); /* the request head does not wait for a body that may not come before an interim answer */
    again(c);
}

static const struct front_ops front1_ops = {.head = front_head,
                                            .interim = front_interim,
                                            .data = front_data,
                                            .finish = front_finish,
                                            .abort = front_abort,
                                            .flush = front_flush,
                                            .blocked = front_blocked,
                                            .pull = front_pull};

static void on_drain(struct dp_io *io)
{
    struct front1 *c = (struct front1 *)io;
    if (c->x && c->x->back) {
        c->x->back->pull(c->x);
        if (c->state == FRONT_RAW)
            raw_check(c);
    }
}

/* ---- the request ---- */

/* A head that cannot be parsed: answered without an exchange of its own. */
static void refuse(struct front1 *c, enum answer_kind kind)
{
    char out[512];
    const char *text = kind == ANSWER_HEAD_TOO_LARGE    ? "Request header fields too large"
                       : kind == ANSWER_REQUEST_TIMEOUT ? "The request did not arrive in time"
                                                        : "Bad request";
    int status = kind == ANSWER_HEAD_TOO_LARGE ? 431 : kind == ANSWER_REQUEST_TIMEOUT ? 408 : 400;
    char body[128];
    int length = snprintf(body, sizeof body, "{\"message\":\"%s\",\"code\":%d}", text, status);
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nConnection: "
                     "close\r\n\r\n%s",
                     status, http_reason(status), length, body);
    dp_io_write(&c->io, out, (size_t)n);
    stats_add("refused_heads");
    front_linger(c);
}

/* Hands body bytes to the back. Returns how many were used; the exchange may be over after it. */
static size_t body_feed(struct front1 *c, const char *p, size_t n)
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
        front_close(c, true);
        return false;
    }
    memcpy(x->head, p, n);
    int rc = exchange_parse(x);
    if (rc != 0) {
        exchange_discard(x);
        refuse(c, rc == HTTP_TOO_LARGE ? ANSWER_HEAD_TOO_LARGE : ANSWER_BAD_REQUEST);
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
static bool can_feed(const struct front1 *c)
{
    return c->x && c->x->back && !c->body_done && !c->x->back->blocked(c->x);
}

/* Bytes at the start of a request (and perhaps of its body). Returns how many were used. */
static size_t bytes_take(struct front1 *c, const char *p, size_t n)
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
        refuse(c, end == HTTP_TOO_LARGE ? ANSWER_HEAD_TOO_LARGE : ANSWER_BAD_REQUEST);
        return n;
    }
    size_t used = skipped + (size_t)end;
    if (!head_take(c, p + skipped, (size_t)end))
        return n;
    if (used < n && can_feed(c))
        used += body_feed(c, p + used, n - used);
    if (c->x && c->x->back)
        c->x->back->flush(c->x);
    return used;
}

static void head_wait(struct front1 *c)
{
    if (c->head_ms == 0)
        c->head_ms = dp_now_ms(c->worker->loop);
    /* From the first byte of a head to its last the clock runs, whatever trickles in. */
    if (c->timer.link == NULL ||
        c->timer.at_ms > dp_now_ms(c->worker->loop) + c->worker->proxy->cfg.head_timeout_ms)
        dp_timer_start(c->worker->loop, &c->timer, c->worker->proxy->cfg.head_timeout_ms);
}

/* Takes what waits in c->in. false: nothing more can be done with it now. */
static bool in_take(struct front1 *c)
{
    size_t used;
    if (c->state == FRONT_HEAD) {
        used = bytes_take(c, c->in + c->in_off, c->in_len);
    } else if ((c->state == FRONT_BUSY && can_feed(c)) ||
               (c->state == FRONT_RAW && c->x && c->x->back && !c->x->back->blocked(c->x))) {
        if (c->state == FRONT_RAW) {
            used = c->in_len;
            c->x->back->data(c->x, c->in + c->in_off, used);
        } else {
            used = body_feed(c, c->in + c->in_off, c->in_len);
            if (c->x && c->x->back)
                c->x->back->flush(c->x);
        }
    } else {
        return false;
    }
    if (c->in == NULL) /* closed or lingering */
        return false;
    c->in_off += (uint32_t)used;
    c->in_len -= (uint32_t)used;
    if (c->in_len == 0)
        in_free(c);
    return used > 0;
}

static void read_end(struct front1 *c, ssize_t why)
{
    if (c->state == FRONT_RAW && why == DP_IO_END) {
        if (!c->raw_in_done && c->x && c->x->back) {
            c->raw_in_done = true;
            c->x->back->finish(c->x, NULL);
        }
        if (c->x)
            raw_check(c);
        return;
    }
    front_close(c, why == DP_IO_FAILED || c->state == FRONT_BUSY);
}

/* May the socket be read now? While a complete request runs, only its end is of interest. */
static bool may_read(struct front1 *c)
{
    switch (c->state) {
    case FRONT_HEAD:
    case FRONT_LINGER:
        return true;
    case FRONT_BUSY:
        return can_feed(c);
    case FRONT_RAW:
        return c->x && c->x->back && !c->x->back->blocked(c->x);
    default:
        return false;
    }
}

static void bytes_arrived(struct front1 *c, const char *p, size_t n)
{
    size_t used = 0;
    c->active_ms = dp_now_ms(c->worker->loop);
    switch (c->state) {
    case FRONT_HEAD:
        if (c->in == NULL)
            used = bytes_take(c, p, n);
        break;
    case FRONT_BUSY:
        used = body_feed(c, p, n);
        if (c->x && c->x->back)
            c->x->back->flush(c->x);
        break;
    case FRONT_RAW:
        c->x->back->data(c->x, p, n);
        return;
    case FRONT_LINGER:
        c->lingered += (uint32_t)n;
        if (c->lingered > LINGER_BYTES)
            front_close(c, true);
        return;
    default:
        return;
    }
    if (c->state == FRONT_CLOSED || c->state == FRONT_LINGER)
        return;
    if (used < n && !in_keep(c, p + used, n - used)) {
        front_close(c, true);
        return;
    }
    if (c->state == FRONT_HEAD && c->in_len)
        head_wait(c);
}

static bool protocol_decide(struct front1 *c, const char *p, size_t n)
{
    static const char magic[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    c->undecided = false;
    if (n < 16 ? n == 0 || memcmp(p, magic, n) != 0 || n < 3 : memcmp(p, magic, 16) != 0)
        return false;
    front2_adopt(c->worker, &c->io, c->client, c->address, c->tls, p, n);
    c->client = NULL;
    front_close(c, false);
    return true;
}

static void front_read(struct front1 *c)
{
    if (c->undecided && c->io.ssl && tls_is_h2(c->io.ssl)) {
        c->undecided = false;
        front2_adopt(c->worker, &c->io, c->client, c->address, true, NULL, 0);
        c->client = NULL;
        front_close(c, false);
        return;
    }
    c->in_read = true;
    for (int i = 0; i < ROUNDS; i++) {
        while (c->in_len && in_take(c))
            ;
        if (c->state == FRONT_CLOSED || !may_read(c) || (c->in_len && c->state != FRONT_HEAD))
            break;
        ssize_t n = dp_io_read(&c->io, c->worker->scratch, SCRATCH);
        if (n == DP_IO_AGAIN)
            break;
        if (n <= 0) {
            read_end(c, n);
            break;
        }
        if (c->undecided && protocol_decide(c, c->worker->scratch, (size_t)n))
            break;
        bytes_arrived(c, c->worker->scratch, (size_t)n);
        if (c->state == FRONT_HEAD && c->in_len && !in_take(c) && !c->io.readable)
            break;
    }
    c->in_read = false;
    if (c->state == FRONT_CLOSED)
        return;
    /* The end of the client's stream while its request runs: it has left, and what it asked for is no longer
     * wanted. */
    if (c->state == FRONT_BUSY &&
        (c->io.failed || c->io.wfailed || (c->io.rdhup && !c->in_len && c->body_done))) {
        front_close(c, true);
        return;
    }
    if (c->io.wfailed && c->state != FRONT_BUSY) {
        front_close(c, true);
        return;
    }
    if (c->state == FRONT_RAW && c->x)
        raw_check(c);
    if (may_read(c) && c->io.readable && !c->io.eof)
        again(c);
}

static void on_read(struct dp_io *io)
{
    front_read((struct front1 *)io);
}

static void on_again(struct dp_task *t)
{
    struct front1 *c = (struct front1 *)((char *)t - offsetof(struct front1, again));
    if (c->state != FRONT_CLOSED)
        front_read(c);
}

static void on_timer(struct dp_timer *t)
{
    struct front1 *c = (struct front1 *)((char *)t - offsetof(struct front1, timer));
    const struct proxy_config *cfg = &c->worker->proxy->cfg;
    int64_t quiet = dp_now_ms(c->worker->loop) - c->active_ms;
    if (c->state == FRONT_LINGER || c->io.handshaking) {
        front_close(c, c->io.handshaking);
        return;
    }
    int64_t slow = c->head_ms ? dp_now_ms(c->worker->loop) - c->head_ms : 0;
    if (c->state == FRONT_HEAD && c->in_len && slow < cfg->head_timeout_ms) {
        dp_timer_start(c->worker->loop, t, cfg->head_timeout_ms - slow);
        return;
    }
    if (c->state == FRONT_HEAD && c->in_len) {
        refuse(c, ANSWER_REQUEST_TIMEOUT);
        return;
    }
    int64_t limit = c->state == FRONT_HEAD ? cfg->keepalive_timeout_ms : cfg->idle_timeout_ms;
    if (quiet >= limit)
        front_close(c, c->state != FRONT_HEAD);
    else
        dp_timer_start(c->worker->loop, t, limit - quiet);
}

static void on_link_drain(struct front_link *l)
{
    struct front1 *c = (struct front1 *)((char *)l - offsetof(struct front1, link));
    if (c->state == FRONT_HEAD && c->in_len == 0)
        front_close(c, false);
    else
        c->close_after = true;
}

void front1_start(struct worker *w, int fd, SSL *ssl, struct client *client, const char *address)
{
    struct front1 *c = calloc(1, sizeof *c);
    if (c == NULL) {
        SSL_free(ssl);
        close(fd);
        client_leave(w, client);
        return;
    }
    *c = (struct front1){.io = {.on_read = on_read, .on_drain = on_drain},
                         .worker = w,
                         .client = client,
                         .tls = ssl != NULL,
                         .undecided = true,
                         .timer = {.fire = on_timer},
                         .again = {.run = on_again},
                         .bury = {.run = on_bury},
                         .link = {.drain = on_link_drain},
                         .active_ms = dp_now_ms(w->loop)};
    snprintf(c->address, sizeof c->address, "%s", address);
    front_link_add(w, &c->link);
    if (dp_io_open(&c->io, w->loop, fd, ssl, false) != 0) {
        front_close(c, true);
        return;
    }
    dp_timer_start(w->loop, &c->timer, w->proxy->cfg.head_timeout_ms);
}
