/* The loop of cube-relay: edge-triggered epoll, libc only, because a relay sees bytes of guests and should be
 * able to reach nothing else. A descriptor is registered once and hardly ever re-armed. */
#include "lib/dp/loop_impl.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

enum { EVENTS = 256 };

struct dp_loop {
    struct dp_core core;
    int ep;
    bool stop;
    struct dp_watch wakeup;
};

int dp_watch_add(struct dp_loop *l, struct dp_watch *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
    w->events = events;
    return epoll_ctl(l->ep, EPOLL_CTL_ADD, w->fd, &ev);
}

void dp_watch_moved(struct dp_loop *l, struct dp_watch *w)
{
    struct epoll_event ev = {.events = w->events, .data.ptr = w};
    epoll_ctl(l->ep, EPOLL_CTL_MOD, w->fd, &ev);
}

void dp_watch_out(struct dp_loop *l, struct dp_watch *w, bool on)
{
    if (w->events == DP_WATCH_ALL)
        return; /* told anyway, once per edge */
    struct epoll_event ev = {.events = w->events | (on ? EPOLLOUT : 0), .data.ptr = w};
    epoll_ctl(l->ep, EPOLL_CTL_MOD, w->fd, &ev);
}

void dp_watch_drained(struct dp_loop *l, struct dp_watch *w)
{
}

void dp_watch_pause(struct dp_loop *l, struct dp_watch *w, bool on)
{
    struct epoll_event ev = {.events = on ? 0 : w->events, .data.ptr = w};
    epoll_ctl(l->ep, EPOLL_CTL_MOD, w->fd, &ev);
}

void dp_watch_close(struct dp_loop *l, struct dp_watch *w)
{
    if (w->fd < 0)
        return;
    /* An explicit removal: a descriptor that was handed to another process would else keep reporting. */
    epoll_ctl(l->ep, EPOLL_CTL_DEL, w->fd, NULL);
    close(w->fd);
    w->fd = -1;
}

static void on_wakeup(struct dp_watch *w, uint32_t events)
{
    core_inbox(&((struct dp_loop *)((char *)w - offsetof(struct dp_loop, wakeup)))->core);
}

struct dp_loop *dp_loop_new(void)
{
    struct dp_loop *l = calloc(1, sizeof *l);
    if (l == NULL)
        return NULL;
    l->ep = epoll_create1(EPOLL_CLOEXEC);
    if (core_init(&l->core) != 0 || l->ep < 0)
        return NULL; /* at start only: the process ends */
    l->wakeup = (struct dp_watch){.ready = on_wakeup, .fd = l->core.wakeup};
    return dp_watch_add(l, &l->wakeup, DP_WATCH_LISTEN) == 0 ? l : NULL;
}

void dp_loop_stop(struct dp_loop *l)
{
    l->stop = true;
}

void dp_loop_run(struct dp_loop *l)
{
    struct epoll_event events[EVENTS];
    core_settle(&l->core);
    while (!l->stop) {
        int n = epoll_wait(l->ep, events, EVENTS, core_wait_ms(&l->core));
        core_clock(&l->core);
        for (int i = 0; i < n; i++) {
            struct dp_watch *w = events[i].data.ptr;
            if (w->fd >= 0)
                w->ready(w, events[i].events);
        }
        core_timers(&l->core);
        core_settle(&l->core);
    }
    l->stop = false;
}
