/* Stands where a VM would: listens on an in.sock, speaks the connector protocol of internal.md §5 (port u16,
 * one status byte, raw bytes) and connects to TCP ports of this host. Usage: connector SOCKET
 * [GUEST_PORT=HOST_PORT]…; a port that is not listed, or on which nobody listens, is answered with status 3.
 */
#include "lib/dp/pump.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct dp_loop *loop;
static uint16_t map[65536];

struct link {
    struct dp_io guest, service;
    struct half in, out;
    struct dp_task again, bury;
    uint8_t port[2];
    int got;
    bool open, closed, connecting;
};
#define LINK_OF(ptr, member) ((struct link *)((char *)(ptr)-offsetof(struct link, member)))

static void on_bury(struct dp_task *t)
{
    struct link *k = LINK_OF(t, bury);
    if (k->again.queued)
        dp_bury(loop, t);
    else
        free(k);
}

static void link_close(struct link *k, bool reset)
{
    if (k->closed)
        return;
    k->closed = true;
    pump_release(&k->in);
    pump_release(&k->out);
    dp_io_close(&k->guest, reset);
    dp_io_close(&k->service, reset);
    dp_bury(loop, &k->bury);
}

static void link_pump(struct link *k)
{
    enum pump_result in = pump_half(&k->in), out = pump_half(&k->out);
    if (in == PUMP_FAILED || out == PUMP_FAILED)
        link_close(k, true);
    else if (pump_over(&k->in, &k->out))
        link_close(k, false);
    else if (in == PUMP_AGAIN || out == PUMP_AGAIN)
        dp_defer(loop, &k->again);
}

static void on_again(struct dp_task *t)
{
    if (!LINK_OF(t, again)->closed)
        link_pump(LINK_OF(t, again));
}

static void refuse(struct link *k)
{
    dp_io_write(&k->guest, "\3", 1);
    link_close(k, false);
}

static void on_service(struct dp_io *io)
{
    struct link *k = LINK_OF(io, service);
    if (k->open)
        link_pump(k);
}

static void service_connect(struct link *k)
{
    uint16_t port = map[k->port[0] << 8 | k->port[1]];
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = port ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1, one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) { /* on loopback this does not wait */
        if (fd >= 0)
            close(fd);
        refuse(k);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    dp_io_limit_sending(fd);
    fcntl(fd, F_SETFL, O_NONBLOCK); /* splice(2) heeds the socket's flag alone */
    k->service.on_read = on_service;
    k->service.on_drain = on_service;
    if (dp_io_open(&k->service, loop, fd, NULL, false) != 0) {
        close(fd);
        refuse(k);
        return;
    }
    k->open = true;
    k->in = (struct half){.from = &k->guest, .to = &k->service, .pipe = {-1, -1}};
    k->out = (struct half){.from = &k->service, .to = &k->guest, .pipe = {-1, -1}};
    dp_io_write(&k->guest, "", 1);
    link_pump(k);
}

static void on_guest(struct dp_io *io)
{
    struct link *k = LINK_OF(io, guest);
    if (k->open) {
        link_pump(k);
        return;
    }
    while (k->got < 2) {
        ssize_t n = dp_io_read(io, k->port + k->got, 2 - (size_t)k->got);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            link_close(k, false);
            return;
        }
        k->got += (int)n;
    }
    service_connect(k);
}

static void on_drain(struct dp_io *io)
{
    struct link *k = LINK_OF(io, guest);
    if (k->open)
        link_pump(k);
}

static void on_accept(struct dp_watch *w, uint32_t events)
{
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct link *k = fd >= 0 ? calloc(1, sizeof *k) : NULL;
    if (k == NULL)
        return;
    k->guest.on_read = on_guest;
    k->guest.on_drain = on_drain;
    k->service.watch.fd = -1;
    k->in.pipe[0] = k->in.pipe[1] = k->out.pipe[0] = k->out.pipe[1] = -1;
    k->again.run = on_again;
    k->bury.run = on_bury;
    dp_io_open(&k->guest, loop, fd, NULL, true);
}

int main(int argc, char **argv)
{
    char address[256];
    struct err e = {0};
    struct rlimit files;
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (argc < 2)
        return 2;
    for (int i = 2; i < argc; i++) {
        unsigned guest, host;
        if (sscanf(argv[i], "%u=%u", &guest, &host) != 2 || guest > 65535 || host > 65535)
            return 2;
        map[guest] = (uint16_t)host;
    }
    dp_io_limit(1 << 20, 1 << 17); /* as the relay beside it, so that a test can bound the whole way */
    loop = dp_loop_new();
    snprintf(address, sizeof address, "unix:%s.new", argv[1]);
    struct dp_watch listener = {.ready = on_accept, .fd = dp_listen(address, false, &e)};
    /* Whoever sees the socket may connect at once: between bind and listen it would be refused. */
    if (listener.fd < 0 || rename(address + strlen("unix:"), argv[1]) != 0) {
        fprintf(stderr, "%s: %s\n", argv[1], listener.fd < 0 ? e.msg : strerror(errno));
        return 1;
    }
    dp_watch_add(loop, &listener, DP_WATCH_LISTEN);
    puts("ready");
    fflush(stdout);
    dp_loop_run(loop);
}
