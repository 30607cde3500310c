/* Writes answers to an HTTP/1.1 client: heads, framing, tunnels. Invariant: an answer that was cut short
 * never looks whole (the connection is reset), and after an answer that could not wait for its request the
 * connection is closed. */
#include "proxy/front1.h"

#include <stdio.h>

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
    front1_again(c); /* not here: the caller is in the middle of the answer */
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
        front1_close(c, true);
        return;
    }
    c->corked = (uint32_t)n;
    if (raw) {
        front_flush(x);
        c->state = FRONT_RAW;
        c->body_done = true;
        front1_again(c); /* the client may have spoken already */
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
        front1_again(c);
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

void front1_raw_check(struct front1 *c)
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
    front1_close(c, false);
}

static void front_finish(struct exchange *x, const struct http_head *trailers)
{
    struct front1 *c = x->front_data;
    front_flush(x);
    if (c->state == FRONT_RAW) {
        c->raw_out_done = true;
        dp_io_shutdown(&c->io);
        front1_again(c);
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
        front1_linger(c);
        return;
    }
    c->state = FRONT_HEAD;
    if (c->in_len || (c->io.readable && !c->in_read))
        front1_again(c);
}

static void front_abort(struct exchange *x)
{
    struct front1 *c = x->front_data;
    c->corked = 0;
    front1_close(c, true); /* a reset, so that a cut answer is not taken for a whole one */
}

static bool front_blocked(struct exchange *x)
{
    struct front1 *c = x->front_data;
    return dp_io_blocked(&c->io) || x->down.in_pipe;
}

static struct dp_io *front_plain(struct exchange *x)
{
    struct front1 *c = x->front_data;
    return c->corked || c->chunk_out ? NULL : &c->io;
}

static void front_active(struct exchange *x)
{
    struct front1 *c = x->front_data;
    c->active_ms = dp_now_ms(c->worker->loop);
}

static void front_pull(struct exchange *x)
{
    struct front1 *c = x->front_data;
    if (c->starting)
        return;
    x->back->flush(
        x); /* the request head does not wait for a body that may not come before an interim answer */
    front1_again(c);
}

const struct front_ops front1_ops = {.head = front_head,
                                     .interim = front_interim,
                                     .data = front_data,
                                     .finish = front_finish,
                                     .abort = front_abort,
                                     .flush = front_flush,
                                     .blocked = front_blocked,
                                     .pull = front_pull,
                                     .plain = front_plain,
                                     .active = front_active};
