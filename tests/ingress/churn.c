/* Property: whatever happens to the sandboxes, a request never reaches a generation older than the one that
 * was committed when it was sent. One program plays everything around the proxies: the master (random
 * lifecycle events into Redis), the relay with all VMs (an old VM dies when its successor is committed), and
 * clients that ask through every proxy and check the generation in each answer. Proxies that use LINK_SOCK
 * get their streams over links, which break now and then. Usage: churn REDIS_PORT RELAY_PORT LINK_SOCK EVENTS
 * SEED SECONDS PROXY_PORT… ; prints one line of JSON. */
#include "tests/ingress/churn.h"

#include "lib/base/buf.h"
#include "lib/base/ids.h"
#include "lib/dp/io.h"
#include "lib/net/preface.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SANDBOXES = 200, CLIENTS_PER_PROXY = 8, BATCH = 50 };

struct vm {
    char id[SANDBOX_ID_LEN + 1];
    uint8_t ticket[32];  /* the same for all generations: only the number keeps the old ones out */
    uint64_t gen, floor; /* now; committed for sure */
    bool running;
    uint32_t pending;   /* changes that Redis has not confirmed yet */
    uint64_t disturbed; /* counts the times when an error is a fair answer */
    struct stream *streams;
};

struct stream { /* accepted by the relay */
    struct dp_io io;
    struct dp_task bury;
    struct vm *vm;
    uint64_t gen;
    struct stream *next, **link;
    char in[4096];
    size_t len;
};

struct client {
    struct dp_io io;
    struct dp_task bury, next;
    struct dp_timer timer;
    uint16_t port;
    struct vm *vm;
    uint64_t floor, disturbed;
    char in[4096];
    size_t len;
};

static struct dp_loop *loop;
static struct vm vms[SANDBOXES];
static struct dp_io redis;
static struct dp_timer pace;
static uint16_t relay_port;
static uint64_t events_wanted, events_sent, events_done, replies_due, requests, ok, fair_errors, stale,
    unfair_errors, hangs, broken;
static uint64_t rng;
static int64_t started_ms, seconds;
static struct dp_watch relay;

