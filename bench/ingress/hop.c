/* For the benchmark alone: the least that a hop can do. Passes the bytes of each connection on to another
 * address and back and looks at none of them, so it is the floor beside which a proxy's own work shows. Small
 * messages are copied, bulk is spliced, as cube-relay does. Listens on a free port of 127.0.0.1 and prints
 * it. Usage: ingress-hop PORT | IN_SOCK (there it says the two bytes that a relay says, internal.md §5). */
#include "lib/dp/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { COPY = 16384, BULK = 262144, EVENTS = 64 };

struct side {
    int fd;
    struct side *other;
    int pipe[2];
    size_t in_pipe; /* towards `other` */
    bool bulk, ended;
};

static int ep;
static struct sockaddr_storage target;
static socklen_t target_len;

static void pair_close(struct side *a)
{
    for (int i = 0; i < 2; i++, a = a->other) {
        close(a->fd);
        a->fd = -1;
        if (a->pipe[0] >= 0) {
            close(a->pipe[0]);
            close(a->pipe[1]);
        }
    }
    /* The memory stays: events of this turn may name it, and a run opens few connections. */
}

/* false: nothing more can be passed on now. */
static bool bulk_pass(struct side *a)
{
    if (a->in_pipe == 0) {
        ssize_t n = splice(a->fd, NULL, a->pipe[1], NULL, BULK, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n <= 0) {
            a->ended = n == 0;
            return false;
        }
        a->in_pipe = (size_t)n;
    }
    ssize_t n = splice(a->pipe[0], NULL, a->other->fd, NULL, a->in_pipe, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n > 0)
        a->in_pipe -= (size_t)n;
    return n > 0;
}

static bool small_pass(struct side *a)
{
    char bytes[COPY];
    ssize_t n = recv(a->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) {
        a->ended = n == 0 || errno != EAGAIN;
        return false;
    }
    if (n == sizeof bytes && a->pipe[0] < 0 && pipe2(a->pipe, O_CLOEXEC | O_NONBLOCK) == 0) {
        fcntl(a->pipe[1], F_SETPIPE_SZ, BULK);
        a->bulk = true;
    }
    for (ssize_t off = 0, put; off < n; off += put) {
        put = send(a->other->fd, bytes + off, (size_t)(n - off), MSG_NOSIGNAL);
        if (put < 0 && errno == EAGAIN)
            put = 0; /* at most 16 KiB, once per stream */
        else if (put < 0) {
            a->ended = true;
            return false;
        }
    }
    return n == sizeof bytes;
}

static void pass(struct side *a)
{
    if (a->fd < 0)
        return;
    while (a->bulk ? bulk_pass(a) : small_pass(a))
        ; /* until it would block: every event is an edge */
    if (a->ended)
        pair_close(a);
}

static int target_connect(void)
{
    int fd = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&target, target_len) != 0) {
        perror("connecting");
        exit(1);
    }
    if (target.ss_family == AF_UNIX && (write(fd, "\x1f\x40", 2) != 2 || read(fd, &(char){0}, 1) != 1))
        exit(1);
    if (target.ss_family == AF_INET)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void pair_open(int fd)
{
    struct side *s = calloc(2, sizeof *s);
    if (s == NULL)
        exit(1);
    for (int i = 0; i < 2; i++) {
        s[i] = (struct side){.fd = i ? target_connect() : fd, .other = &s[1 - i], .pipe = {-1, -1}};
        epoll_ctl(ep, EPOLL_CTL_ADD, s[i].fd,
                  &(struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = &s[i]});
    }
}

int main(int argc, char **argv)
{
    struct err e = {0};
    signal(SIGPIPE, SIG_IGN);
    if (argc != 2)
        return 2;
    if (argv[1][0] == '/') {
        struct sockaddr_un *un = (struct sockaddr_un *)&target;
        un->sun_family = AF_UNIX;
        snprintf(un->sun_path, sizeof un->sun_path, "%s", argv[1]);
        target_len = sizeof *un;
    } else {
        struct sockaddr_in *in = (struct sockaddr_in *)&target;
        *in = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atoi(argv[1])),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        target_len = sizeof *in;
    }
    int listener = dp_listen("127.0.0.1:0", false, &e);
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (listener < 0 || ep < 0 || getsockname(listener, (struct sockaddr *)&sa, &len) != 0)
        return 1;
    printf("%u\n", ntohs(sa.sin_port));
    fflush(stdout);
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN});
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(ep, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            struct side *s = events[i].data.ptr;
            if (s == NULL) {
                int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd >= 0)
                    pair_open(fd);
                continue;
            }
            if (events[i].events & ~(uint32_t)EPOLLOUT)
                pass(s);
            if (events[i].events & EPOLLOUT)
                pass(s->other);
        }
    }
}
