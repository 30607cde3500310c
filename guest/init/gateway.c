/* cube-gateway: the way from the ingress to any port inside the guest. Listens on vsock port 2; a connection
 * begins with a port (u16, big-endian), is answered with one status byte (0 open, 3 closed), and is then raw
 * bytes both ways with half-close passed on (contracts/internal.md §5). Invariants: memory per connection is
 * one buffer per direction, and only while the receiving side is slower, HELD_MAX and a little over all; the
 * program has no rights: it runs as nobody. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "guest/common/loop.h"
#include "guest/common/peer.h"
#include "lib/base/log.h"

#define GATEWAY_PORT 2
#define NOBODY 65534
#define LINKS_MAX 8192
#define PREFACE_MS 5000
#define CONNECT_MS 10000
#define BUFFER (256 * 1024)
#define HELD_MAX                                                                                             \
    ((size_t)16 << 20) /* beyond, each direction takes only PIECE_FULL bytes ahead of its receiver */
#define PIECE_FULL 2048
#define READS_PER_EVENT 4
#define STATUS_OK 0
#define STATUS_CLOSED 3
#define STATUS_NOT_READY 4

/* One direction: bytes that the receiver has not taken yet. */
struct flow {
    char *data;
    size_t off, len, size;
    bool eof, shut; /* the sender is done; that was passed on */
};

struct link {
    struct ev guest, service; /* vsock side and TCP side */
    struct flow in, out;      /* to the service, from the service */
    unsigned char port[2];
    unsigned got; /* bytes of the preface */
    int attempt;  /* index into targets */
    bool open;
    struct timer timer;
};

static struct ev listener = {.fd = -1};
static unsigned links;
static char scratch[BUFFER];
static size_t held; /* bytes of all flows */

static void flow_free(struct flow *f)
{
    held -= f->size;
    free(f->data);
    f->data = NULL;
    f->off = f->len = f->size = 0;
}

static void link_close(struct link *l)
{
    ev_close(&l->guest);
    ev_close(&l->service);
    timer_clear(&l->timer);
    flow_free(&l->in);
    flow_free(&l->out);
    links--;
    loop_free_later(l);
}

static void watch(struct link *l)
{
    uint32_t g = 0, s = 0;
    if (!l->in.eof && !l->in.len)
        g |= EPOLLIN;
    if (l->out.len)
        g |= EPOLLOUT;
    if (!l->out.eof && !l->out.len)
        s |= EPOLLIN;
    if (l->in.len)
        s |= EPOLLOUT;
    ev_watch(&l->guest, g);
    ev_watch(&l->service, s);
}

