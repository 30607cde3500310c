/* The HTTP/1.1 side towards a client: keep-alive, one request after the other, each routed on its own.
 * Invariant: no byte of the next request is looked at before the answer of the one before is complete and
 * taken by the client's kernel; a body is read only while the service takes it. */
#include "proxy/front1.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 8, HEADS = 32, LINGER_MS = 5000, LINGER_LONG_MS = 30000 };

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

void front1_in_free(struct front1 *c)
{
    dp_mem_put(c->in, c->in_cap);
    c->in = NULL;
    c->in_off = c->in_len = c->in_cap = 0;
}

void front1_close(struct front1 *c, bool reset)
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
    share_leave(c->client);
    front1_in_free(c);
    dp_io_close(&c->io, reset);
    dp_bury(c->worker->loop, &c->bury);
}

void front1_again(struct front1 *c)
{
    dp_defer(c->worker->loop, &c->again);
}

/* The client gets the end of the stream, and what it still sends is thrown away for a while: closing at once
 * would make its kernel drop the answer, and many clients look at it only when they have sent everything. */
void front1_linger(struct front1 *c)
{
    c->state = FRONT_LINGER;
    c->linger_ms = dp_now_ms(c->worker->loop);
    front1_in_free(c);
    dp_io_shutdown(&c->io);
    dp_timer_start(c->worker->loop, &c->timer, LINGER_MS);
    front1_again(c);
}

/* ---- bytes that wait ---- */

bool front1_in_keep(struct front1 *c, const char *p, size_t n)
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
    memory_grown(c->worker);
    return true;
}

static void on_drain(struct dp_io *io)
{
    struct front1 *c = (struct front1 *)io;
    if (c->x && c->x->back) {
        c->x->back->pull(c->x);
        if (c->state == FRONT_RAW)
            front1_raw_check(c);
    }
    if (c->state == FRONT_LINGER)
        dp_timer_start(c->worker->loop, &c->timer, LINGER_MS);
    else if (c->state == FRONT_HEAD)
        front1_again(c); /* requests behind that answer waited for it */
}

/* ---- reading ---- */

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
        if (dp_io_blocked(&c->io))
            return false;
        used = front1_bytes_take(c, c->in + c->in_off, c->in_len);
    } else if ((c->state == FRONT_BUSY && front1_can_feed(c)) ||
               (c->state == FRONT_RAW && c->x && c->x->back && !c->x->back->blocked(c->x))) {
        if (c->state == FRONT_RAW) {
            used = c->in_len;
            c->x->back->data(c->x, c->in + c->in_off, used);
        } else {
            used = front1_body_feed(c, c->in + c->in_off, c->in_len);
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
        front1_in_free(c);
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
            front1_raw_check(c);
        return;
    }
    front1_close(c, why == DP_IO_FAILED || c->state == FRONT_BUSY);
}

