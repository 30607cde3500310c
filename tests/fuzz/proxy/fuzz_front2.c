/* The proxy's HTTP/2 front with everything behind it, on a real loop: the first byte says how many 16-byte
 * pieces are what the relay and the service answer, the rest is what the client sends behind its preface.
 * Afterwards no connection is left and no byte is held. */
#include "proxy/proxy.h"

#include "lib/net/preface.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char known[] = "i0aaaaaaaaaaaaaaaaaaa"; /* runs; every other sandbox does not exist */
static struct proxy proxy;
static struct worker worker;
static struct dp_watch service;
static struct sockaddr_storage address;
static socklen_t address_len = sizeof address;
static const uint8_t *answer;
static size_t answer_len;
static int served[64], served_count;

/* ---- in the place of the control thread ---- */

struct found {
    struct dp_msg msg;
    char sandbox[SANDBOX_ID_LEN + 1];
};

static void on_found(struct dp_msg *m)
{
    struct found *f = (struct found *)m;
    struct route r = {.state = ROUTE_NONE};
    memcpy(r.sandbox, f->sandbox, sizeof r.sandbox);
    if (strcmp(f->sandbox, known) == 0) {
        r.state = ROUTE_RUNNING;
        r.gen = 1;
        r.relay = address;
        r.relay_len = address_len;
    }
    sandbox_looked_up(&worker, &r, NULL);
    free(f);
}

void control_lookup(struct worker *w, const char *sandbox)
{
    struct found *f = calloc(1, sizeof *f);
    f->msg.run = on_found;
    memcpy(f->sandbox, sandbox, strlen(sandbox) + 1);
    dp_post(w->loop, &f->msg);
}

void control_wake(struct worker *w, const char *sandbox, uint64_t gen_seen, const char *trace)
{
    abort(); /* nothing sleeps */
}

void control_worker_ended(struct proxy *p)
{
}

/* ---- relay and service ---- */

static void on_service(struct dp_watch *w, uint32_t events)
{
    for (int fd; (fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        uint8_t ok[PREFACE_ANSWER_LEN];
        preface_answer_encode(PREFACE_OK, 1, ok);
        if (served_count == 64 || write(fd, ok, sizeof ok) != sizeof ok ||
            (answer_len && write(fd, answer, answer_len) != (ssize_t)answer_len)) {
            close(fd);
            continue;
        }
        served[served_count++] = fd; /* open until the end: what is sent there is not looked at */
    }
}

/* ---- turns of the loop ---- */

static void on_turned(struct dp_msg *m)
{
    dp_loop_stop(worker.loop);
}

static void turn(void)
{
    static struct dp_msg stop = {.run = on_turned};
    dp_post(worker.loop, &stop);
    dp_loop_run(worker.loop);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct err e = {0};
    signal(SIGPIPE, SIG_IGN);
    proxy.cfg = (struct proxy_config){.domain = "cube.test",
                                      .max_per_sandbox = 100,
                                      .max_per_client = 100,
                                      .max_buffered = 64 << 20,
                                      .head_timeout_ms = 30000,
                                      .body_timeout_ms = 30000,
                                      .body_min_rate = 500,
                                      .keepalive_timeout_ms = 30000,
                                      .idle_timeout_ms = 30000,
                                      .connect_timeout_ms = 30000,
                                      .wake_timeout_ms = 30000};
    proxy.routes = route_cache_new();
    proxy.workers = &worker;
    proxy.worker_count = 1;
    worker.proxy = &proxy;
    worker.loop = dp_loop_new();
    worker.routes = route_reader_new(proxy.routes);
    memory_init(&worker);
    retire_init(&worker);
    stats_init();
    service = (struct dp_watch){.ready = on_service, .fd = dp_listen("127.0.0.1:0", false, &e)};
    if (worker.loop == NULL || worker.routes == NULL || service.fd < 0 ||
        getsockname(service.fd, (struct sockaddr *)&address, &address_len) != 0 ||
        dp_watch_add(worker.loop, &service, DP_WATCH_LISTEN) != 0)
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char key[17] = "\1client";
    static char sink[65536];
    int ends[2];
    answer_len = size ? data[0] * 16u : 0;
    if (size == 0 || size > 32768 || answer_len >= size ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return 0;
    answer = data + 1;
    front1_start(&worker, ends[0], NULL, share_enter(key, sizeof key, 100), "192.0.2.1");
    const uint8_t *bytes = data + 1 + answer_len;
    size_t left = size - 1 - answer_len;
    if (write(ends[1], preface, sizeof preface - 1) != sizeof preface - 1)
        abort();
    for (int i = 0; i < 12; i++) { /* in two pieces; then there is time for answers */
        size_t n = i == 0 ? left / 2 : left;
        ssize_t put = write(ends[1], bytes, n);
        if (put > 0) {
            bytes += put;
            left -= (size_t)put;
        }
        turn();
        while (read(ends[1], sink, sizeof sink) > 0)
            ;
        if (worker.fronts == 0)
            break;
    }
    close(ends[1]);
    for (int i = 0; i < 20 && worker.fronts; i++)
        turn();
    sandbox_changed(&worker, known, 2, ROUTE_NONE); /* closes the connections that are kept */
    turn();
    while (served_count)
        close(served[--served_count]);
    turn();
    if (worker.fronts || dp_mem_held())
        abort();
    return 0;
}
