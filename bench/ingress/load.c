/* The load generator of the ingress benchmark; LOAD_PATH in the environment replaces the path /11. Modes:
 * - rate PORT HOST RATE SECONDS CONNECTIONS: open loop, latency from the moment a request was due; prints n,
 * p50, p99, max (µs);
 * - burst PORT HOST SECONDS CONNECTIONS: closed loop; prints requests and seconds;
 * - get PORT HOST BYTES, put PORT HOST BYTES: prints seconds;
 * - wakeup: two processes on two cores that wake each other 5,000 times, 100 µs apart: prints p50 and p99
 * (µs) of one wake-up;
 * - ws PORT HOST COUNT: opens COUNT upgrades, prints "open", and "closed SECONDS" when all were closed by the
 * other side.
 */
#include "lib/base/clock.h"
#include "lib/dp/io.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct dp_loop *loop;
static uint16_t port;
static const char *host;
static char request[512];
static size_t request_len;

static int tcp_connect(void)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* A source address has one port per connection to a destination, fewer than 9,000 where some are
     * reserved. */
    enum { PER_SOURCE = 5000 };
    static uint32_t opened;
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK + opened++ / PER_SOURCE % 250)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from) != 0 ||
        connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        perror("connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

struct conn {
    struct dp_io io;
    char in[1024];
    size_t len;
    int64_t due_us;
    bool busy;
};

static struct conn *conns;
static long count, rate, done, sent;
static int64_t started_us, end_us;
static uint32_t *latency;

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void rate_report(void)
{
    qsort(latency, (size_t)done, sizeof *latency, by_value);
    printf("%ld %u %u %u\n", done, latency[done / 2], latency[done * 99 / 100], latency[done - 1]);
    exit(0);
}

static void send_due(struct conn *c, int64_t due_us)
{
    c->busy = true;
    c->due_us = due_us;
    c->len = 0;
    sent++;
    dp_io_write(&c->io, request, request_len);
}

static void on_tick(void)
{
    int64_t now = clock_mono_us();
    if (now > end_us)
        rate_report();
    for (long i = 0; i < count; i++) {
        int64_t due = started_us + (int64_t)((double)sent * 1e6 / (double)rate);
        if (due > now)
            break;
        if (conns[i].busy)
            continue;
        send_due(&conns[i], due);
    }
}

static bool answer_whole(struct conn *c)
{
    c->in[c->len] = 0;
    char *body = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "content-length:");
    if (body && strncmp(c->in, "HTTP/1.1 204", 12) == 0)
        return true;
    return body && length && (size_t)(c->in + c->len - body - 4) >= strtoul(length + 15, NULL, 10);
}

/* Whether the answer is there; a broken one ends the program. */
static bool answer_read(struct conn *c)
{
    ssize_t n = dp_io_read(&c->io, c->in + c->len, sizeof c->in - 1 - c->len);
    if (n == DP_IO_AGAIN)
        return false;
    if (n <= 0 || (c->len += (size_t)n, strncmp(c->in, "HTTP/1.1 20", 11) != 0)) {
        fprintf(stderr, "broken: %.*s\n", (int)c->len, c->in);
        exit(1);
    }
    return answer_whole(c);
}

static void on_rate(struct dp_io *io)
{
    struct conn *c = (struct conn *)io;
    if (!answer_read(c))
        return;
    int64_t now = clock_mono_us();
    if (done < 10000000)
        latency[done++] = (uint32_t)(now - c->due_us);
    c->busy = false;
    on_tick();
}

/* The pace is kept by a timerfd: the loop's own timers have 8 ms. */
static struct dp_watch pacer;

static void on_pacer(struct dp_watch *w, uint32_t events)
{
    uint64_t n;
    if (read(w->fd, &n, sizeof n) == sizeof n)
        on_tick();
}

static void rate_run(long seconds)
{
    latency = malloc(10000000 * sizeof *latency);
    started_us = clock_mono_us();
    end_us = started_us + seconds * 1000000;
    pacer = (struct dp_watch){.ready = on_pacer,
                              .fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
    struct itimerspec every = {.it_interval.tv_nsec = 100000, .it_value.tv_nsec = 100000};
    timerfd_settime(pacer.fd, 0, &every, NULL);
    dp_watch_add(loop, &pacer, DP_WATCH_LISTEN);
}

static void conns_open(void (*on_read)(struct dp_io *))
{
    conns = calloc((size_t)count, sizeof *conns);
    for (long i = 0; i < count; i++) {
        conns[i].io.on_read = on_read;
        dp_io_open(&conns[i].io, loop, tcp_connect(), NULL, false);
    }
}

/* ---- closed loop ---- */

static void on_burst(struct dp_io *io)
{
    struct conn *c = (struct conn *)io;
    if (!answer_read(c))
        return;
    done++;
    if (dp_now_us(loop) > end_us) {
        printf("%ld %.3f\n", done, (double)(dp_now_us(loop) - started_us) / 1e6);
        exit(0);
    }
    send_due(c, 0);
}

/* ---- bulk, blocking ---- */

static double bulk(bool put, unsigned long long n)
{
    static char bytes[262144];
    char head[512];
    int fd = tcp_connect();
    int64_t t = clock_mono_us();
    int len = put ? snprintf(head, sizeof head, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %llu\r\n\r\n",
                             host, n)
                  : snprintf(head, sizeof head, "GET /%llu HTTP/1.1\r\nHost: %s\r\n\r\n", n, host);
    if (write(fd, head, (size_t)len) != len)
        exit(1);
    while (put && n) {
        ssize_t w = write(fd, bytes, n < sizeof bytes ? n : sizeof bytes);
        if (w <= 0)
            exit(1);
        n -= (unsigned long long)w;
    }
    unsigned long long want = put ? 1 : n, got = 0;
    while (got < want) {
        ssize_t r = read(fd, bytes, sizeof bytes);
        if (r <= 0)
            exit(1);
        got += (unsigned long long)r;
    }
    return (double)(clock_mono_us() - t) / 1e6;
}

/* ---- what one wake-up costs ---- */

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set); /* one core alone: then it measures a switch */
}