static uint64_t rnd(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static int tcp_connect(uint16_t port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        perror("connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* ---- relay and VMs ---- */

static void on_stream_bury(struct dp_task *t)
{
    free((char *)t - offsetof(struct stream, bury));
}

static void stream_close(struct stream *s, bool reset)
{
    if (!dp_io_is_open(&s->io))
        return;
    if (s->link) {
        *s->link = s->next;
        if (s->next)
            s->next->link = s->link;
    }
    dp_io_close(&s->io, reset);
    dp_bury(loop, &s->bury);
}

static void vm_dies(struct vm *v)
{
    while (v->streams)
        stream_close(v->streams, true);
}

static struct vm *vm_of(const struct preface *p)
{
    for (int i = 0; i < SANDBOXES; i++)
        if (memcmp(vms[i].id, p->sandbox, SANDBOX_ID_LEN) == 0)
            return &vms[i];
    return NULL;
}

enum preface_status churn_admit(const uint8_t bytes[PREFACE_LEN], uint64_t *gen)
{
    struct preface p;
    struct vm *v = preface_decode(bytes, &p) ? vm_of(&p) : NULL;
    *gen = v ? v->gen : 0;
    if (v == NULL || !v->running)
        return PREFACE_UNKNOWN;
    return p.gen != v->gen ? PREFACE_STALE : preface_check(bytes, v->ticket, (uint32_t)time(NULL));
}

static void stream_admitted(struct stream *s, const uint8_t bytes[PREFACE_LEN])
{
    struct preface p;
    struct vm *v = preface_decode(bytes, &p) ? vm_of(&p) : NULL;
    s->vm = v;
    s->gen = p.gen;
    s->next = v->streams;
    s->link = &v->streams;
    if (s->next)
        s->next->link = &s->next;
    v->streams = s;
}

static bool preface_take(struct stream *s)
{
    uint8_t answer[PREFACE_ANSWER_LEN];
    uint64_t gen;
    enum preface_status status = churn_admit((uint8_t *)s->in, &gen);
    preface_answer_encode(status, gen, answer);
    dp_io_write(&s->io, answer, sizeof answer);
    if (status != PREFACE_OK)
        return false;
    stream_admitted(s, (uint8_t *)s->in);
    return true;
}

static void on_stream(struct dp_io *io)
{
    struct stream *s = (struct stream *)io;
    for (;;) {
        ssize_t n = dp_io_read(io, s->in + s->len, sizeof s->in - 1 - s->len);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            stream_close(s, false);
            return;
        }
        s->len += (size_t)n;
        if (s->vm == NULL) {
            if (s->len < PREFACE_LEN)
                continue;
            if (!preface_take(s)) {
                stream_close(s, false);
                return;
            }
            s->len -= PREFACE_LEN;
            memmove(s->in, s->in + PREFACE_LEN, s->len);
        }
        s->in[s->len] = 0;
        if (strstr(s->in, "\r\n\r\n") == NULL)
            continue;
        s->len = 0;
        char out[128], body[24];
        int b = snprintf(body, sizeof body, "%" PRIu64, s->gen);
        int o = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", b, body);
        dp_io_write(io, out, (size_t)o);
    }
}

static struct stream *stream_new(int fd, bool on_demand)
{
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        exit(1);
    s->io.on_read = on_stream;
    s->bury.run = on_stream_bury;
    dp_io_open(&s->io, loop, fd, NULL, on_demand);
    return s;
}

void churn_serve(int fd, const uint8_t bytes[PREFACE_LEN])
{
    stream_admitted(stream_new(fd, true), bytes);
}

static void on_accept(struct dp_watch *w, uint32_t what)
{
    int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        stream_new(fd, false);
}

/* ---- master ---- */

static void event_make(struct buf *out, struct vm *v)
{
    static const char *const verb[] = {"running", "paused", "gone"};
    int what = (int)rnd(10);
    what = what < 7 || !v->running ? 0 : what < 9 ? 1 : 2;
    vm_dies(v);
    v->disturbed++;
    v->pending++;
    v->running = what == 0;
    if (what == 0)
        v->gen++;
    char gen[24], relay_address[32], ticket[65];
    snprintf(gen, sizeof gen, "%" PRIu64, v->gen);
    snprintf(relay_address, sizeof relay_address, "127.0.0.1:%u", relay_port);
    hex_encode(v->ticket, 32, ticket);
    if (what == 2)
        buf_printf(out, "*2\r\n$3\r\nDEL\r\n$%zu\r\n{c0}:rt:%s\r\n", strlen(v->id) + 8, v->id);
    else
        buf_printf(out,
                   "*10\r\n$4\r\nHSET\r\n$%zu\r\n{c0}:rt:%s\r\n$5\r\nrelay\r\n$%zu\r\n%s\r\n$3\r\ngen\r\n$%"
                   "zu\r\n%s\r\n$5\r\nstate\r\n$%zu\r\n%s\r\n$6\r\nticket\r\n$64\r\n%s\r\n",
                   strlen(v->id) + 8, v->id, strlen(relay_address), relay_address, strlen(gen), gen,
                   strlen(verb[what]), verb[what], ticket);
    buf_printf(out,
               "*14\r\n$4\r\nXADD\r\n$7\r\n{c0}:ev\r\n$6\r\nMAXLEN\r\n$1\r\n~\r\n$5\r\n20000\r\n$1\r\n*\r\n$"
               "4\r\nkind\r\n$5\r\nroute\r\n$2\r\nid\r\n$%zu\r\n%s\r\n$3\r\ngen\r\n$%zu\r\n%s\r\n",
               strlen(v->id), v->id, strlen(gen), gen);
    buf_printf(out, "$5\r\nstate\r\n$%zu\r\n%s\r\n", strlen(verb[what]), verb[what]);
    replies_due += 2;
    events_sent++;
}

static struct vm *batch_vm[BATCH];
static uint64_t batch_gen[BATCH];
static int batch_count;

static void batch_send(void)
{
    _cleanup_buf_ struct buf out = {0};
    batch_count = 0;
    while (batch_count < BATCH && events_sent < events_wanted) {
        struct vm *v = &vms[rnd(SANDBOXES)];
        event_make(&out, v);
        batch_vm[batch_count] = v;
        batch_gen[batch_count++] = v->gen;
    }
    dp_io_write(&redis, out.data, out.len);
    if (rnd(50) == 0)
        churn_link_break();
}

static void on_pace(struct dp_timer *t)
{
    if (events_sent < events_wanted)
        batch_send();
}

static void on_redis(struct dp_io *io)
{
    char bytes[16384];
    static bool in_line_of_bulk;
    for (ssize_t n; (n = dp_io_read(io, bytes, sizeof bytes)) > 0;) {
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '$')
                in_line_of_bulk = true; /* the bulk's own line does not count */
            if (bytes[i] != '\n')
                continue;
            if (in_line_of_bulk)
                in_line_of_bulk = false;
            else
                replies_due--;
        }
    }
    if (replies_due == 0 && batch_count) {
        for (int i = 0; i < batch_count; i++) {
            batch_vm[i]->floor = batch_gen[i] > batch_vm[i]->floor ? batch_gen[i] : batch_vm[i]->floor;
            batch_vm[i]->pending--;
        }
        events_done += (uint64_t)batch_count;
        batch_count = 0;
        dp_timer_start(loop, &pace, 0);
    }
}

