/* Connections to services: opened by the relay after a preface, kept for reuse per (sandbox, generation,
 * port). Invariants: a connection serves only requests of the generation that it was opened for; envd's is
 * opened ahead of need, other ports' never; a port that has no connection takes no memory. */
#include "proxy/link.h"

#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/preface.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IDLE_ENVD_MS = 10000, IDLE_OTHER_MS = 4000, IDLE_API_MS = 60000, FRESH_MS = 500 };

/* Finds or makes it, and holds it: pool_leave. */
static struct pool *pool_enter(struct sandbox *s, uint16_t port, bool h2)
{
    struct pool **slot = &s->pools[port % POOL_SLOTS], *p = *slot;
    while (p && (p->port != port || p->h2 != h2))
        p = p->next;
    if (p == NULL && (p = calloc(1, sizeof *p))) {
        p->port = port;
        p->h2 = h2;
        p->next = *slot;
        *slot = p;
    }
    if (p)
        p->holders++;
    return p;
}

static void pool_leave(struct sandbox *s, struct pool *p)
{
    if (--p->holders)
        return;
    struct pool **at = &s->pools[p->port % POOL_SLOTS];
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    free(p);
}

void pool_idle_remove(struct back *b)
{
    if (b->idle_link == NULL)
        return;
    *b->idle_link = b->idle_next;
    if (b->idle_next)
        b->idle_next->idle_link = b->idle_link;
    b->idle_link = NULL;
    b->sandbox->idle--;
    dp_timer_stop(&b->timer);
}

static void idle_add(struct back *b)
{
    int64_t keep = b->sandbox->is_api           ? IDLE_API_MS
                   : b->pool->port == ENVD_PORT ? IDLE_ENVD_MS
                                                : IDLE_OTHER_MS;
    b->state = BACK_IDLE;
    b->x = NULL;
    b->idle_next = b->pool->idle;
    b->idle_link = &b->pool->idle;
    if (b->idle_next)
        b->idle_next->idle_link = &b->idle_next;
    b->pool->idle = b;
    b->sandbox->idle++;
    dp_timer_start(b->worker->loop, &b->timer, keep);
}

static void on_bury(struct dp_task *t)
{
    struct back *b = (struct back *)((char *)t - offsetof(struct back, bury));
    if (b->again.queued) {
        dp_bury(b->worker->loop, t);
        return;
    }
    if (b->h2)
        back2_free(b); /* here, because callbacks of its session may be running when it is closed */
    buf_free(&b->trailers);
    free(b);
}

void back_close(struct back *b, bool reset)
{
    if (b->state == BACK_CLOSED)
        return;
    struct sandbox *s = b->sandbox;
    if (b->state == BACK_CONNECTING && b->x == NULL)
        b->pool->opening--;
    if (b->state == BACK_RETIRED)
        s->retired--;
    pool_idle_remove(b);
    b->state = BACK_CLOSED;
    b->x = NULL;
    dp_timer_stop(&b->timer);
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
    pool_leave(s, b->pool);
    b->pool = NULL;
    dp_mem_put(b->in, b->in_cap);
    b->in = NULL;
    link_leave(b);
    dp_io_close(&b->io, reset);
    dp_bury(b->worker->loop, &b->bury);
    sandbox_release(s);
}

struct exchange *back_part(struct back *b)
{
    struct exchange *x = b->x;
    b->x = NULL;
    if (x) {
        x->back = NULL;
        x->conn = NULL;
    }
    return x;
}

void back_lost(struct back *b)
{
    bool reused = b->reused, got = b->got_bytes;
    struct exchange *x = back_part(b);
    back_close(b, true);
    if (x == NULL)
        return;
    if (!got && x->state == X_SENT)
        exchange_broken(x, reused);
    else
        exchange_fail(x, ANSWER_BAD_GATEWAY, NULL);
}

/* ---- opening ---- */

static void connected(struct back *b)
{
    struct exchange *x = b->x;
    dp_timer_stop(&b->timer);
    if (x == NULL) {
        b->pool->opening--;
        idle_add(b);
        return;
    }
    b->state = BACK_BUSY;
    exchange_connected(x, b);
}

