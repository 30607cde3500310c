/* Owns one epoll instance, a timer wheel, the deferred calls of the turn and an inbox that other threads push to. Invariant: within a
 * turn first events, then messages, timers, deferred calls and last the burials run, so that no callback sees freed memory. */
#include "lib/dp/loop.h"

#include "lib/base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { TICK_SHIFT = 3, SLOTS = 2048, EVENTS = 256 };

struct dp_loop {
    int ep;
    bool stop;
    int64_t now_us;
    int64_t tick; /* the wheel was served up to and with this tick */
    struct dp_timer *slot[SLOTS];
    uint64_t used[SLOTS / 64];
    struct dp_task *deferred, **deferred_end;
    struct dp_task *buried, **buried_end;
    struct dp_watch wakeup;
    _Atomic(struct dp_msg *) inbox; /* newest first */
};

static void clock_read(struct dp_loop *l)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    l->now_us = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

int64_t dp_now_us(const struct dp_loop *l)
{
    return l->now_us;
}

int64_t dp_now_ms(const struct dp_loop *l)
{
    return l->now_us / 1000;
}

/* ---- descriptors ---- */

int dp_watch_add(struct dp_loop *l, struct dp_watch *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
    return epoll_ctl(l->ep, EPOLL_CTL_ADD, w->fd, &ev);
}

