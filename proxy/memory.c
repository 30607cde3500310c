/* What waits in this process for a peer: heads that are not complete or not answered, and bytes of answers
 * that a client does not take. Invariant: when the workers together hold more than `max_buffered`, each one
 * that holds more than its share resets the client connections that hold most, until it is below; small ones
 * stay. */
#include "proxy/proxy.h"

#include "lib/base/log.h"

#include <stddef.h>

enum { PASSES = 32 };

static size_t share_of(const struct worker *w)
{
    return (size_t)w->proxy->cfg.max_buffered / (size_t)w->proxy->worker_count;
}

static size_t held_by_all(const struct proxy *p)
{
    size_t n = 0;
    for (int i = 0; i < p->worker_count; i++)
        n += atomic_load_explicit(&p->workers[i].held, memory_order_relaxed);
    return n;
}

void memory_publish(struct worker *w)
{
    atomic_store_explicit(&w->held, dp_mem_held(), memory_order_relaxed);
}

size_t memory_of(const struct exchange *x)
{
    size_t n = x->head ? x->head_cap : 0;
    if (x->conn)
        n += x->conn->in_cap + x->conn->io.out_cap;
    return n;
}

/* Drops the ones that hold at least half of what the greediest does. */
static uint32_t drop_most(struct worker *w, size_t enough)
{
    size_t most = 0;
    uint32_t dropped = 0;
    for (struct front_link *f = w->front_list; f; f = f->next) {
        size_t n = f->held(f);
        most = n > most ? n : most;
    }
    for (struct front_link *f = w->front_list, *next; most && f && dp_mem_held() > enough; f = next) {
        next = f->next;
        if (f->held(f) < (most + 1) / 2)
            continue;
        f->drop(f);
        dropped++;
    }
    return dropped;
}

static void on_shed(struct dp_task *t)
{
    struct worker *w = (struct worker *)((char *)t - offsetof(struct worker, shed));
    memory_publish(w);
    if (held_by_all(w->proxy) <= (size_t)w->proxy->cfg.max_buffered)
        return;
    size_t before = dp_mem_held(), enough = share_of(w) / 4 * 3;
    uint32_t all = 0, now;
    for (int i = 0; i < PASSES && dp_mem_held() > enough && (now = drop_most(w, enough)); i++)
        all += now;
    memory_publish(w);
    for (uint32_t i = 0; i < all; i++)
        stats_add("dropped_for_memory");
    if (all)
        log_line(LOG_WARN, NULL, "%zu bytes waited for clients: the %u connections that held most were reset",
                 before, all);
}

void memory_grown(struct worker *w)
{
    if (dp_mem_held() > share_of(w))
        dp_defer(w->loop, &w->shed);
}

void memory_init(struct worker *w)
{
    w->shed.run = on_shed;
}
