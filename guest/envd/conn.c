/* The connection's state machine. Invariants: one request is in flight at a time, input beyond it waits in
 * the socket; an idle connection owns no buffer; a connection dies in exactly one place (conn_abort), and
 * never inside a call that writes to it: a failed send only marks it broken. */
#include "guest/envd/conn.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/envd/budget.h"
#include "lib/base/jsonw.h"

#define IDLE_MS (640 * 1000) /* longer than any client keeps a pooled connection (contracts/e2b.md §9.6) */
#define HEAD_MS (30 * 1000)
#define BODY_IDLE_MS (120 * 1000)
#define DRAIN_MS (5 * 1000)
#define READ_SIZE (32 * 1024)

static struct conn *all;
static unsigned n_conns;

unsigned conn_count(void)
{
    return n_conns;
}

size_t conn_pending(const struct conn *c)
{
    return c->out.len - c->out_off;
}

bool conn_hold(struct conn *c, size_t n)
{
    struct request *r = c->req;
    if (n > r->held && !budget_take(n - r->held))
        return false;
    if (n < r->held)
        budget_give(r->held - n);
    r->held = n;
    return true;
}

void conn_whole_free(struct conn *c)
{
    budget_give(c->req->whole.len);
    buf_free(&c->req->whole);
}

static void request_free(struct conn *c)
{
    struct request *r = c->req;
    if (!r)
        return;
    conn_whole_free(c);
    budget_give(r->held);
    free(r->head);
    arena_free(&r->arena);
    free(r);
    c->req = NULL;
}

void conn_abort(struct conn *c)
{
    if (c->ev.fd < 0)
        return;
    void (*gone)(struct conn *) = c->req && !c->response_done ? c->on_gone : NULL;
    ev_close(&c->ev);
    if (gone)
        gone(c);
    timer_clear(&c->timer);
    request_free(c);
    buf_free(&c->in);
    buf_free(&c->out);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    n_conns--;
    loop_free_later(c);
}

void conn_close_idlest(void)
{
    struct conn *worst = NULL;
    for (struct conn *c = all; c; c = c->next)
        if (!c->req && !c->trusted && (!worst || c->last_ms < worst->last_ms))
            worst = c;
    if (worst)
        conn_abort(worst);
}

/* How long the connection may stay without a byte in its present state; -1 = for ever (a response is being
 * made). */
static int64_t patience_ms(const struct conn *c)
{
    if (!c->req)
        return c->trusted ? -1 : c->in.len > c->in_off ? HEAD_MS : IDLE_MS;
    if (c->response_done)
        return conn_pending(c) ? BODY_IDLE_MS : DRAIN_MS;
    return c->body_done || c->paused ? -1 : BODY_IDLE_MS;
}

static void on_timer(void *owner)
{
    struct conn *c = owner;
    if (c->broken) {
        conn_abort(c);
        return;
    }
    if (c->detached) {
        void (*ready)(struct conn *, uint32_t) = c->on_ready;
        c->on_ready = NULL;
        ev_watch(&c->ev, 0);
        if (ready)
            ready(c, 0);
        return;
    }
    int64_t limit = patience_ms(c);
    int64_t left = limit < 0 ? IDLE_MS : c->last_ms + limit - loop_now_ms();
    if (left > 0)
        timer_set(&c->timer, left);
    else
        conn_abort(c);
}

static void watch_update(struct conn *c)
{
    if (c->detached || c->ev.fd < 0)
        return;
    uint32_t want = conn_pending(c) || c->stalled ? EPOLLOUT : 0;
    if (!c->req || (!c->body_done && !c->paused))
        want |= EPOLLIN | EPOLLRDHUP;
    else if ((c->streaming || c->may_leave) && !c->response_done)
        want |= EPOLLRDHUP;
    if (ev_watch(&c->ev, want) < 0)
        c->broken = true;
    int64_t limit = patience_ms(c);
    if (c->broken)
        timer_set(&c->timer, 0);
    else if (limit >= 0 && (!c->timer.slot || c->timer.at_ms > loop_now_ms() + limit))
        timer_set(&c->timer, limit);
}

