/* The event loop of a device thread. Invariant: while `parked` is true the thread touches neither devices nor
 * guest RAM. */
#include "node/vmm/worker.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define TURN_EVENTS 32
#define STACK_BYTES (128u << 10) /* the deepest path holds a 4 KiB chain and a 4 KiB slice of it */

static void on_wake(struct watch *x, uint32_t events)
{
    uint64_t n;

    if (read(x->fd, &n, sizeof n) < 0)
        return;
}

int worker_init(struct worker *w, struct err *e)
{
    *w = (struct worker){.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                         .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (w->epoll_fd < 0 || w->wake_fd < 0)
        return err_sys(e, ERR_INTERNAL, "set up a device thread");
    pthread_mutex_init(&w->gate, NULL);
    pthread_cond_init(&w->gate_changed, NULL);
    w->wake = (struct watch){w->wake_fd, on_wake};
    return worker_watch(w, &w->wake, EPOLLIN) < 0 ? err_sys(e, ERR_INTERNAL, "watch the wake-up descriptor")
                                                  : 0;
}

int worker_watch(struct worker *w, struct watch *x, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = x};

    return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, x->fd, &ev);
}

void worker_unwatch(struct worker *w, struct watch *x)
{
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
}

void worker_turn(struct worker *w, int timeout_ms)
{
    /* One event per wait: a handler may close a descriptor (and free its watch) that a longer list would
     * still name. */
    struct epoll_event ev;
    unsigned left = TURN_EVENTS;

    while (left-- && epoll_wait(w->epoll_fd, &ev, 1, timeout_ms) == 1) {
        struct watch *x = ev.data.ptr;
        x->ready(x, ev.events);
        timeout_ms = 0;
    }
}

static void stand_still(struct worker *w)
{
    pthread_mutex_lock(&w->gate);
    w->parked = true;
    pthread_cond_broadcast(&w->gate_changed);
    while (atomic_load(&w->stop_wanted))
        pthread_cond_wait(&w->gate_changed, &w->gate);
    w->parked = false;
    w->resumed_us = clock_mono_us();
    pthread_mutex_unlock(&w->gate);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    prctl(PR_SET_NAME, w->name);
    if (w->on_start)
        w->on_start();
    for (;;) {
        if (atomic_load(&w->stop_wanted))
            stand_still(w);
        worker_turn(w, -1);
    }
    return NULL;
}

int thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg, struct err *e)
{
    pthread_attr_t a;

    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, STACK_BYTES);
    int rc = pthread_create(t, &a, fn, arg);
    pthread_attr_destroy(&a);
    if (rc) {
        errno = rc;
        return err_sys(e, ERR_CAPACITY, "start thread %s", name);
    }
    return 0;
}

int worker_start(struct worker *w, const char *name, void (*on_start)(void), struct err *e)
{
    w->on_start = on_start;
    w->name = name;
    if (thread_start(&w->thread, name, worker_main, w, e) < 0)
        return -1;
    w->started = true;
    return 0;
}

void worker_pause(struct worker *w)
{
    uint64_t one = 1;

    if (!w->started)
        return;
    atomic_store(&w->stop_wanted, true);
    ssize_t n = write(w->wake_fd, &one, sizeof one);
    (void)n;
    pthread_mutex_lock(&w->gate);
    while (!w->parked)
        pthread_cond_wait(&w->gate_changed, &w->gate);
    pthread_mutex_unlock(&w->gate);
}

void worker_resume(struct worker *w)
{
    if (!w->started)
        return;
    pthread_mutex_lock(&w->gate);
    atomic_store(&w->stop_wanted, false);
    pthread_cond_broadcast(&w->gate_changed);
    pthread_mutex_unlock(&w->gate);
}