static void not_connected(struct back *b, enum connect_result why)
{
    struct exchange *x = b->x;
    if (x)
        b->pool->opening++; /* back_close counts a connection without an exchange as a spare */
    b->x = NULL;
    back_close(b, false);
    if (x)
        exchange_not_connected(x, why);
}

static void answered(struct back *b)
{
    static const enum connect_result result[] = {[PREFACE_STALE] = CONNECT_STALE,
                                                 [PREFACE_UNKNOWN] = CONNECT_UNKNOWN,
                                                 [PREFACE_PORT_CLOSED] = CONNECT_PORT_CLOSED,
                                                 [PREFACE_NOT_READY] = CONNECT_NOT_READY,
                                                 [PREFACE_BAD_MAC] = CONNECT_DENIED,
                                                 [PREFACE_LIMIT] = CONNECT_LIMIT};
    enum preface_status status;
    uint64_t gen;
    if (!preface_answer_decode(b->answer, &status, &gen)) {
        not_connected(b, CONNECT_UNREACHABLE);
    } else if (status == PREFACE_OK) {
        stats_stream(b->link_stream != NULL);
        /* Whoever speaks first (an h2c service does) may have spoken already. */
        dp_defer(b->worker->loop, &b->again);
        connected(b);
    } else {
        if (status == PREFACE_BAD_MAC)
            log_line(LOG_WARN, &(struct log_about){.sandbox = b->sandbox->id, .gen = b->gen},
                     "the relay refused our ticket");
        not_connected(b, result[status]);
    }
}

static void preface_read(struct back *b)
{
    while (b->answer_len < PREFACE_ANSWER_LEN) {
        ssize_t n = dp_io_read(&b->io, b->answer + b->answer_len, PREFACE_ANSWER_LEN - (size_t)b->answer_len);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            not_connected(b, CONNECT_UNREACHABLE);
            return;
        }
        b->answer_len += (uint8_t)n;
    }
    answered(b);
}

void back_answered(struct back *b, const uint8_t answer[16], int fd)
{
    if (b->state == BACK_RETIRED) {
        if (fd >= 0)
            close(fd);
        return;
    }
    memcpy(b->answer, answer, sizeof b->answer);
    if (fd >= 0 && dp_io_open(&b->io, b->worker->loop, fd, NULL, true) != 0) {
        close(fd);
        b->io.watch.fd = -1;
        not_connected(b, CONNECT_UNREACHABLE);
        return;
    }
    answered(b);
}

void back_failed(struct back *b)
{
    if (b->state != BACK_RETIRED)
        not_connected(b, CONNECT_UNREACHABLE);
}

void back_unlinked(struct back *b)
{
    if (b->state == BACK_RETIRED)
        return;
    if (b->gen != b->sandbox->route.gen)
        not_connected(b, CONNECT_STALE);
    else if (!relay_connect(b))
        not_connected(b, CONNECT_UNREACHABLE);
}

static void on_read(struct dp_io *io)
{
    struct back *b = (struct back *)io;
    switch (b->state) {
    case BACK_CONNECTING:
        preface_read(b);
        break;
    case BACK_IDLE: {
        char byte;
        if (b->h2 == NULL && dp_io_read(io, &byte, 1) != DP_IO_AGAIN)
            back_close(b, false); /* the service hung up, or spoke out of turn */
        else if (b->h2)
            back2_read(b);
        break;
    }
    case BACK_BUSY:
        if (b->h2)
            back2_read(b);
        else
            back1_read(b);
        break;
    case BACK_RETIRED:
    case BACK_CLOSED:
        break;
    }
}

static void on_drain(struct dp_io *io)
{
    struct back *b = (struct back *)io;
    if (b->h2)
        back2_drained(b);
    else if (b->state == BACK_BUSY)
        back1_drained(b);
}

static void on_again(struct dp_task *t)
{
    struct back *b = (struct back *)((char *)t - offsetof(struct back, again));
    if (b->state == BACK_BUSY || b->state == BACK_IDLE)
        on_read(&b->io);
}

static void on_timer(struct dp_timer *t)
{
    struct back *b = (struct back *)((char *)t - offsetof(struct back, timer));
    if (b->state == BACK_CONNECTING)
        not_connected(b, CONNECT_UNREACHABLE);
    else
        back_close(b, false);
}