static void flush(struct conn *c)
{
    while (conn_pending(c) && !c->broken) {
        ssize_t n = send(c->ev.fd, c->out.data + c->out_off, conn_pending(c), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            c->stalled = true;
            return;
        }
        if (n < 0) {
            c->broken = true;
            timer_set(&c->timer, 0);
            break;
        }
        c->out_off += (size_t)n;
        c->last_ms = loop_now_ms();
    }
    c->out_off = 0;
    buf_reset(&c->out);
}

static void request_end(struct conn *c)
{
    request_free(c);
    c->user = NULL;
    c->on_data = NULL;
    c->on_end = c->on_drain = c->on_gone = NULL;
    c->paused = c->body_done = c->chunked_out = c->streaming = c->response_done = c->may_leave = false;
    c->scanned = 0;
    buf_free(&c->out);
    c->out_off = 0;
    if (c->in.len == c->in_off) {
        buf_free(&c->in);
        c->in_off = 0;
    }
    c->last_ms = loop_now_ms();
}

static bool path_decode(struct request *r)
{
    size_t n = strlen(r->http.path);
    return http_unescape(r->http.path, n, r->path, n + 1, false) >= 0;
}

/* Takes one complete head out of `in` and starts its route. Returns false when more bytes are needed. */
static bool head_take(struct conn *c)
{
    size_t avail = c->in.len - c->in_off;
    if (!avail)
        return false;
    long n = http_head_complete(c->in.data + c->in_off, avail, c->scanned);
    c->scanned = avail;
    if (!n)
        return false;
    size_t head_len = n < 0 ? 0 : (size_t)n;
    struct request *r = calloc(1, sizeof(*r) + head_len + 1);
    char *head = malloc(head_len + 1);
    if (!r || !head) {
        free(r);
        free(head);
        conn_abort(c);
        return false;
    }
    c->req = r;
    r->head = head;
    r->http.method = r->http.query = "";
    r->http.path = r->path;
    memcpy(head, c->in.data + c->in_off, head_len);
    head[head_len] = 0;
    c->in_off += head_len;
    int status = n < 0 ? 431 : http_parse_head(head, head_len, &r->http);
    if (!status && !path_decode(r))
        status = 400;
    if (status) {
        c->close_after = true; /* where a next request would begin is unknown: what follows is drained */
        conn_error(c, status, "malformed request");
        return true;
    }
    http_body_start(&r->body, &r->http);
    c->body_done = r->body.done;
    c->close_after = !r->http.keep_alive;
    r->route = conn_route(c, &r->http, r->path);
    if (!r->route)
        return true;
    if (r->route->mode == BODY_WHOLE && r->http.has_length && r->http.length > r->route->body_max) {
        conn_error(c, 413, "request body is larger than %zu bytes", r->route->body_max);
        return true;
    }
    if (r->http.expect_continue && !c->body_done)
        buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n"); /* leaves with the first flush */
    if (r->route->mode != BODY_WHOLE || c->body_done)
        r->route->handle(c);
    return true;
}

static void body_finished(struct conn *c)
{
    c->body_done = true;
    if (c->response_done)
        return;
    if (c->req->route->mode == BODY_WHOLE)
        c->req->route->handle(c);
    else if (c->on_end)
        c->on_end(c);
}

/* Feeds buffered input to the body. Returns false when nothing more can be done now. */
static bool body_take(struct conn *c)
{
    struct request *r = c->req;
    size_t avail = c->in.len - c->in_off;
    if (!avail)
        return false;
    if (c->response_done && c->close_after) { /* refused: what still comes is dropped */
        c->in_off = c->in.len;
        return false;
    }
    const char *data;
    size_t len;
    long used = http_body_next(&r->body, c->in.data + c->in_off, avail, &data, &len);
    if (used < 0) {
        void (*gone)(struct conn *) = c->response_done ? NULL : c->on_gone;
        c->close_after = true;
        c->on_gone = NULL;
        c->on_data = NULL;
        c->on_end = NULL;
        if (gone)
            gone(c); /* for the handler the client has left; what follows is between us and the client */
        if (!c->response_done && !c->streaming)
            conn_error(c, 400, "malformed chunked body");
        else
            conn_abort(c);
        return true;
    }
    c->in_off += (size_t)used;
    if (len && !c->response_done) {
        if (r->route->mode != BODY_WHOLE) {
            if (c->on_data)
                c->on_data(c, data, len);
        } else if (r->whole.len + len > r->route->body_max) {
            conn_error(c, 413, "request body is larger than %zu bytes", r->route->body_max);
        } else if (!budget_take(len)) {
            conn_error(c, 503, "too many request bodies in memory, try again");
        } else {
            buf_append(&r->whole, data, len);
            if (r->whole.failed) {
                budget_give(len); /* the failed buffer does not count them */
                conn_error(c, 503, "out of memory");
            }
        }
    }
    if (c->ev.fd >= 0 && c->req == r && r->body.done && !c->body_done)
        body_finished(c);
    return true;
}

