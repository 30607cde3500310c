/* Owns one turn of the loop: h2o's sockets first, then due timers, then deferred calls, then what these left
 * pending in h2o. Invariant: the thread sleeps in epoll only when no deferred call waits and no timer is due.
 */
#include "lib/net/loop_impl.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct loop_watch {
    h2o_socket_t *sock;
    void (*ready)(void *data);
    void *data;
};

struct loop_post_item {
    void (*run)(void *data);
    void *data;
    struct loop_post_item *next;
};

struct loop_signals {
    int fd;
    struct loop_watch *watch;
    sigset_t set;
    struct {
        void (*handler)(int signo, void *data);
        void *data;
    } by_number[NSIG];
};

static void on_inbox(void *data)
{
    struct loop *l = data;
    uint64_t n;
    if (read(l->inbox.event_fd, &n, sizeof n) < 0 && errno != EAGAIN)
        log_error("reading the loop's eventfd: %m");
    pthread_mutex_lock(&l->inbox.lock);
    struct loop_post_item *item = l->inbox.first;
    l->inbox.first = NULL;
    l->inbox.last = &l->inbox.first;
    pthread_mutex_unlock(&l->inbox.lock);
    while (item) {
        struct loop_post_item *next = item->next;
        item->run(item->data);
        free(item);
        item = next;
    }
}

struct loop *loop_new(void)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    signal(
        SIGPIPE,
        SIG_IGN); /* h2o writes with writev: a peer that left is an error of that write, not of the process */
    l->h2o = h2o_evloop_create();
    l->now_ms = clock_mono_us() / 1000;
    l->tasks_tail = &l->tasks;
    l->inbox.last = &l->inbox.first;
    pthread_mutex_init(&l->inbox.lock, NULL);
    l->inbox.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->inbox.event_fd >= 0)
        l->inbox.watch = loop_watch_read(l, l->inbox.event_fd, on_inbox, l);
    if (!l->inbox.watch) {
        loop_free(l);
        return NULL;
    }
    return l;
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    h2o_evloop_run(l->h2o,
                   0); /* lets h2o free the sockets that were closed last, while all else is still there */
    resolve_loop_ends(l);
    loop_signals_free(l);
    loop_watch_free(l->inbox.watch);
    if (l->inbox.event_fd >= 0)
        close(l->inbox.event_fd);
    while (l->inbox.first) {
        struct loop_post_item *item = l->inbox.first;
        l->inbox.first = item->next;
        free(item);
    }
    pthread_mutex_destroy(&l->inbox.lock);
    loop_timers_free(l);
    h2o_evloop_destroy(l->h2o);
    free(l);
}

h2o_loop_t *loop_h2o(struct loop *l)
{
    return l->h2o;
}

int64_t loop_now_ms(struct loop *l)
{
    return l->now_ms;
}

void loop_stop(struct loop *l)
{
    l->stopped = true;
}

void loop_defer(struct loop *l, struct loop_task *t)
{
    if (t->queued)
        return;
    t->queued = true;
    t->next = NULL;
    *l->tasks_tail = t;
    l->tasks_tail = &t->next;
}

void loop_defer_cancel(struct loop *l, struct loop_task *t)
{
    if (!t->queued)
        return;
    struct loop_task **at = &l->tasks;
    while (*at && *at != t)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = t->next;
    if (l->tasks_tail == &t->next)
        l->tasks_tail = at;
    t->queued = false;
}

/* Runs what was queued before this call; what a task queues itself waits for the next turn, so sockets are
 * not starved. */
static void run_tasks(struct loop *l)
{
    size_t n = 0;
    for (struct loop_task *t = l->tasks; t; t = t->next)
        n++;
    while (n-- > 0 && l->tasks) {
        struct loop_task *t = l->tasks;
        l->tasks = t->next;
        if (!l->tasks)
            l->tasks_tail = &l->tasks;
        t->queued = false;
        t->run(t); /* may free t */
    }
}

