/* The event loop. Invariant: an object whose source fired in this batch stays allocated until the batch is
 * over, so a callback may close any other connection without leaving a dangling pointer in epoll's array. */
#include "guest/common/loop.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BATCH 128

static int epoll_fd = -1;
static bool stopping;
static int64_t now_ms;

static struct timer **heap;
static uint32_t heap_len, heap_cap;

static void **grave;
static uint32_t grave_len, grave_cap;

static void now_update(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    now_ms = (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int loop_open(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    now_update();
    return epoll_fd < 0 ? -1 : 0;
}

void loop_stop(void)
{
    stopping = true;
}

int64_t loop_now_ms(void)
{
    return now_ms;
}

int ev_watch(struct ev *ev, uint32_t events)
{
    if (ev->fd < 0 || ev->events == events)
        return 0;
    struct epoll_event e = {.events = events, .data.ptr = ev};
    int op = !events ? EPOLL_CTL_DEL : ev->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(epoll_fd, op, ev->fd, &e) < 0)
        return -1;
    ev->events = events;
    return 0;
}

void ev_close(struct ev *ev)
{
    if (ev->fd < 0)
        return;
    ev_watch(ev, 0);
    close(ev->fd);
    ev->fd = -1;
    ev->events = 0;
}

void loop_free_later(void *p)
{
    if (grave_len == grave_cap) {
        uint32_t cap = grave_cap ? grave_cap * 2 : 64;
        void **n = realloc(grave, cap * sizeof(*n));
        if (!n)
            return; /* leaks one object rather than risking a use after free */
        grave = n;
        grave_cap = cap;
    }
    grave[grave_len++] = p;
}

static void heap_put(uint32_t i, struct timer *t)
{
    heap[i] = t;
    t->slot = i + 1;
}

static void heap_up(uint32_t i, struct timer *t)
{
    while (i && heap[(i - 1) / 2]->at_ms > t->at_ms) {
        heap_put(i, heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(i, t);
}

static void heap_down(uint32_t i, struct timer *t)
{
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= heap_len)
            break;
        if (c + 1 < heap_len && heap[c + 1]->at_ms < heap[c]->at_ms)
            c++;
        if (heap[c]->at_ms >= t->at_ms)
            break;
        heap_put(i, heap[c]);
        i = c;
    }
    heap_put(i, t);
}

void timer_clear(struct timer *t)
{
    if (!t->slot)
        return;
    uint32_t i = t->slot - 1;
    t->slot = 0;
    struct timer *last = heap[--heap_len];
    if (last == t)
        return;
    if (i && heap[(i - 1) / 2]->at_ms > last->at_ms)
        heap_up(i, last);
    else
        heap_down(i, last);
}

void timer_set(struct timer *t, int64_t after_ms)
{
    timer_clear(t);
    if (heap_len == heap_cap) {
        uint32_t cap = heap_cap ? heap_cap * 2 : 64;
        struct timer **n = realloc(heap, cap * sizeof(struct timer *));
        if (!n)
            abort(); /* without its timers the daemon would hang instead of failing */
        heap = n;
        heap_cap = cap;
    }
    t->at_ms = now_ms + (after_ms < 0 ? 0 : after_ms);
    heap_len++;
    heap_up(heap_len - 1, t);
}

static int wait_ms(void)
{
    if (!heap_len)
        return -1;
    int64_t d = heap[0]->at_ms - now_ms;
    return d <= 0 ? 0 : d > INT_MAX ? INT_MAX : (int)d;
}

void loop_run(void)
{
    struct epoll_event batch[BATCH];
    stopping = false;
    while (!stopping) {
        now_update();
        int n = epoll_wait(epoll_fd, batch, BATCH, wait_ms());
        if (n < 0 && errno != EINTR)
            abort();
        now_update();
        for (int i = 0; i < n; i++) {
            struct ev *ev = batch[i].data.ptr;
            if (ev->fd >= 0 && ev->events)
                ev->cb(ev->owner, batch[i].events);
        }
        while (heap_len && heap[0]->at_ms <= now_ms) {
            struct timer *t = heap[0];
            timer_clear(t);
            t->cb(t->owner);
        }
        for (uint32_t i = 0; i < grave_len; i++)
            free(grave[i]);
        grave_len = 0;
    }
}