static void advance(struct conn *c)
{
    if (c->advancing)
        return;
    c->advancing = true;
    for (;;) {
        if (c->ev.fd < 0 || c->detached || c->broken)
            break;
        flush(c);
        if (!c->req) {
            if (!head_take(c))
                break;
            continue;
        }
        if (c->response_done && !conn_pending(c) && (c->body_done || c->close_after)) {
            if (c->close_after &&
                !c->body_done) { /* tell the peer, and let it finish talking before we hang up */
                shutdown(c->ev.fd, SHUT_WR);
                c->in_off = c->in.len;
                break;
            }
            bool close_now = c->close_after;
            request_end(c);
            if (close_now) {
                conn_abort(c);
                break;
            }
            continue;
        }
        if (c->body_done || c->paused || !body_take(c))
            break;
    }
    c->advancing = false;
    if (c->ev.fd < 0 || c->detached) /* detached: a worker owns `in` by now */
        return;
    if (c->in_off && c->in_off == c->in.len) {
        buf_free(&c->in);
        c->in_off = 0;
    }
    watch_update(c);
}

/* Returns false when the connection is gone. */
static bool read_some(struct conn *c)
{
    if (c->in_off) {
        buf_consume(&c->in, c->in_off);
        c->in_off = 0;
    }
    static char block[READ_SIZE] __attribute__((aligned(4096))); /* a slow client holds only what it sent */
    ssize_t n = recv(c->ev.fd, block, sizeof(block), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0) {
        conn_abort(c);
        return false;
    }
    if (!c->in.len || (c->req && !c->response_done)) /* neither a slow head nor a refused body gains time */
        c->last_ms = loop_now_ms();
    buf_append(&c->in, block, (size_t)n);
    if (c->in.failed)
        conn_abort(c);
    return !c->in.failed;
}

static void on_event(void *owner, uint32_t events)
{
    struct conn *c = owner;
    if (c->detached) {
        void (*ready)(struct conn *, uint32_t) = c->on_ready;
        c->on_ready = NULL;
        ev_watch(&c->ev, 0);
        timer_clear(&c->timer);
        if (ready)
            ready(c, events);
        return;
    }
    if (events & (EPOLLERR | EPOLLHUP)) {
        conn_abort(c);
        return;
    }
    bool reading = !c->req || (!c->body_done && !c->paused);
    if ((events & EPOLLRDHUP) && !reading) { /* the client left a stream */
        conn_abort(c);
        return;
    }
    if ((events & (EPOLLIN | EPOLLRDHUP)) && reading && !read_some(c))
        return;
    if (events & EPOLLOUT) {
        flush(c);
        if (!conn_pending(c)) {
            c->stalled = false;
            if (!c->broken && c->on_drain && !c->response_done)
                c->on_drain(c);
        }
        if (c->ev.fd < 0)
            return;
    }
    advance(c);
}

struct conn *conn_open(int fd, bool trusted, bool local)
{
    struct conn *c = calloc(1, sizeof(*c));
    if (!c) {
        close(fd);
        return NULL;
    }
    c->ev = (struct ev){.fd = fd, .cb = on_event, .owner = c};
    c->timer = (struct timer){.cb = on_timer, .owner = c};
    c->trusted = trusted;
    c->local = local;
    c->last_ms = loop_now_ms();
    c->prev = &all;
    c->next = all;
    if (all)
        all->prev = &c->next;
    all = c;
    n_conns++;
    watch_update(c);
    return c;
}

