/* The loop of cube-proxy's workers: h2o's event loop and sockets, used for readiness alone
 * (H2O_SOCKET_FLAG_DONT_READ): reading and writing are bounded and done by lib/dp/io.c. h2o's loop is
 * level-triggered, so a stream whose owner does not read is taken out of the poll set until he does; a look
 * at the socket (MSG_PEEK) tells him before whether the peer has left. */
#include "lib/dp/loop_impl.h"

#include <errno.h>
#include <h2o.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>

struct dp_loop {
    struct dp_core core;
    h2o_loop_t *h2o;
    bool stop;
    struct dp_watch wakeup;
};

static struct dp_loop *loop_of(h2o_socket_t *sock)
{
    return ((struct dp_watch *)sock->data)->loop;
}

enum look { LOOK_NOTHING, LOOK_BYTES, LOOK_END };
static enum look socket_look(struct dp_watch *w)
{
    char byte;
    ssize_t n = recv(w->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 ? LOOK_BYTES : n < 0 && errno == EAGAIN ? LOOK_NOTHING : LOOK_END;
}

static void on_readable(h2o_socket_t *sock, const char *err)
{
    struct dp_watch *w = sock->data;
    core_clock(&loop_of(sock)->core);
    if (!(w->events & EPOLLET)) {
        w->ready(w, EPOLLIN);
        return;
    }
    w->drained = false;
    w->ready(w, EPOLLIN);
    w = sock->data; /* the stream may have moved to another owner */
    if (w == NULL || w->fd < 0 || w->drained)
        return;
    enum look look = socket_look(w);
    if (look == LOOK_NOTHING)
        return; /* it was read to the last byte, only nobody has noticed */
    if (look == LOOK_END && !w->left) {
        w->left = true;
        w->ready(w, EPOLLIN | EPOLLRDHUP);
        w = sock->data;
        if (w == NULL || w->fd < 0)
            return;
    }
    h2o_socket_read_stop(sock);
    w->paused = true;
}

static void on_writable(h2o_socket_t *sock, const char *err)
{
    struct dp_watch *w = sock->data;
    core_clock(&loop_of(sock)->core);
    w->ready(w, EPOLLOUT);
}

int dp_watch_add(struct dp_loop *l, struct dp_watch *w, uint32_t events)
{
    h2o_socket_t *sock = h2o_evloop_socket_create(l->h2o, w->fd, H2O_SOCKET_FLAG_DONT_READ);
    if (sock == NULL)
        return -1;
    sock->data = w;
    w->loop = l;
    w->handle = sock;
    w->events = events;
    w->paused = w->left = false;
    h2o_socket_read_start(sock, on_readable);
    return 0;
}

void dp_watch_moved(struct dp_loop *l, struct dp_watch *w)
{
    ((h2o_socket_t *)w->handle)->data = w;
}

void dp_watch_out(struct dp_loop *l, struct dp_watch *w, bool on)
{
    if (on && !h2o_socket_is_writing(w->handle))
        h2o_socket_notify_write(w->handle, on_writable);
}

void dp_watch_drained(struct dp_loop *l, struct dp_watch *w)
{
    w->drained = true;
    if (w->paused) {
        w->paused = false;
        h2o_socket_read_start(w->handle, on_readable);
    }
}

void dp_watch_pause(struct dp_loop *l, struct dp_watch *w, bool on)
{
    if (on)
        h2o_socket_read_stop(w->handle);
    else
        h2o_socket_read_start(w->handle, on_readable);
}

void dp_watch_close(struct dp_loop *l, struct dp_watch *w)
{
    h2o_socket_t *sock = w->handle;
    if (w->fd < 0)
        return;
    w->fd = -1;
    w->handle = NULL;
    if (sock) {
        sock->data = NULL;
        h2o_socket_close(sock);
    }
}

static void on_wakeup(struct dp_watch *w, uint32_t events)
{
    core_inbox(&((struct dp_loop *)((char *)w - offsetof(struct dp_loop, wakeup)))->core);
}

struct dp_loop *dp_loop_new(void)
{
    struct dp_loop *l = calloc(1, sizeof *l);
    if (l == NULL || core_init(&l->core) != 0 || (l->h2o = h2o_evloop_create()) == NULL)
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
    core_settle(&l->core);
    while (!l->stop) {
        int wait = core_wait_ms(&l->core);
        h2o_evloop_run(l->h2o, wait < 0 ? INT32_MAX : wait);
        core_clock(&l->core);
        core_timers(&l->core);
        core_settle(&l->core);
    }
    l->stop = false;
}