static int32_t wait_ms(struct loop *l)
{
    if (l->tasks)
        return 0;
    int64_t next = loop_timers_next_ms(l);
    if (next == INT64_MAX)
        return INT32_MAX;
    int64_t wait = next - clock_mono_us() / 1000;
    return wait < 0 ? 0 : wait > INT32_MAX ? INT32_MAX : (int32_t)wait;
}

void loop_run(struct loop *l)
{
    l->stopped = false;
    while (!l->stopped) {
        if (h2o_evloop_run(l->h2o, wait_ms(l)) != 0 && errno != EINTR) {
            log_error("waiting for events: %m");
            abort();
        }
        l->now_ms = clock_mono_us() / 1000;
        loop_timers_fire(l);
        run_tasks(l);
        h2o_timeout__do_post_callback(l->h2o); /* completions of writes that the two above started */
    }
}

static void on_watch(h2o_socket_t *sock, const char *err)
{
    struct loop_watch *w = sock->data;
    w->ready(w->data);
}

struct loop_watch *loop_watch_read(struct loop *l, int fd, void (*ready)(void *data), void *data)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return NULL;
    struct loop_watch *w = calloc(1, sizeof *w);
    if (!w) {
        close(copy);
        return NULL;
    }
    int flags = fcntl(
        fd, F_GETFL); /* h2o makes the shared file description non-blocking; the caller chose his mode */
    w->sock = h2o_evloop_socket_create(l->h2o, copy, H2O_SOCKET_FLAG_DONT_READ);
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags);
    w->sock->data = w;
    w->ready = ready;
    w->data = data;
    h2o_socket_read_start(w->sock, on_watch);
    return w;
}

void loop_watch_free(struct loop_watch *w)
{
    if (!w)
        return;
    h2o_socket_read_stop(w->sock);
    h2o_socket_close(w->sock);
    free(w);
}

static void on_signal(void *data)
{
    struct loop *l = data;
    struct signalfd_siginfo info;
    while (l->signals && read(l->signals->fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo < NSIG && l->signals->by_number[info.ssi_signo].handler)
            l->signals->by_number[info.ssi_signo].handler((int)info.ssi_signo,
                                                          l->signals->by_number[info.ssi_signo].data);
}

int loop_on_signal(struct loop *l, int signo, void (*handler)(int signo, void *data), void *data,
                   struct err *e)
{
    if (!l->signals) {
        l->signals = calloc(1, sizeof *l->signals);
        if (!l->signals)
            return err_set(e, ERR_INTERNAL, "watching signal %d: out of memory", signo);
        l->signals->fd = -1;
        sigemptyset(&l->signals->set);
    }
    struct loop_signals *s = l->signals;
    sigaddset(&s->set, signo);
    if (pthread_sigmask(SIG_BLOCK, &s->set, NULL) != 0)
        return err_sys(e, ERR_INTERNAL, "blocking signal %d", signo);
    int fd = signalfd(s->fd, &s->set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "watching signal %d", signo);
    s->fd = fd;
    s->by_number[signo].handler = handler;
    s->by_number[signo].data = data;
    if (!s->watch)
        s->watch = loop_watch_read(l, fd, on_signal, l);
    return s->watch ? 0 : err_set(e, ERR_INTERNAL, "watching signal %d: out of memory", signo);
}

void loop_signals_free(struct loop *l)
{
    struct loop_signals *s = l->signals;
    if (!s)
        return;
    l->signals = NULL;
    loop_watch_free(s->watch);
    if (s->fd >= 0)
        close(s->fd);
    pthread_sigmask(SIG_UNBLOCK, &s->set, NULL);
    free(s);
}

void loop_post(struct loop *target, void (*run)(void *data), void *data)
{
    struct loop_post_item *item = malloc(sizeof *item);
    if (!item)
        abort(); /* the sender waits for an effect that would never come */
    *item = (struct loop_post_item){.run = run, .data = data};
    pthread_mutex_lock(&target->inbox.lock);
    *target->inbox.last = item;
    target->inbox.last = &item->next;
    pthread_mutex_unlock(&target->inbox.lock);
    uint64_t one = 1;
    ssize_t r = write(target->inbox.event_fd, &one, sizeof one);
    (void)r; /* fails only when the counter is full, and then the loop is awake anyway */
}
