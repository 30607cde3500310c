/* The host's side of vsock connections: Unix sockets, their half-closes and deadlines. Invariant: a
 * connection is in `conns` at the slot that its host port names, from the accept until it is freed, and its
 * socket is watched edge-triggered: `readable` stays true until a read says EAGAIN. */
#include "node/vmm/vsock.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define CONNECT_MAX_US 5000000 /* no answer of the guest, or no port from the relay */
#define CTL_RETRY_US 5000      /* cube-init is not listening yet */
#define CTL_GIVE_UP_US 60000000
#define TICK_US 5000

static void arm_timer(struct vsock *v, bool on)
{
    struct itimerspec t = {{0, on ? TICK_US * 1000 : 0}, {0, on ? TICK_US * 1000 : 0}};

    if (v->timer_armed != on)
        timerfd_settime(v->timer.fd, 0, &t, NULL);
    v->timer_armed = on;
}

void vsock_conn_ready(struct vsock_conn *c)
{
    if (c->queued)
        return;
    c->queued = true;
    c->next_ready = NULL;
    if (c->v->ready_tail)
        c->v->ready_tail->next_ready = c;
    else
        c->v->ready_head = c;
    c->v->ready_tail = c;
}

static void ready_remove(struct vsock_conn *c)
{
    struct vsock *v = c->v;
    struct vsock_conn *before = NULL;

    for (struct vsock_conn *x = v->ready_head; x; before = x, x = x->next_ready) {
        if (x != c)
            continue;
        if (before)
            before->next_ready = c->next_ready;
        else
            v->ready_head = c->next_ready;
        if (v->ready_tail == c)
            v->ready_tail = before;
        break;
    }
    c->queued = false;
}

static void socket_close(struct vsock_conn *c)
{
    if (c->io.fd < 0)
        return;
    worker_unwatch(c->v->worker, &c->io);
    close(c->io.fd);
    c->io.fd = -1;
}

void vsock_conn_free(struct vsock_conn *c)
{
    struct vsock *v = c->v;

    if (c->queued)
        ready_remove(c);
    socket_close(c);
    v->conns[c->host_port % VSOCK_CONNS_MAX] = NULL;
    v->nconns--;
    free(c->buf);
    free(c);
    if (!v->listening && virtio_running(&v->dev))
        vsock_listen(v, true);
}

void vsock_reset_say(struct vsock *v, uint32_t host_port, uint32_t guest_port)
{
    if (v->nresets < sizeof v->resets / sizeof v->resets[0])
        v->resets[v->nresets++] = (struct vsock_ports){host_port, guest_port};
}

void vsock_conn_reset(struct vsock_conn *c)
{
    vsock_reset_say(c->v, c->host_port, c->guest_port);
    vsock_conn_free(c);
}

