/* Connections of a generation that is over. Taking them out of service costs no system call, so it is done at
 * once for all of them; closing thousands takes the kernel tens of milliseconds, so that is done in slices,
 * between which the worker serves others. Invariant: a retired connection is in no pool, and neither takes
 * nor gives a byte, whatever its exchange, its socket or the relay's link still say. */
#include "proxy/proxy.h"

#include "lib/base/clock.h"

#include <stddef.h>

enum { SLICE = 64, SLICE_US = 1000 };

/* ---- what its exchange finds in the place of the back's functions ---- */

static void retired_data(struct exchange *x, const char *p, size_t n)
{
}

static void retired_finish(struct exchange *x, const struct http_head *trailers)
{
    x->request_done = true;
}

static void retired_ignore(struct exchange *x)
{
}

static void retired_cancel(struct exchange *x)
{
    x->conn->x = NULL;
}

static bool retired_blocked(struct exchange *x)
{
    return true;
}

static const struct back_ops retired_ops = {.data = retired_data,
                                            .finish = retired_finish,
                                            .flush = retired_ignore,
                                            .cancel = retired_cancel,
                                            .blocked = retired_blocked,
                                            .pull = retired_ignore};

/* ---- taking out of service ---- */

void back_retire(struct back *b)
{
    struct worker *w = b->worker;
    if (b->state == BACK_RETIRED || b->state == BACK_CLOSED)
        return;
    pool_idle_remove(b);
    dp_timer_stop(&b->timer);
    if (b->state == BACK_CONNECTING && b->x == NULL)
        b->pool->opening--;
    b->state = BACK_RETIRED;
    b->sandbox->retired++;
    if (b->x && b->x->back) {
        b->x->back = &retired_ops;
        b->x->up.bulk = b->x->down.bulk = false; /* what is in their pipes stays there */
    }
    dp_io_mute(&b->io);
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
    /* Newest first: a sandbox with few streams does not wait for one with thousands. */
    b->next = w->retired;
    b->link = &w->retired;
    if (b->next)
        b->next->link = &b->next;
    w->retired = b;
    dp_defer(w->loop, &w->retire);
}

void pool_retire_older(struct sandbox *s, uint64_t gen)
{
    for (struct back *b = s->backs, *next; b; b = next) {
        next = b->next;
        if (b->gen < gen)
            back_retire(b);
    }
}

/* ---- closing ---- */

static void retired_close(struct back *b)
{
    bool unheard = b->reused && !b->got_bytes;
    struct exchange *x = back_part(b);
    back_close(b, true);
    if (x == NULL)
        return;
    if (x->state == X_CONNECT)
        exchange_not_connected(x, CONNECT_STALE);
    else if (x->state == X_ANSWERING)
        exchange_fail(x, ANSWER_BAD_GATEWAY, NULL);
    else
        exchange_broken(x, unheard); /* the old VM may have ended before it was asked: as back_lost */
}

static void on_retire(struct dp_task *t)
{
    struct worker *w = (struct worker *)((char *)t - offsetof(struct worker, retire));
    int64_t until = clock_mono_us() + SLICE_US;
    for (int i = 0; w->retired && i < SLICE && (i == 0 || clock_mono_us() < until); i++)
        retired_close(w->retired);
    if (w->retired)
        dp_defer(w->loop, t);
}

void retire_init(struct worker *w)
{
    w->retire.run = on_retire;
}
