/* The backend of the ingress benchmark, one thread: GET /N answers N bytes, POST takes a body and answers
 * "ok", an upgrade is held open. Prints its port and one that does not pace. With a path it listens there
 * too, as a VMM does for a relay (internal.md §5: port u16, one status byte, raw bytes). Usage:
 * ingress-server [IN_SOCK]. */
#include "lib/base/buf.h"
#include "lib/dp/io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>

static struct dp_loop *loop;
static char bytes[65536];

struct conn {
    struct dp_io io;
    struct dp_task bury, again;
    char in[2048];
    uint32_t len;
    uint64_t body, answer; /* bytes still to read, to write */
    uint8_t preamble;      /* bytes of the port that a relay has still to send */
    bool open, post;
};

static void on_bury(struct dp_task *t)
{
    struct conn *c = (struct conn *)((char *)t - offsetof(struct conn, bury));
    if (c->again.queued)
        dp_bury(loop, t);
    else
        free(c);
}

static void conn_close(struct conn *c)
{
    if (!dp_io_is_open(&c->io))
        return;
    dp_io_close(&c->io, false);
    dp_bury(loop, &c->bury);
}

static void say(struct conn *c, const char *text)
{
    dp_io_write(&c->io, text, strlen(text));
}

static void head_take(struct conn *c)
{
    char out[128];
    char *length = strcasestr(c->in, "content-length:");
    c->len = 0;
    if (strcasestr(c->in, "upgrade: websocket")) {
        c->open = true;
        say(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    } else if (strncmp(c->in, "POST", 4) == 0) {
        c->post = true;
        c->body = length ? strtoull(length + 15, NULL, 10) : 0;
    } else {
        c->answer = strtoull(c->in + 5, NULL, 10);
        snprintf(out, sizeof out,
                 "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %llu\r\n\r\n",
                 (unsigned long long)c->answer);
        size_t n = strlen(out);
        if (c->answer <= 1024) { /* small answers in one write, as servers do */
            struct iovec v[2] = {{out, n}, {bytes, c->answer}};
            dp_io_writev(&c->io, v, 2);
            c->answer = 0;
        } else {
            dp_io_write(&c->io, out, n);
        }
    }
}

static void serve(struct conn *c)
{
    while (c->preamble) {
        ssize_t n = dp_io_read(&c->io, c->in, c->preamble);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            conn_close(c);
            return;
        }
        c->preamble -= (uint8_t)n;
        if (c->preamble == 0)
            dp_io_write(&c->io, "", 1);
    }
    for (int i = 0; i < 64; i++) {
        if (dp_io_blocked(&c->io))
            return;
        if (c->answer) {
            uint64_t n = c->answer < sizeof bytes ? c->answer : sizeof bytes;
            c->answer -= n;
            dp_io_write(&c->io, bytes, n);
            continue;
        }
        bool body = c->body || c->open;
        ssize_t n = dp_io_read(&c->io, body ? bytes : c->in + c->len,
                               body ? sizeof bytes : sizeof c->in - 1 - c->len);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            conn_close(c);
            return;
        }
        if (c->body) {
            c->body -= (uint64_t)n < c->body ? (uint64_t)n : c->body;
            if (c->body == 0)
                say(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        } else if (!c->open) {
            c->len += (uint32_t)n;
            c->in[c->len] = 0;
            char *end = strstr(c->in, "\r\n\r\n");
            if (end) {
                uint64_t extra = (uint64_t)(c->in + c->len - end - 4);
                head_take(c);
                if (c->body)
                    c->body -= extra < c->body ? extra : c->body;
            }
        }
    }
    dp_defer(loop, &c->again);
}

static void on_io(struct dp_io *io)
{
    serve((struct conn *)io);
}

static void on_again(struct dp_task *t)
{
    struct conn *c = (struct conn *)((char *)t - offsetof(struct conn, again));
    if (dp_io_is_open(&c->io))
        serve(c);
}

static void accept_all(struct dp_watch *w, bool relay)
{
    for (int i = 0; i < 64; i++) {
        int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct conn *c = fd >= 0 ? calloc(1, sizeof *c) : NULL;
        if (c == NULL)
            return;
        *c = (struct conn){.io = {.on_read = on_io, .on_drain = on_io},
                           .bury = {.run = on_bury},
                           .again = {.run = on_again},
                           .preamble = relay ? 2 : 0};
        dp_io_open(&c->io, loop, fd, NULL, relay);
    }
}

static void on_tcp(struct dp_watch *w, uint32_t events)
{
    accept_all(w, false);
}

static void on_relay(struct dp_watch *w, uint32_t events)
{
    accept_all(w, true);
}

/* dp_listen's sockets do not pace on loopback. What stands for any service has the host's default. */
static void pace_as_host(int fd)
{
    char name[16] = "";
    FILE *f = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "re");
    if (f && fscanf(f, "%15s", name) == 1)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
    if (f)
        fclose(f);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct rlimit files;
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    memset(bytes, 'x', sizeof bytes);
    loop = dp_loop_new();
    struct dp_watch listeners[2]; /* as any service on this host; as dp_listen makes them */
    struct dp_watch in_sock = {.ready = on_relay, .fd = -1};
    char path[256];
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        listeners[i] = (struct dp_watch){.ready = on_tcp, .fd = dp_listen("127.0.0.1:0", false, &e)};
        if (listeners[i].fd < 0 || getsockname(listeners[i].fd, (struct sockaddr *)&sa, &len) != 0)
            return 1;
        printf("%u%c", ntohs(sa.sin_port), i ? '\n' : ' ');
    }
    pace_as_host(listeners[0].fd);
    if (argc > 1) {
        snprintf(path, sizeof path, "unix:%s", argv[1]);
        in_sock.fd = dp_listen(path, false, &e);
        if (in_sock.fd < 0)
            return 1;
        dp_watch_add(loop, &in_sock, DP_WATCH_LISTEN);
    }
    fflush(stdout);
    for (int i = 0; i < 2; i++)
        dp_watch_add(loop, &listeners[i], DP_WATCH_LISTEN);
    dp_loop_run(loop);
}