void dp_watch_change(struct dp_loop *l, struct dp_watch *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
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

/* ---- timers ---- */

static void slot_mark(struct dp_loop *l, size_t s)
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

void dp_timer_start(struct dp_loop *l, struct dp_timer *t, int64_t delay_ms)
{
    dp_timer_stop(t);
    t->at_ms = dp_now_ms(l) + (delay_ms > 0 ? delay_ms : 0);
    int64_t tick = (t->at_ms >> TICK_SHIFT) + 1; /* never early */
    if (tick <= l->tick)
        tick = l->tick + 1;
    size_t s = (size_t)tick % SLOTS;
    t->next = l->slot[s];
    t->link = &l->slot[s];
    if (t->next)
        t->next->link = &t->next;
    l->slot[s] = t;
    slot_mark(l, s);
}

static void slot_serve(struct dp_loop *l, size_t s, int64_t now_ms)
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

static void timers_serve(struct dp_loop *l)
{
    int64_t now_ms = dp_now_ms(l), now_tick = now_ms >> TICK_SHIFT;
    if (now_tick - l->tick > SLOTS)
        l->tick = now_tick - SLOTS;
    while (l->tick < now_tick) {
        l->tick++;
        size_t s = (size_t)l->tick % SLOTS;
        if (l->slot[s])
            slot_serve(l, s, now_ms);
        else
            l->used[s / 64] &= ~(1ULL << (s % 64));
    }
}

/* Milliseconds until the next slot that holds a timer; -1 when there is none. */
static int timers_wait_ms(struct dp_loop *l)
{
    for (int64_t i = 1; i <= SLOTS;) {
        size_t s = (size_t)(l->tick + i) % SLOTS;
        uint64_t word = l->used[s / 64] >> (s % 64);
        if (word == 0) {
            i += 64 - (int64_t)(s % 64);
            continue;
        }
        i += __builtin_ctzll(word);
        if (i > SLOTS)
            break;
        int64_t at = (l->tick + i) << TICK_SHIFT, now = dp_now_ms(l);
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
        task_push(&l->deferred_end, t);
}

void dp_bury(struct dp_loop *l, struct dp_task *t)
{
    if (!t->queued)
        task_push(&l->buried_end, t);
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

void dp_post(struct dp_loop *l, struct dp_msg *m)
{
    struct dp_msg *old = atomic_load_explicit(&l->inbox, memory_order_relaxed);
    do {
        m->next = old;
    } while (!atomic_compare_exchange_weak_explicit(&l->inbox, &old, m, memory_order_release, memory_order_relaxed));
    if (old == NULL) {
        uint64_t one = 1;
        ssize_t n = write(l->wakeup.fd, &one, sizeof one);
        (void)n; /* the counter cannot overflow: it is written once per emptied inbox */
    }
}

static void on_wakeup(struct dp_watch *w, uint32_t events)
{
    struct dp_loop *l = (struct dp_loop *)((char *)w - offsetof(struct dp_loop, wakeup));
    uint64_t count;
    ssize_t n = read(w->fd, &count, sizeof count);
    (void)n;
    struct dp_msg *m = atomic_exchange_explicit(&l->inbox, NULL, memory_order_acquire), *order = NULL;
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

/* ---- the loop ---- */

struct dp_loop *dp_loop_new(void)
{
    struct dp_loop *l = calloc(1, sizeof *l);
    if (l == NULL)
        return NULL;
    l->ep = epoll_create1(EPOLL_CLOEXEC);
    l->wakeup = (struct dp_watch){.ready = on_wakeup, .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    l->deferred_end = &l->deferred;
    l->buried_end = &l->buried;
    clock_read(l);
    l->tick = dp_now_ms(l) >> TICK_SHIFT;
    if (l->ep < 0 || l->wakeup.fd < 0 || dp_watch_add(l, &l->wakeup, DP_WATCH_IN) != 0) {
        dp_loop_free(l);
        return NULL;
    }
    return l;
}

void dp_loop_free(struct dp_loop *l)
{
    if (l == NULL)
        return;
    if (l->wakeup.fd >= 0)
        close(l->wakeup.fd);
    if (l->ep >= 0)
        close(l->ep);
    free(l);
}

void dp_loop_stop(struct dp_loop *l)
{
    l->stop = true;
}

/* What a deferred call defers again waits for the next turn, so that one busy stream cannot keep the others waiting. */
static void tasks_settle(struct dp_loop *l)
{
    if (l->deferred)
        tasks_run(&l->deferred, &l->deferred_end);
    if (l->buried)
        tasks_run(&l->buried, &l->buried_end);
}

void dp_loop_run(struct dp_loop *l)
{
    struct epoll_event events[EVENTS];
    tasks_settle(l);
    while (!l->stop) {
        int n = epoll_wait(l->ep, events, EVENTS, l->deferred ? 0 : timers_wait_ms(l));
        clock_read(l);
        for (int i = 0; i < n; i++) {
            struct dp_watch *w = events[i].data.ptr;
            if (w->fd >= 0)
                w->ready(w, events[i].events);
        }
        timers_serve(l);
        tasks_settle(l);
    }
}

/* ---- listening ---- */

static int address_parse(const char *address, struct sockaddr_storage *out, socklen_t *len, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        un->sun_family = AF_UNIX;
        if (strlen(address + 5) >= sizeof un->sun_path)
            return err_set(e, ERR_INVALID, "address %s: the path is too long", address);
        strcpy(un->sun_path, address + 5);
        *len = sizeof *un;
        return 0;
    }
    char host[64];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host)
        return err_set(e, ERR_INVALID, "address %s: expected HOST:PORT", address);
    size_t n = (size_t)(colon - address);
    const char *p = address;
    if (n >= 2 && p[0] == '[' && p[n - 1] == ']') {
        p++;
        n -= 2;
    }
    memcpy(host, p, n);
    host[n] = 0;
    char *end;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end || colon[1] == 0 || port > 65535)
        return err_set(e, ERR_INVALID, "address %s: bad port", address);
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *len = sizeof *v4;
        return 0;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *len = sizeof *v6;
        return 0;
    }
    return err_set(e, ERR_INVALID, "address %s: the host must be a number", address);
}

int dp_listen(const char *address, bool reuseport, struct err *e)
{
    struct sockaddr_storage sa;
    socklen_t len;
    if (address_parse(address, &sa, &len, e) != 0)
        return -1;
    _cleanup_close_ int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "opening a socket for %s", address);
    int one = 1;
    if (sa.ss_family == AF_UNIX) {
        unlink(((struct sockaddr_un *)&sa)->sun_path);
    } else {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* inherited by accepted sockets */
        if (reuseport && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0)
            return err_sys(e, ERR_INTERNAL, "sharing %s between threads", address);
    }
    if (bind(fd, (struct sockaddr *)&sa, len) != 0)
        return err_sys(e, ERR_UNAVAILABLE, "binding %s", address);
    if (listen(fd, 4096) != 0)
        return err_sys(e, ERR_UNAVAILABLE, "listening on %s", address);
    return fd_steal(&fd);
}
