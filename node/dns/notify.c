/* Owns the conversation with cube-node. Invariant: an answer for a watched sandbox is given after the node
 * has opened its addresses, or, when the node does not answer, after OPEN_WAIT_MS: then the addresses stay
 * closed, which fails on the safe side. */
#include "node/dns/dns.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define OPEN_WAIT_MS 100

struct pending {
    struct pending *next;
    struct loop_timer timer;
    uint64_t seq;
    void (*done)(void *data);
    void *data;
};

static struct {
    struct loop *loop;
    int listener, peer;
    struct loop_watch *watch;
    uint64_t seq;
    struct pending *pending;
    uint8_t watched[DNS_SLOTS / 8];
} n = {.peer = -1};

static void finish(struct pending *p)
{
    for (struct pending **at = &n.pending; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    loop_timer_stop(n.loop, &p->timer);
    p->done(p->data);
    free(p);
}

static void on_wait_over(struct loop_timer *t)
{
    finish((struct pending *)((char *)t - offsetof(struct pending, timer)));
}

static void peer_end(void)
{
    loop_watch_free(n.watch);
    close(n.peer);
    n.peer = -1;
    memset(n.watched, 0, sizeof n.watched); /* the node says again what it wants */
}

/* One datagram with the descriptors that came with it; -1 where there are none. */
static ssize_t receive(struct dns_report *r, int fds[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec iov = {r, sizeof *r};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t len = recvmsg(n.peer, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = len >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    fds[0] = fds[1] = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    return len;
}

static void take_sockets(int fds[2])
{
    struct err e = {0};
    if (dns_serve_sockets(fds[0], fds[1], &e) < 0)
        log_fail(&e, "taking over the sockets");
    else
        log_info("serving on the sockets that cube-node passed");
}

static void on_peer(void *data)
{
    struct dns_report r;
    int fds[2];
    ssize_t len = receive(&r, fds);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool sockets = len == (ssize_t)sizeof r && r.op == DNS_SOCKETS && fds[0] >= 0 && fds[1] >= 0;
    for (int i = 0; i < 2 && !sockets; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (len != (ssize_t)sizeof r || r.version != DNS_REPORT_VERSION || r.slot >= DNS_SLOTS) {
        peer_end();
        return;
    }
    if (sockets) {
        take_sockets(fds);
        return;
    }
    uint8_t bit = (uint8_t)(1u << (r.slot % 8));
    if (r.op == DNS_WATCH)
        n.watched[r.slot / 8] |= bit;
    else if (r.op == DNS_UNWATCH)
        n.watched[r.slot / 8] &= (uint8_t)~bit;
    for (struct pending *p = n.pending; p && r.op == DNS_OPENED; p = p->next)
        if (p->seq == r.seq) {
            finish(p);
            return;
        }
}

static void on_accept(void *data)
{
    int fd = accept4(n.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (n.peer >= 0)
        peer_end();
    n.peer = fd;
    n.watch = loop_watch_read(n.loop, fd, on_peer, NULL);
}

bool dns_notify_watched(uint32_t slot)
{
    return n.watched[slot / 8] & (1u << (slot % 8));
}

void dns_notify(const struct dns_report *r, void (*done)(void *data), void *data)
{
    struct dns_report out = *r;
    struct pending *p = calloc(1, sizeof *p);
    out.version = DNS_REPORT_VERSION;
    out.seq = ++n.seq;
    if (!p || n.peer < 0 || send(n.peer, &out, sizeof out, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        log_warn("cube-node cannot be told of an answer for slot %u", r->slot);
        free(p);
        done(data);
        return;
    }
    *p = (struct pending){
        .next = n.pending, .seq = out.seq, .done = done, .data = data, .timer.fire = on_wait_over};
    n.pending = p;
    loop_timer_start(n.loop, &p->timer, OPEN_WAIT_MS);
}

int dns_notify_open(struct loop *l, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    n.loop = l;
    snprintf(a.sun_path, sizeof a.sun_path, "%.80s/dns/report.sock", dns_config.run_dir);
    unlink(a.sun_path);
    n.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mode_t old = umask(0117); /* 0660: cube-node is in this user's group */
    int rc = n.listener < 0 ? -1 : bind(n.listener, (struct sockaddr *)&a, sizeof a);
    umask(old);
    if (rc < 0 || listen(n.listener, 4) < 0 || !loop_watch_read(l, n.listener, on_accept, NULL))
        return err_sys(e, ERR_INTERNAL, "listening on %s", a.sun_path);
    return 0;
}