/* May the socket be read now? While a complete request runs, only its end is of interest. */
static bool may_read(struct front1 *c)
{
    switch (c->state) {
    case FRONT_HEAD:
        return !dp_io_blocked(&c->io);
    case FRONT_LINGER:
        return true;
    case FRONT_BUSY:
        return front1_can_feed(c);
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
            used = front1_bytes_take(c, p, n);
        break;
    case FRONT_BUSY:
        used = front1_body_feed(c, p, n);
        if (c->x && c->x->back)
            c->x->back->flush(c->x);
        bulk_up_consider(c, n);
        break;
    case FRONT_RAW:
        c->x->back->data(c->x, p, n);
        return;
    case FRONT_LINGER:
        if (c->active_ms - c->linger_ms > LINGER_LONG_MS)
            front1_close(c, true);
        else if (c->timer.at_ms < c->active_ms + LINGER_MS / 2)
            dp_timer_start(c->worker->loop, &c->timer, LINGER_MS);
        return;
    default:
        return;
    }
    if (c->state == FRONT_CLOSED || c->state == FRONT_LINGER)
        return;
    if (used < n && !front1_in_keep(c, p + used, n - used)) {
        front1_close(c, true);
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
    front1_close(c, false);
    return true;
}

static void front_read(struct front1 *c)
{
    if (c->undecided && c->io.ssl && tls_is_h2(c->io.ssl)) {
        c->undecided = false;
        front2_adopt(c->worker, &c->io, c->client, c->address, true, NULL, 0);
        c->client = NULL;
        front1_close(c, false);
        return;
    }
    c->in_read = true;
    for (int i = 0, heads = 0; i < ROUNDS; i++) {
        while (c->in_len && heads++ < HEADS && in_take(c))
            ;
        if (c->in_len && heads > HEADS && c->state == FRONT_HEAD) {
            front1_again(c); /* others are served between requests that came in one piece */
            break;
        }
        if (c->x && (c->x->up.bulk || c->x->up.in_pipe) && !bulk_up(c))
            break;
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
    if (c->state == FRONT_BUSY && c->body_done && c->in_len == 0)
        dp_io_settle(&c->io);
    /* The end of the client's stream while its request runs: it has left, and what it asked for is no longer
     * wanted. */
    if (c->state == FRONT_BUSY &&
        (c->io.failed || c->io.wfailed || (c->io.rdhup && !c->in_len && c->body_done))) {
        front1_close(c, true);
        return;
    }
    if (c->io.wfailed && c->state != FRONT_BUSY) {
        front1_close(c, true);
        return;
    }
    if (c->state == FRONT_RAW && c->x)
        front1_raw_check(c);
    if (may_read(c) && c->io.readable && !c->io.eof)
        front1_again(c);
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
    if (c->io.handshaking) {
        front1_close(c, true);
        return;
    }
    if (dp_io_blocked(&c->io) && (c->state == FRONT_LINGER || c->state == FRONT_HEAD)) {
        /* A slow reader of the last answer: it is not cut off, and if it must be, then not with an orderly
         * end. */
        if (quiet >= cfg->idle_timeout_ms)
            front1_close(c, true);
        else
            dp_timer_start(c->worker->loop, t, cfg->idle_timeout_ms - quiet);
        return;
    }
    if (c->state == FRONT_LINGER) {
        front1_close(c, false);
        return;
    }
    int64_t slow = c->head_ms ? dp_now_ms(c->worker->loop) - c->head_ms : 0;
    if (c->state == FRONT_HEAD && c->in_len && slow < cfg->head_timeout_ms) {
        dp_timer_start(c->worker->loop, t, cfg->head_timeout_ms - slow);
        return;
    }
    if (c->state == FRONT_HEAD && c->in_len) {
        front1_refuse(c, ANSWER_REQUEST_TIMEOUT, c->in + c->in_off, c->in_len);
        return;
    }
    int64_t limit = c->state == FRONT_HEAD ? cfg->keepalive_timeout_ms : cfg->idle_timeout_ms;
    if (quiet >= limit) {
        front1_close(c, c->state != FRONT_HEAD);
        return;
    }
    int64_t next = limit - quiet, step = exchange_body_step(c->worker);
    if (c->state == FRONT_BUSY && exchange_body_due(c->x)) {
        struct exchange *x = c->x;
        if (front1_can_feed(c) && !c->io.readable)
            exchange_body_waited(x);
        if (c->x != x)
            return; /* it was answered: the timer is that of the end */
        next = next < step ? next : step;
    }
    dp_timer_start(c->worker->loop, t, next);
}

static void on_link_drain(struct front_link *l)
{
    struct front1 *c = (struct front1 *)((char *)l - offsetof(struct front1, link));
    if (c->state == FRONT_HEAD && c->in_len == 0)
        front1_close(c, false);
    else
        c->close_after = true;
}

static size_t on_link_held(const struct front_link *l)
{
    const struct front1 *c = (const struct front1 *)((const char *)l - offsetof(struct front1, link));
    return c->in_cap + c->io.out_cap + (c->x ? memory_of(c->x) : 0);
}

static void on_link_drop(struct front_link *l)
{
    front1_close((struct front1 *)((char *)l - offsetof(struct front1, link)), true);
}

void front1_start(struct worker *w, int fd, SSL *ssl, struct share *client, const char *address)
{
    struct front1 *c = calloc(1, sizeof *c);
    if (c == NULL) {
        SSL_free(ssl);
        close(fd);
        share_leave(client);
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
                         .link = {.drain = on_link_drain, .held = on_link_held, .drop = on_link_drop},
                         .active_ms = dp_now_ms(w->loop)};
    snprintf(c->address, sizeof c->address, "%s", address);
    front_link_add(w, &c->link);
    if (dp_io_open(&c->io, w->loop, fd, ssl, false) != 0) {
        front1_close(c, true);
        return;
    }
    dp_timer_start(w->loop, &c->timer, w->proxy->cfg.head_timeout_ms);
}