/* NULL: no descriptor or no memory, or the relay may not be reached in plaintext. */
static struct back *back_open(struct sandbox *s, struct pool *p, struct exchange *x)
{
    struct worker *w = s->worker;
    struct back *b = calloc(1, sizeof *b);
    if (b == NULL)
        return NULL;
    *b = (struct back){.io = {.watch = {.fd = -1}, .on_read = on_read, .on_drain = on_drain},
                       .worker = w,
                       .sandbox = s,
                       .pool = p,
                       .gen = s->route.gen,
                       .state = BACK_CONNECTING,
                       .x = x,
                       .timer = {.fire = on_timer},
                       .again = {.run = on_again},
                       .bury = {.run = on_bury}};
    b->next = s->backs;
    b->link = &s->backs;
    if (b->next)
        b->next->link = &b->next;
    s->backs = b;
    p->holders++;
    if (x == NULL)
        p->opening++;
    else
        x->conn = b;
    if (!link_open(b) && !relay_connect(b)) {
        if (x) {
            p->opening++;
            x->conn = NULL;
        }
        b->x = NULL;
        back_close(b, false);
        return NULL;
    }
    dp_timer_start(w->loop, &b->timer, w->proxy->cfg.connect_timeout_ms);
    return b;
}

/* Many services close a kept connection after a second or two of silence, some at once. What cannot be sent
 * again if that happens now is not risked on one that has been quiet for long, or has ended already. envd and
 * the API keep theirs for longer than we do. */
static bool risky(const struct back *b, const struct exchange *x)
{
    char byte;
    if ((x->idempotent && !x->request_body) || b->sandbox->is_api || x->port == ENVD_PORT || b->h2 ||
        b->io.ssl)
        return false;
    return dp_now_ms(b->worker->loop) - (b->timer.at_ms - IDLE_OTHER_MS) > FRESH_MS ||
           recv(b->io.watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

void pool_connect(struct exchange *x)
{
    struct sandbox *s = x->sandbox;
    struct pool *p = pool_enter(s, s->is_api ? 0 : x->port, x->grpc);
    if (p == NULL) {
        exchange_fail(x, ANSWER_UNREACHABLE, NULL);
        return;
    }
    struct back *b;
    while ((b = p->idle) && x->tries < 2) {
        if (b->gen != s->route.gen) { /* there may be many, of which no event has told */
            back_retire(b);
            continue;
        }
        if (b->io.rdhup || risky(b, x)) {
            back_close(b, false);
            continue;
        }
        pool_idle_remove(b);
        b->state = BACK_BUSY;
        b->x = x;
        break;
    }
    if (b == NULL || x->tries >= 2)
        b = back_open(s, p, x);
    else if (s->is_api || x->port != ENVD_PORT || p->idle || p->opening || p->h2)
        ;
    else
        back_open(s, p, NULL);
    pool_leave(s, p);
    if (b == NULL) {
        exchange_not_connected(x, CONNECT_UNREACHABLE);
    } else if (b->state == BACK_BUSY) {
        exchange_connected(x, b);
    } else if (s->is_api) {
        b->state = BACK_BUSY; /* no preface: the head may go out with the connection */
        dp_timer_stop(&b->timer);
        exchange_connected(x, b);
    }
}

void pool_forget(struct exchange *x)
{
    struct back *b = x->conn;
    x->conn = NULL;
    if (b == NULL || b->x != x)
        return;
    b->x = NULL;
    if (b->state == BACK_RETIRED)
        return;
    b->pool->opening++;
    if (b->pool->port != ENVD_PORT)
        back_close(b, true);
}

void back_release(struct back *b)
{
    dp_io_settle(&b->io); /* what is still readable was not asked for */
    bool keep = b->gen == b->sandbox->route.gen && (!b->io.readable || b->h2) && !b->io.rdhup &&
                !b->io.failed && !dp_io_blocked(&b->io) && b->sandbox->idle < IDLE_MAX &&
                !atomic_load_explicit(&b->worker->proxy->draining, memory_order_relaxed);
    b->x = NULL;
    if (!keep) {
        back_close(b, false);
        return;
    }
    b->reused = true;
    b->got_bytes = false;
    dp_mem_put(b->in, b->in_cap);
    b->in = NULL;
    b->in_len = b->in_cap = 0;
    buf_reset(&b->trailers);
    idle_add(b);
}