/* ---- clients ---- */

static void client_ask(struct client *c)
{
    char out[256];
    c->vm = &vms[rnd(SANDBOXES)];
    c->floor = c->vm->floor;
    c->disturbed = c->vm->disturbed;
    if (!c->vm->running || c->vm->pending)
        c->disturbed = UINT64_MAX; /* it may well be told so */
    int n = snprintf(out, sizeof out, "GET / HTTP/1.1\r\nHost: 8000-%s.cube.test\r\n\r\n", c->vm->id);
    requests++;
    c->len = 0;
    dp_io_write(&c->io, out, (size_t)n);
    dp_timer_start(loop, &c->timer, 20000);
}

static void report(void)
{
    printf("{\"events\":%" PRIu64 ",\"requests\":%" PRIu64 ",\"ok\":%" PRIu64 ",\"fair_errors\":%" PRIu64
           ",\"stale\":%" PRIu64 ",\"unfair_errors\":%" PRIu64 ",\"hangs\":%" PRIu64 ",\"broken\":%" PRIu64
           ",\"seconds\":%.1f}\n",
           events_done, requests, ok, fair_errors, stale, unfair_errors, hangs, broken,
           (double)(dp_now_ms(loop) - started_ms) / 1000);
    exit(stale || unfair_errors || hangs || broken ? 1 : 0);
}

static void on_client(struct dp_io *io)
{
    struct client *c = (struct client *)io;
    for (;;) {
        ssize_t n = dp_io_read(io, c->in + c->len, sizeof c->in - 1 - c->len);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            broken++;
            report();
        }
        c->len += (size_t)n;
        c->in[c->len] = 0;
        char *body = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "content-length:");
        if (body == NULL || length == NULL || strlen(body + 4) < strtoul(length + 15, NULL, 10))
            continue;
        int status = atoi(c->in + 9);
        if (status == 200) {
            ok++;
            if (strtoull(body + 4, NULL, 10) < c->floor) {
                stale++;
                fprintf(stderr,
                        "%s answered with generation %s, but %" PRIu64 " was committed when it was asked\n",
                        c->vm->id, body + 4, c->floor);
            }
        } else if (c->disturbed != c->vm->disturbed) {
            fair_errors++;
        } else {
            unfair_errors++;
            fprintf(stderr, "%s was running all the time, but: %s\n", c->vm->id, c->in);
        }
        bool over = events_done >= events_wanted || dp_now_ms(loop) - started_ms > seconds * 1000;
        if (over)
            report();
        dp_defer(loop, &c->next);
        return;
    }
}

static void on_next(struct dp_task *t)
{
    client_ask((struct client *)((char *)t - offsetof(struct client, next)));
}

static void on_hang(struct dp_timer *t)
{
    struct client *c = (struct client *)((char *)t - offsetof(struct client, timer));
    hangs++;
    fprintf(stderr, "%s: no answer for 20 s (got: %.*s)\n", c->vm->id, (int)c->len, c->in);
    report();
}

int main(int argc, char **argv)
{
    struct err e = {0};
    char address[32];
    signal(SIGPIPE, SIG_IGN);
    if (argc < 8)
        return 2;
    loop = dp_loop_new();
    relay_port = (uint16_t)atoi(argv[2]);
    events_wanted = strtoull(argv[4], NULL, 10);
    rng = strtoull(argv[5], NULL, 10) * 2654435761u + 88172645463325252u;
    seconds = atoi(argv[6]);
    started_ms = dp_now_ms(loop);
    snprintf(address, sizeof address, "127.0.0.1:%u", relay_port);
    relay = (struct dp_watch){.ready = on_accept, .fd = dp_listen(address, false, &e)};
    if (relay.fd < 0)
        return 1;
    dp_watch_add(loop, &relay, DP_WATCH_LISTEN);
    churn_link_start(loop, argv[3], address);
    for (int i = 0; i < SANDBOXES; i++) {
        id_sandbox(vms[i].id, '0');
        random_bytes(vms[i].ticket, 32);
    }
    redis.on_read = on_redis;
    dp_io_open(&redis, loop, tcp_connect((uint16_t)atoi(argv[1])), NULL, false);
    pace.fire = on_pace;
    batch_send();
    for (int p = 7; p < argc; p++) {
        for (int i = 0; i < CLIENTS_PER_PROXY; i++) {
            struct client *c = calloc(1, sizeof *c);
            c->io.on_read = on_client;
            c->next.run = on_next;
            c->timer.fire = on_hang;
            dp_io_open(&c->io, loop, tcp_connect((uint16_t)atoi(argv[p])), NULL, false);
            dp_defer(loop, &c->next);
        }
    }
    dp_loop_run(loop);
}
