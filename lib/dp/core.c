/* The parts that do not depend on how readiness is learnt. Invariant: within a turn first events and
 * messages, then timers, then deferred calls and last the burials run, so that no callback sees freed memory.
 */
#include "lib/dp/loop_impl.h"

#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { TICK_SHIFT = 3 };

/* A loop begins with its core. */
static struct dp_core *core(struct dp_loop *l)
{
    return (struct dp_core *)l;
}

void core_clock(struct dp_core *c)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    c->now_us = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

int64_t dp_now_us(const struct dp_loop *l)
{
    return ((const struct dp_core *)l)->now_us;
}

int64_t dp_now_ms(const struct dp_loop *l)
{
    return dp_now_us(l) / 1000;
}

int core_init(struct dp_core *c)
{
    c->deferred_end = &c->deferred;
    c->buried_end = &c->buried;
    core_clock(c);
    c->tick = c->now_us / 1000 >> TICK_SHIFT;
    c->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return c->wakeup < 0 ? -1 : 0;
}

/* ---- timers ---- */

static void slot_mark(struct dp_core *l, size_t s)
{
    l->used[s / 64] |= 1ULL << (s % 64);
}

void dp_timer_stop(struct dp_timer *t)
{
    if (t->link == NULL)
        return;
    *t->link = t->next;
    if (t->next)
        t->next->link = t->link;
    t->link = NULL;
}

void dp_timer_start(struct dp_loop *loop, struct dp_timer *t, int64_t delay_ms)
{
    struct dp_core *l = core(loop);
    dp_timer_stop(t);
    t->at_ms = dp_now_ms(loop) + (delay_ms > 0 ? delay_ms : 0);
    int64_t tick = (t->at_ms >> TICK_SHIFT) + 1; /* never early */
    if (tick <= l->tick)
        tick = l->tick + 1;
    size_t s = (size_t)tick % DP_SLOTS;
    t->next = l->slot[s];
    t->link = &l->slot[s];
    if (t->next)
        t->next->link = &t->next;
    l->slot[s] = t;
    slot_mark(l, s);
}

static void slot_serve(struct dp_core *l, size_t s, int64_t now_ms)
{
    struct dp_timer *due = NULL, **end = &due;
    for (struct dp_timer *t = l->slot[s], *next; t; t = next) {
        next = t->next;
        if (t->at_ms > now_ms)
            continue;
        dp_timer_stop(t);
        /* Linked into a private list, so that a handler may stop or restart any timer of this slot. */
        t->next = NULL;
        t->link = end;
        *end = t;
        end = &t->next;
    }
    if (l->slot[s] == NULL)
        l->used[s / 64] &= ~(1ULL << (s % 64));
    while (due) {
        struct dp_timer *t = due;
        dp_timer_stop(t);
        t->fire(t);
    }
}

void core_timers(struct dp_core *l)
{
    int64_t now_ms = l->now_us / 1000, now_tick = now_ms >> TICK_SHIFT;
    if (now_tick - l->tick > DP_SLOTS)
        l->tick = now_tick - DP_SLOTS;
    while (l->tick < now_tick) {
        l->tick++;
        size_t s = (size_t)l->tick % DP_SLOTS;
        if (l->slot[s])
            slot_serve(l, s, now_ms);
        else
            l->used[s / 64] &= ~(1ULL << (s % 64));
    }
}

int core_wait_ms(struct dp_core *l)
{
    if (l->deferred)
        return 0;
    for (int64_t i = 1; i <= DP_SLOTS;) {
        size_t s = (size_t)(l->tick + i) % DP_SLOTS;
        uint64_t word = l->used[s / 64] >> (s % 64);
        if (word == 0) {
            i += 64 - (int64_t)(s % 64);
            continue;
        }
        i += __builtin_ctzll(word);
        if (i > DP_SLOTS)
            break;
        int64_t at = (l->tick + i) << TICK_SHIFT, now = l->now_us / 1000;
        return at > now ? (int)(at - now) : 0;
    }
    return -1;
}

/* ---- deferred calls, burials, messages ---- */

static void task_push(struct dp_task ***end, struct dp_task *t)
{
    t->queued = true;
    t->next = NULL;
    **end = t;
    *end = &t->next;
}

void dp_defer(struct dp_loop *l, struct dp_task *t)
{
    if (!t->queued)
        task_push(&core(l)->deferred_end, t);
}

void dp_bury(struct dp_loop *l, struct dp_task *t)
{
    if (!t->queued)
        task_push(&core(l)->buried_end, t);
}

static void tasks_run(struct dp_task **head, struct dp_task ***end)
{
    struct dp_task *t = *head;
    *head = NULL;
    *end = head;
    while (t) {
        struct dp_task *next = t->next;
        t->queued = false;
        t->run(t);
        t = next;
    }
}

void dp_post(struct dp_loop *loop, struct dp_msg *m)
{
    struct dp_core *l = core(loop);
    struct dp_msg *old = atomic_load_explicit(&l->inbox, memory_order_relaxed);
    do {
        m->next = old;
    } while (!atomic_compare_exchange_weak_explicit(&l->inbox, &old, m, memory_order_release,
                                                    memory_order_relaxed));
    if (old == NULL) {
        uint64_t one = 1;
        ssize_t n = write(l->wakeup, &one, sizeof one);
        (void)n; /* the counter cannot overflow: it is written once per emptied inbox */
    }
}

void core_inbox(struct dp_core *c)
{
    uint64_t count;
    ssize_t n = read(c->wakeup, &count, sizeof count);
    (void)n;
    struct dp_msg *m = atomic_exchange_explicit(&c->inbox, NULL, memory_order_acquire), *order = NULL;
    while (m) {
        struct dp_msg *next = m->next;
        m->next = order;
        order = m;
        m = next;
    }
    while (order) {
        struct dp_msg *next = order->next;
        order->run(order);
        order = next;
    }
}

/* What a deferred call defers again waits for the next turn, so that one busy stream cannot keep the others
 * waiting. */
void core_settle(struct dp_core *c)
{
    if (c->deferred)
        tasks_run(&c->deferred, &c->deferred_end);
    if (c->buried)
        tasks_run(&c->buried, &c->buried_end);
}