void conn_head(struct conn *c, struct buf *out, int status, const char *type, const char *extra,
               int64_t length)
{
    if (!c->body_done)
        c->close_after = true;
    buf_printf(out, "HTTP/1.1 %d %s\r\n", status, http_reason(status));
    if (type)
        buf_printf(out, "Content-Type: %s\r\n", type);
    if (length >= 0 && status != 204 && status != 304)
        buf_printf(out, "Content-Length: %lld\r\n", (long long)length);
    else if (length < 0 && c->req->http.minor)
        buf_puts(out, "Transfer-Encoding: chunked\r\n");
    if (length < 0 && !c->req->http.minor)
        c->close_after = true;
    if (c->close_after)
        buf_puts(out, "Connection: close\r\n");
    else if (!c->req->http.minor)
        buf_puts(out, "Connection: keep-alive\r\n");
    if (c->req->http.n_headers && http_header(&c->req->http, "origin"))
        buf_puts(out, "Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: *\r\n");
    if (extra)
        buf_puts(out, extra);
    buf_puts(out, "\r\n");
}

void conn_reply(struct conn *c, int status, const char *type, const char *extra, const void *body, size_t n)
{
    if (c->ev.fd < 0 || c->response_done || c->streaming)
        return;
    conn_head(c, &c->out, status, type, extra, (int64_t)n);
    if (strcmp(c->req->http.method, "HEAD"))
        buf_append(&c->out, body, n);
    if (c->out.failed)
        c->broken = true;
    c->response_done = true;
    c->paused = false;
    advance(c);
    if (c->broken && c->ev.fd >= 0)
        timer_set(&c->timer, 0);
}

void conn_error(struct conn *c, int status, const char *fmt, ...)
{
    char msg[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kint(&w, "code", status);
    jsonw_kstr(&w, "message", msg);
    jsonw_obj_end(&w);
    conn_reply(c, status, "application/json; charset=utf-8", "X-Content-Type-Options: nosniff\r\n", b.data,
               b.len);
}

void conn_stream(struct conn *c, int status, const char *type, const char *extra)
{
    conn_head(c, &c->out, status, type, extra, -1);
    c->streaming = true;
    c->chunked_out = c->req->http.minor > 0;
    flush(c);
}

char *conn_chunk(struct conn *c, size_t n)
{
    if (c->broken)
        return NULL;
    if (!buf_reserve(&c->out, n + 20)) {
        c->broken = true;
        timer_set(&c->timer, 0);
        return NULL;
    }
    if (c->chunked_out)
        buf_printf(&c->out, "%zx\r\n", n);
    char *p = c->out.data + c->out.len;
    c->out.len += n;
    return p;
}

void conn_chunk_end(struct conn *c)
{
    if (c->chunked_out)
        buf_append(&c->out, "\r\n", 2);
    if (c->corked)
        return;
    flush(c);
    if (!c->advancing)
        watch_update(c);
}

void conn_cork(struct conn *c)
{
    c->corked = true;
}

void conn_uncork(struct conn *c)
{
    c->corked = false;
    flush(c);
    if (!c->advancing)
        watch_update(c);
}

void conn_stream_end(struct conn *c)
{
    if (c->ev.fd < 0 || c->response_done)
        return;
    if (c->chunked_out)
        buf_append(&c->out, "0\r\n\r\n", 5);
    c->response_done = true;
    c->paused = false;
    advance(c);
}

void conn_detach(struct conn *c)
{
    flush(c); /* "100 Continue" may still be there */
    c->detached = true;
    timer_clear(&c->timer);
    ev_watch(&c->ev, 0);
}

void conn_attach(struct conn *c)
{
    c->detached = false;
    c->last_ms = loop_now_ms();
    c->body_done = c->body_done || c->req->body.done;
    if (!c->advancing)
        watch_update(c);
}

void conn_wait(struct conn *c, uint32_t events, int64_t timeout_ms, void (*ready)(struct conn *, uint32_t))
{
    c->on_ready = ready;
    timer_set(&c->timer, timeout_ms);
    if (ev_watch(&c->ev, events) < 0)
        timer_set(&c->timer, 0);
}

void conn_response_sent(struct conn *c, bool keep)
{
    conn_attach(c);
    c->response_done = true;
    if (!keep) {
        conn_abort(c);
        return;
    }
    advance(c);
}

void conn_pause(struct conn *c, bool paused)
{
    c->paused = paused;
    if (!paused && !c->advancing)
        advance(c);
    else if (!c->advancing)
        watch_update(c);
}

bool conn_enter(struct conn *c)
{
    bool outer = c->advancing;
    c->advancing = true;
    return outer;
}

void conn_leave(struct conn *c, bool outer)
{
    c->advancing = outer;
    advance(c);
}
