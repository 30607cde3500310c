/* Owns the heap of timers of a loop; invariant: t->slot is the position of t in the heap plus one, or 0 when
 * it does not run, so starting again and stopping need no search. */
#include "lib/net/loop_impl.h"

#include "lib/base/clock.h"

#include <stdlib.h>

static void place(struct loop *l, size_t i, struct loop_timer *t)
{
    l->timers.at[i] = t;
    t->slot = i + 1;
}

static void sift_up(struct loop *l, size_t i)
{
    struct loop_timer *t = l->timers.at[i];
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (l->timers.at[parent]->at_ms <= t->at_ms)
            break;
        place(l, i, l->timers.at[parent]);
        i = parent;
    }
    place(l, i, t);
}

static void sift_down(struct loop *l, size_t i)
{
    struct loop_timer *t = l->timers.at[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= l->timers.len)
            break;
        if (child + 1 < l->timers.len && l->timers.at[child + 1]->at_ms < l->timers.at[child]->at_ms)
            child++;
        if (t->at_ms <= l->timers.at[child]->at_ms)
            break;
        place(l, i, l->timers.at[child]);
        i = child;
    }
    place(l, i, t);
}

void loop_timer_stop(struct loop *l, struct loop_timer *t)
{
    if (t->slot == 0)
        return;
    size_t i = t->slot - 1;
    t->slot = 0;
    struct loop_timer *last = l->timers.at[--l->timers.len];
    if (last == t)
        return;
    place(l, i, last);
    sift_up(l, i);
    sift_down(l, last->slot - 1);
}

void loop_timer_start(struct loop *l, struct loop_timer *t, int64_t delay_ms)
{
    loop_timer_stop(l, t);
    if (l->timers.len == l->timers.cap) {
        size_t cap = l->timers.cap ? l->timers.cap * 2 : 64;
        void *p = realloc(l->timers.at, cap * sizeof(*l->timers.at));
        if (!p)
            abort(); /* a deadline that is silently dropped is worse than a restart */
        l->timers.at = p;
        l->timers.cap = cap;
    }
    if (delay_ms < 0)
        delay_ms = 0;
    int64_t now = (clock_mono_us() + 999) / 1000; /* rounded up: never early */
    t->at_ms = delay_ms > INT64_MAX - now ? INT64_MAX : now + delay_ms;
    place(l, l->timers.len++, t);
    sift_up(l, t->slot - 1);
}

int64_t loop_timers_next_ms(struct loop *l)
{
    return l->timers.len ? l->timers.at[0]->at_ms : INT64_MAX;
}

void loop_timers_fire(struct loop *l)
{
    int64_t now = l->now_ms;
    while (l->timers.len && l->timers.at[0]->at_ms <= now) {
        struct loop_timer *t = l->timers.at[0];
        loop_timer_stop(l, t);
        t->fire(t); /* may free t */
    }
}

void loop_timers_free(struct loop *l)
{
    for (size_t i = 0; i < l->timers.len; i++)
        l->timers.at[i]->slot = 0;
    free(l->timers.at);
}