/* Sends what is held, then passes the end on. Returns false when the connection is broken. */
static bool flow_flush(struct flow *f, int to)
{
    while (f->len) {
        ssize_t n = send(to, f->data + f->off, f->len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN;
        f->off += (size_t)n;
        f->len -= (size_t)n;
    }
    flow_free(f);
    if (f->eof && !f->shut) {
        f->shut = true;
        shutdown(to, SHUT_WR);
    }
    return true;
}

static bool flow_hold(struct flow *f, const char *p, size_t n)
{
    f->data = malloc(n);
    if (!f->data)
        return false;
    memcpy(f->data, p, n);
    f->off = 0;
    f->len = f->size = n;
    held += n;
    return true;
}

/* Moves bytes until there are none or the receiver is full. Returns false when the connection is broken. */
static bool flow_pump(struct flow *f, int from, int to)
{
    for (int i = 0; i < READS_PER_EVENT && !f->len && !f->eof; i++) {
        ssize_t n = recv(from, scratch, held < HELD_MAX ? sizeof(scratch) : PIECE_FULL, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN;
        if (n == 0) {
            f->eof = true;
            break;
        }
        ssize_t sent = send(to, scratch, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (sent < 0)
            sent = 0;
        if (sent < n && !flow_hold(f, scratch + sent, (size_t)(n - sent)))
            return false;
    }
    return flow_flush(f, to);
}

static void after(struct link *l, bool ok)
{
    if (!ok || (l->in.shut && l->out.shut))
        link_close(l);
    else
        watch(l);
}

/* A reset must not look like a clean end to the other side: both are closed at once, unread data turns that
 * into RST. */
static void on_guest(void *owner, uint32_t events)
{
    struct link *l = owner;
    bool ok = !(events & EPOLLERR);
    if (ok && events & EPOLLOUT)
        ok = flow_flush(&l->out, l->guest.fd);
    if (ok && events & (EPOLLIN | EPOLLHUP))
        ok = flow_pump(&l->in, l->guest.fd, l->service.fd);
    if (ok && events & EPOLLHUP && !(events & EPOLLIN) && l->in.eof && !l->out.shut)
        ok = false; /* both directions of the peer are gone: nobody will read */
    after(l, ok);
}

static void on_service(void *owner, uint32_t events)
{
    struct link *l = owner;
    bool ok = !(events & EPOLLERR);
    if (ok && events & EPOLLOUT)
        ok = flow_flush(&l->in, l->service.fd);
    if (ok && events & (EPOLLIN | EPOLLHUP))
        ok = flow_pump(&l->out, l->service.fd, l->guest.fd);
    after(l, ok);
}

static void answer(struct link *l, char status)
{
    if (send(l->guest.fd, &status, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1 || status != STATUS_OK) {
        shutdown(l->guest.fd, SHUT_WR);
        link_close(l);
    }
}

static void connect_next(struct link *l);

static void opened(struct link *l)
{
    int one = 1;
    timer_clear(&l->timer);
    setsockopt(l->service.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    l->open = true;
    l->guest.cb = on_guest;
    l->service.cb = on_service;
    answer(l, STATUS_OK);
    if (l->guest.fd >= 0)
        watch(l);
}

static void on_connected(void *owner, uint32_t events)
{
    struct link *l = owner;
    int sys = 0;
    socklen_t n = sizeof(sys);
    if (getsockopt(l->service.fd, SOL_SOCKET, SO_ERROR, &sys, &n) == 0 && !sys) {
        opened(l);
        return;
    }
    ev_close(&l->service);
    connect_next(l);
}

/* Loopback of both families, then the guest's own address: a server may be bound to any one of them. */
static int target(int i, uint16_t port, struct sockaddr_storage *out)
{
    struct sockaddr_in *a4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)out;
    if (i == 1) {
        *a6 = (struct sockaddr_in6){
            .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        return sizeof(*a6);
    }
    *a4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, i == 0 ? "127.0.0.1" : "169.254.0.21", &a4->sin_addr);
    return sizeof(*a4);
}

static void connect_next(struct link *l)
{
    uint16_t port = (uint16_t)(l->port[0] << 8 | l->port[1]);
    while (l->attempt < 3) {
        struct sockaddr_storage a;
        int len = target(l->attempt++, port, &a);
        int fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        l->service = (struct ev){.fd = fd, .cb = on_connected, .owner = l};
        if (connect(fd, (struct sockaddr *)&a, (socklen_t)len) == 0) {
            opened(l);
            return;
        }
        if (errno == EINPROGRESS) {
            ev_watch(&l->service, EPOLLOUT);
            return;
        }
        ev_close(&l->service);
    }
    answer(l, STATUS_CLOSED);
}

static void on_preface(void *owner, uint32_t events)
{
    struct link *l = owner;
    ssize_t n = recv(l->guest.fd, l->port + l->got, sizeof(l->port) - l->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        link_close(l);
        return;
    }
    l->got += (unsigned)n;
    if (l->got < sizeof(l->port))
        return;
    ev_watch(&l->guest, 0);
    timer_set(&l->timer, CONNECT_MS);
    connect_next(l);
}

static void on_timeout(void *owner)
{
    struct link *l = owner;
    if (l->got < sizeof(l->port))
        link_close(l);
    else
        answer(l, STATUS_CLOSED);
}

static void on_accept(void *owner, uint32_t events)
{
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage from = {0};
        socklen_t n = sizeof(from);
        int fd = accept4(listener.fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        if (peer_is_guest(&from)) {
            close(fd);
            continue;
        }
        struct link *l = links < LINKS_MAX ? calloc(1, sizeof(*l)) : NULL;
        if (!l) {
            char busy = STATUS_NOT_READY;
            send(fd, &busy, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            close(fd);
            continue;
        }
        links++;
        l->guest = (struct ev){.fd = fd, .cb = on_preface, .owner = l};
        l->service.fd = -1;
        l->timer = (struct timer){.cb = on_timeout, .owner = l};
        timer_set(&l->timer, PREFACE_MS);
        ev_watch(&l->guest, EPOLLIN);
    }
}

static int listen_vsock(void)
{
    struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_port = GATEWAY_PORT, .svm_cid = VMADDR_CID_ANY};
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 1024) < 0)
        return -1;
    return fd;
}

/* `--listen PORT` serves TCP on loopback instead of vsock: for tests on a host. */
static int listen_tcp(const char *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)atoi(port)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 1024) < 0)
        return -1;
    return fd;
}

int main(int argc, char **argv)
{
    struct rlimit files = {.rlim_cur = 2 * LINKS_MAX + 64, .rlim_max = 2 * LINKS_MAX + 64};
    bool tcp = argc == 3 && !strcmp(argv[1], "--listen");
    log_init("gateway", LOG_INFO);
    prctl(PR_SET_NAME, "cube-gateway");
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_NOFILE, &files);
    listener = (struct ev){.fd = tcp ? listen_tcp(argv[2]) : listen_vsock(), .cb = on_accept};
    if (listener.fd < 0 || loop_open() < 0 || ev_watch(&listener, EPOLLIN) < 0) {
        log_error("listening: %s", strerror(errno));
        return 1;
    }
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
                           setresuid(NOBODY, NOBODY, NOBODY) < 0)) {
        log_error("dropping privileges: %s", strerror(errno));
        return 1;
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0);
    loop_run();
    return 0;
}
