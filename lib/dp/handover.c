/* Owns the socket over which a successor takes the listeners. Invariant: the predecessor goes on accepting
 * until the successor has confirmed, so that there is always someone who accepts. */
#include "lib/dp/handover.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int unix_address(const char *path, struct sockaddr_un *un)
{
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof un->sun_path)
        return -1;
    strcpy(un->sun_path, path);
    return 0;
}

int dp_handover_take(const char *path, int fds[DP_HANDOVER_MAX], int *confirm)
{
    struct sockaddr_un un;
    if (unix_address(path, &un) != 0)
        return 0;
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&un, sizeof un) != 0)
        return 0;
    struct timeval limit = {.tv_sec = 2};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char tag[4];
    union {
        char bytes[CMSG_SPACE(sizeof(int) * DP_HANDOVER_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {tag, sizeof tag};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (n != sizeof tag || memcmp(tag, "CBH1", 4) != 0 || c == NULL || c->cmsg_type != SCM_RIGHTS)
        return 0;
    int count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds, CMSG_DATA(c), sizeof(int) * (size_t)count);
    *confirm = fd_steal(&s);
    return count;
}

void dp_handover_confirm(int confirm)
{
    ssize_t n = send(confirm, "K", 1, MSG_NOSIGNAL);
    (void)n; /* a predecessor that is gone needs no word */
    close(confirm);
}

struct giver {
    struct dp_watch listener, peer;
    struct dp_loop *loop;
    const int *fds;
    int count;
    void (*taken)(void *data);
    void *data;
};

static void on_peer(struct dp_watch *w, uint32_t events)
{
    struct giver *g = (struct giver *)((char *)w - offsetof(struct giver, peer));
    char word;
    ssize_t n = recv(w->fd, &word, 1, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    dp_watch_close(g->loop, w);
    if (n == 1 && word == 'K')
        g->taken(g->data);
}

static void on_listener(struct dp_watch *w, uint32_t events)
{
    struct giver *g = (struct giver *)w;
    _cleanup_close_ int s = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct ucred who;
    socklen_t len = sizeof who;
    if (s < 0 || g->peer.fd >= 0 || getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 ||
        (who.uid != geteuid() && who.uid != 0))
        return;
    union {
        char bytes[CMSG_SPACE(sizeof(int) * DP_HANDOVER_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(char *)"CBH1", 4};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)g->count)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)g->count);
    memcpy(CMSG_DATA(c), g->fds, sizeof(int) * (size_t)g->count);
    if (sendmsg(s, &m, MSG_NOSIGNAL) != 4)
        return;
    g->peer = (struct dp_watch){.ready = on_peer, .fd = fd_steal(&s)};
    dp_watch_add(g->loop, &g->peer, EPOLLIN);
}

int dp_handover_serve(struct dp_loop *l, const char *path, const int *fds, int count,
                      void (*taken)(void *data), void *data, struct err *e)
{
    struct sockaddr_un un;
    if (unix_address(path, &un) != 0 || count > DP_HANDOVER_MAX)
        return err_set(e, ERR_INVALID, "hand-over socket %s: path too long or too many sockets", path);
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(path);
    if (s < 0 || bind(s, (struct sockaddr *)&un, sizeof un) != 0 || chmod(path, 0600) != 0 ||
        listen(s, 1) != 0)
        return err_sys(e, ERR_INTERNAL, "opening the hand-over socket %s", path);
    struct giver *g = calloc(1, sizeof *g);
    if (g == NULL)
        return err_set(e, ERR_INTERNAL, "out of memory");
    *g = (struct giver){.listener = {.ready = on_listener, .fd = fd_steal(&s)},
                        .peer = {.fd = -1},
                        .loop = l,
                        .fds = fds,
                        .count = count,
                        .taken = taken,
                        .data = data};
    return dp_watch_add(l, &g->listener, EPOLLIN);
}
