/* Bodies of known length between two plain HTTP/1.1 connections: when much is left, pages are moved through a
 * pipe (lib/dp/pump.h) and no byte is copied into this process. Invariant: while a pipe holds bytes, both
 * sides count as blocked, so nothing is written past them. */
#include "proxy/front1.h"

enum { WORTH = 131072 }; /* left of a body; below it copying is as good */

static bool worth(uint64_t left, size_t n, struct dp_io *from, struct dp_io *to)
{
    return n == SCRATCH && left >= WORTH && from->ssl == NULL && to && to->ssl == NULL && !dp_io_blocked(to);
}

static void begin(struct half *h, struct dp_io *from, struct dp_io *to)
{
    *h = (struct half){.from = from, .to = to, .pipe = {-1, -1}, .bulk = true};
}

void bulk_up_consider(struct front1 *c, size_t n)
{
    struct exchange *x = c->x;
    if (c->body == BODY_LENGTH && x && x->back && x->back->plain &&
        worth(c->left, n, &c->io, x->back->plain(x)))
        begin(&x->up, &c->io, x->back->plain(x));
}

void bulk_stop(struct exchange *x)
{
    pump_release(&x->up);
    pump_release(&x->down);
    x->up.bulk = x->down.bulk = false;
}

/* Writing to `to` has failed; its owner finds out by reading. */
static void write_failed(struct half *h)
{
    pump_release(h);
    h->bulk = false;
    h->to->wfailed = true;
}

bool bulk_up(struct front1 *c)
{
    struct exchange *x = c->x;
    struct half *h = &x->up;
    uint64_t before = h->bytes;
    enum pump_result r = pump_bulk(h, &c->left);
    if (h->bytes != before) {
        c->active_ms = dp_now_ms(c->worker->loop);
        x->body_sent = true;
        x->bytes_in += h->bytes - before;
    }
    switch (r) {
    case PUMP_COPY:
        return true;
    case PUMP_FAILED:
        write_failed(h);
        dp_defer(c->worker->loop, &x->conn->again);
        return true; /* an answer may still come: the rest of the body is read and dropped */
    case PUMP_DONE:
        h->bulk = false;
        c->body_done = true;
        x->back->finish(x, NULL);
        return true;
    case PUMP_AGAIN:
        front1_again(c);
        return false;
    default:
        return false;
    }
}

void bulk_down_consider(struct exchange *x, struct back *b, size_t n)
{
    if (b->body == BODY_LENGTH && x->front->plain && worth(b->left, n, &b->io, x->front->plain(x)))
        begin(&x->down, &b->io, x->front->plain(x));
}

enum pump_result bulk_down(struct exchange *x, struct back *b)
{
    struct half *h = &x->down;
    uint64_t before = h->bytes;
    enum pump_result r = pump_bulk(h, &b->left);
    if (h->bytes != before) {
        x->bytes_out += h->bytes - before;
        x->front->active(x);
    }
    if (r == PUMP_FAILED) {
        write_failed(h);
        x->front->pull(x); /* reads, and finds that the client has left */
    } else if (r == PUMP_AGAIN) {
        dp_defer(b->worker->loop, &b->again);
    }
    return r;
}