static int64_t mono_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static int wakeup(void)
{
    enum { TIMES = 5000, PAUSE_NS = 100000 };
    static uint32_t ns[TIMES];
    int ends[2];
    int64_t t;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        pin(1);
        while (read(ends[1], &t, sizeof t) == sizeof t) {
            t = mono_ns() - t;
            if (write(ends[1], &t, sizeof t) != sizeof t)
                break;
        }
        _exit(0);
    }
    close(ends[1]);
    pin(0);
    for (int i = 0; i < TIMES; i++) {
        for (int64_t end = mono_ns() + PAUSE_NS; mono_ns() < end;)
            ; /* this core stays awake, the other goes idle, as between two requests */
        t = mono_ns();
        if (write(ends[0], &t, sizeof t) != sizeof t || read(ends[0], &t, sizeof t) != sizeof t)
            return 1;
        ns[i] = (uint32_t)t;
    }
    close(ends[0]);
    waitpid(child, NULL, 0);
    qsort(ns, TIMES, sizeof *ns, by_value);
    printf("%.1f %.1f\n", ns[TIMES / 2] / 1e3, ns[TIMES * 99 / 100] / 1e3);
    return 0;
}

/* ---- idle upgrades ---- */

static long closed;
static struct dp_watch input;

static void on_ws(struct dp_io *io)
{
    char bytes[512];
    ssize_t n = dp_io_read(io, bytes, sizeof bytes);
    if (n == DP_IO_AGAIN)
        return;
    if (n > 0) {
        if (memcmp(bytes, "HTTP/1.1 101", 12) != 0) {
            fprintf(stderr, "not upgraded: %.*s\n", (int)n, bytes);
            exit(1);
        }
        if (++done == count) {
            puts("open");
            fflush(stdout);
        }
        return;
    }
    dp_io_close(io, false);
    if (++closed == count) {
        printf("closed %.6f\n", (double)clock_realtime_ms() / 1e3);
        exit(0);
    }
}

static void on_input(struct dp_watch *w, uint32_t events)
{
    exit(0);
}

int main(int argc, char **argv)
{
    struct rlimit files;
    if (argc > 1 && strcmp(argv[1], "wakeup") == 0)
        return wakeup();
    if (argc < 5)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    port = (uint16_t)atoi(argv[2]);
    host = argv[3];
    request_len = (size_t)snprintf(request, sizeof request,
                                   "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n",
                                   getenv("LOAD_PATH") ? getenv("LOAD_PATH") : "/11", host);
    if (strcmp(argv[1], "get") == 0 || strcmp(argv[1], "put") == 0) {
        printf("%.6f\n", bulk(argv[1][0] == 'p', strtoull(argv[4], NULL, 10)));
        return 0;
    }
    loop = dp_loop_new();
    if (strcmp(argv[1], "rate") == 0 && argc == 7) {
        rate = atol(argv[4]);
        count = atol(argv[6]);
        conns_open(on_rate);
        rate_run(atol(argv[5]));
    } else if (strcmp(argv[1], "burst") == 0 && argc == 6) {
        count = atol(argv[5]);
        conns_open(on_burst);
        started_us = clock_mono_us();
        end_us = started_us + atol(argv[4]) * 1000000;
        for (long i = 0; i < count; i++)
            send_due(&conns[i], 0);
    } else if (strcmp(argv[1], "ws") == 0) {
        count = atol(argv[4]);
        request_len = (size_t)snprintf(
            request, sizeof request,
            "GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
            "dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            host);
        conns_open(on_ws);
        for (long i = 0; i < count; i++)
            send_due(&conns[i], 0);
        input = (struct dp_watch){.ready = on_input, .fd = dup(0)};
        dp_watch_add(loop, &input, DP_WATCH_LISTEN);
    } else {
        return 2;
    }
    dp_loop_run(loop);
}