static void status_send(struct vsock_conn *c, uint8_t status)
{
    /* The first byte on a fresh socket: it cannot block. */
    if (c->kind == VSOCK_IN && c->io.fd >= 0)
        (void)!send(c->io.fd, &status, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The answer came, or will not be waited for any more. */
static void late_end(struct vsock_conn *c, const char *how)
{
    if (c->late)
        log_warn("late: guest port %u %s after %lld ms", c->guest_port, how,
                 (long long)(clock_mono_us() - c->asked_us) / 1000);
    c->late = false;
}

/* Time in which the device thread stood still (the guest was frozen) does not count. */
static void late_check(struct vsock_conn *c, int64_t now)
{
    struct vsock *v = c->v;
    int64_t from = c->asked_us > v->worker->resumed_us ? c->asked_us : v->worker->resumed_us;
    uint64_t one = 1;

    if (c->late || now - from < VSOCK_LATE_US)
        return;
    c->late = true;
    if (now < v->late_next_us)
        return;
    v->late_next_us = now + VSOCK_LATE_PAUSE_US;
    v->late_port = c->guest_port;
    (void)!write(v->late_fd, &one, sizeof one);
}

static void connect_start(struct vsock_conn *c, uint32_t guest_port)
{
    c->asked_us = clock_mono_us();
    c->guest_port = guest_port;
    c->state = VSOCK_CONNECTING;
    c->say |= VSOCK_SAY_REQUEST;
    vsock_conn_ready(c);
}

void vsock_conn_opened(struct vsock_conn *c)
{
    late_end(c, "answered");
    c->state = VSOCK_OPEN;
    c->retry_at_us = 0;
    if (c->guest_port == VSOCK_PORT_ENVD)
        status_send(c, VSOCK_STATUS_OK);
    vsock_conn_ready(c); /* the client may have sent already */
}

void vsock_conn_refused(struct vsock_conn *c)
{
    late_end(c, "refused");
    if (c->state == VSOCK_CONNECTING && c->kind == VSOCK_CTL && !c->host_gone &&
        clock_mono_us() - c->since_us < CTL_GIVE_UP_US) {
        c->retry_at_us = clock_mono_us() + CTL_RETRY_US;
        arm_timer(c->v, true);
        return;
    }
    if (c->state == VSOCK_CONNECTING)
        status_send(c, VSOCK_STATUS_NOT_READY);
    vsock_conn_free(c);
}

/* The two bytes of port, which may come one by one. Returns false when the connection is freed. */
static bool port_read(struct vsock_conn *c)
{
    while (c->port_len < 2) {
        ssize_t n = recv(c->io.fd, c->port_bytes + c->port_len, 2u - c->port_len, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            c->readable = false;
            return true;
        }
        if (n <= 0) {
            vsock_conn_free(c);
            return false;
        }
        c->port_len += (uint8_t)n;
    }
    uint16_t port = (uint16_t)(c->port_bytes[0] << 8 | c->port_bytes[1]);
    if (port == VSOCK_PORT_ENVD) {
        connect_start(c, VSOCK_PORT_ENVD);
        return true;
    }
    memcpy(c->prefix, c->port_bytes, 2);
    c->prefix_len = 2;
    connect_start(c, VSOCK_PORT_GATEWAY);
    return true;
}

/* Everything of the guest's that was kept is out: pass on its half-close, or end. Returns false when `c` is
 * freed. */
static bool after_flush(struct vsock_conn *c)
{
    if (c->buf_len)
        return true;
    if (c->guest_wont_send && c->guest_wont_receive) {
        vsock_conn_reset(c);
        return false;
    }
    if (c->guest_wont_send && !c->wr_closed && c->io.fd >= 0) {
        c->wr_closed = true;
        shutdown(c->io.fd, SHUT_WR);
    }
    return true;
}

static void forwarded(struct vsock_conn *c, uint32_t n)
{
    c->fwd_cnt += n;
    c->v->from_guest_bytes += n;
    if (c->fwd_cnt - c->fwd_told >= VSOCK_CREDIT_STEP) {
        c->say |= VSOCK_SAY_CREDIT;
        vsock_conn_ready(c);
    }
}

/* Writes kept bytes; false when the socket is broken (the caller resets). */
static bool buf_flush(struct vsock_conn *c)
{
    while (c->buf_len) {
        uint32_t part = VSOCK_BUF_BYTES - c->buf_at < c->buf_len ? VSOCK_BUF_BYTES - c->buf_at : c->buf_len;
        ssize_t n = send(c->io.fd, c->buf + c->buf_at, part, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN;
        c->buf_at = (c->buf_at + (uint32_t)n) % VSOCK_BUF_BYTES;
        c->buf_len -= (uint32_t)n;
        forwarded(c, (uint32_t)n);
    }
    free(c->buf);
    c->buf = NULL;
    return true;
}

static bool buf_keep(struct vsock_conn *c, const struct iovec *iov, unsigned n, size_t off, uint32_t len)
{
    if (!c->buf) {
        c->buf = malloc(VSOCK_BUF_BYTES);
        c->buf_at = 0;
        if (!c->buf)
            return false;
    }
    uint32_t end = (c->buf_at + c->buf_len) % VSOCK_BUF_BYTES;
    uint32_t part = VSOCK_BUF_BYTES - end < len ? VSOCK_BUF_BYTES - end : len;
    iov_read(iov, n, off, c->buf + end, part);
    iov_read(iov, n, off + part, c->buf, len - part);
    c->buf_len += len;
    return true;
}

bool vsock_conn_receive(struct vsock_conn *c, const struct iovec *iov, unsigned n, uint32_t len)
{
    uint32_t sent = 0;

    if (c->state == VSOCK_ENDING) { /* nobody reads any more; the guest will learn from SHUTDOWN */
        c->rx_cnt += len;
        forwarded(c, len);
        return true;
    }
    if (c->state != VSOCK_OPEN || c->guest_wont_send || c->rx_cnt - c->fwd_cnt + len > VSOCK_BUF_BYTES)
        return false;
    c->rx_cnt += len;
    if (!c->buf_len) {
        struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
        ssize_t r;

        do
            r = sendmsg(c->io.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (r < 0 && errno == EINTR);
        if (r < 0 && errno != EAGAIN)
            return false;
        sent = r > 0 ? (uint32_t)r : 0;
        forwarded(c, sent);
    }
    return sent == len || buf_keep(c, iov, n, sent, len - sent);
}

void vsock_conn_shutdown(struct vsock_conn *c, uint32_t flags)
{
    if (flags & VIRTIO_VSOCK_SHUTDOWN_SEND)
        c->guest_wont_send = true;
    if (flags & VIRTIO_VSOCK_SHUTDOWN_RCV) {
        c->guest_wont_receive = true;
        c->host_eof = true;
    }
    if (c->state == VSOCK_CONNECTING ||
        (c->state == VSOCK_ENDING && c->guest_wont_send && c->guest_wont_receive)) {
        vsock_conn_reset(c);
        return;
    }
    after_flush(c);
}

/* The process at the other end closed its socket altogether. */
static void host_left(struct vsock_conn *c)
{
    c->host_gone = true;
    if (c->readable && !c->host_eof && c->state == VSOCK_OPEN)
        return; /* bytes of it may still be waiting for the guest */
    if (c->state == VSOCK_OPEN) {
        c->host_eof = true;
        c->state = VSOCK_ENDING;
        c->buf_len = 0;
        socket_close(c);
        c->say |= VSOCK_SAY_SHUTDOWN;
        vsock_conn_ready(c);
        return;
    }
    if (c->state == VSOCK_CONNECTING)
        vsock_conn_reset(c);
    else if (c->state == VSOCK_PORT_WANTED)
        vsock_conn_free(c);
}

static bool socket_writable(struct vsock_conn *c)
{
    if (!c->buf_len)
        return true;
    if (buf_flush(c))
        return after_flush(c);
    vsock_conn_reset(c);
    return false;
}

static void socket_event(struct vsock_conn *c, uint32_t events)
{
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        c->readable = true;
    if ((events & EPOLLOUT) && !socket_writable(c))
        return;
    if (c->state == VSOCK_PORT_WANTED && c->readable && !port_read(c))
        return;
    if (c->state == VSOCK_OPEN && c->readable && !c->host_eof)
        vsock_conn_ready(c);
    if (events & EPOLLHUP)
        host_left(c);
}

static void on_socket(struct watch *x, uint32_t events)
{
    struct vsock_conn *c = (struct vsock_conn *)((char *)x - offsetof(struct vsock_conn, io));
    struct vsock *v = c->v;

    pthread_mutex_lock(&v->dev.lock);
    if (!v->drop_wanted) {
        socket_event(c, events);
        vsock_pump(v);
    }
    pthread_mutex_unlock(&v->dev.lock);
}

static struct vsock_conn *conn_new(struct vsock *v, int fd, enum vsock_kind kind)
{
    unsigned slot = 0;

    while (slot < VSOCK_CONNS_MAX && v->conns[slot])
        slot++;
    struct vsock_conn *c = slot < VSOCK_CONNS_MAX ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    v->port_epoch = (v->port_epoch + 1) & 0x3fffff; /* 31 bits of port: never −1 */
    *c = (struct vsock_conn){.io = {fd, on_socket},
                             .v = v,
                             .kind = kind,
                             .since_us = clock_mono_us(),
                             .host_port = (v->port_epoch | 1u << 21) * VSOCK_CONNS_MAX + slot};
    v->conns[slot] = c;
    v->nconns++;
    if (worker_watch(v->worker, &c->io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) < 0) {
        c->io.fd = -1;
        vsock_conn_free(c);
        return NULL;
    }
    return c;
}

void vsock_accept(struct vsock *v, struct watch *x, enum vsock_kind kind)
{
    if (v->nconns >= VSOCK_CONNS_MAX) { /* the rest waits in the listener until one ends */
        vsock_listen(v, false);
        return;
    }
    int fd = accept4(x->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct vsock_conn *c = conn_new(v, fd, kind);
    if (!c) {
        close(fd);
        return;
    }
    c->readable = true;
    arm_timer(v, true);
    if (kind == VSOCK_CTL)
        connect_start(c, VSOCK_PORT_CTL);
    else
        port_read(c);
}

void vsock_tick(struct vsock *v)
{
    int64_t now = clock_mono_us();
    unsigned waiting = 0;

    for (unsigned i = 0; i < VSOCK_CONNS_MAX && v->nconns; i++) {
        struct vsock_conn *c = v->conns[i];

        if (!c || (c->state != VSOCK_CONNECTING && c->state != VSOCK_PORT_WANTED))
            continue;
        waiting++;
        if (c->state == VSOCK_CONNECTING && !c->retry_at_us)
            late_check(c, now);
        if (c->kind == VSOCK_IN && now - c->since_us > CONNECT_MAX_US) {
            status_send(c, VSOCK_STATUS_NOT_READY);
            late_end(c, "was given up");
            if (c->state == VSOCK_CONNECTING)
                vsock_conn_reset(c);
            else
                vsock_conn_free(c);
        } else if (c->retry_at_us && now >= c->retry_at_us) {
            c->retry_at_us = 0;
            connect_start(c, VSOCK_PORT_CTL);
        }
    }
    arm_timer(v, waiting > 0);
}

void vsock_listen(struct vsock *v, bool on)
{
    if (v->listening == on || v->ctl.fd < 0)
        return;
    v->listening = on;
    if (on) {
        worker_watch(v->worker, &v->ctl, EPOLLIN);
        worker_watch(v->worker, &v->in, EPOLLIN);
    } else {
        worker_unwatch(v->worker, &v->ctl);
        worker_unwatch(v->worker, &v->in);
    }
}
