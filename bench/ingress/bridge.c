/* For the benchmark alone: gives a sandbox's port to programs that do not speak to relays (haproxy, nginx),
 * so that they proxy to the same VM. Listens on a free port of 127.0.0.1, prints it, and opens a relay stream
 * for each connection. Usage: ingress-bridge RELAY_PORT SANDBOX GENERATION PORT TICKET_HEX. */
#include "lib/base/ids.h"
#include "lib/dp/pump.h"
#include "lib/net/preface.h"

#include <arpa/inet.h>
#include <fcntl.h>
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

static struct dp_loop *loop;
static struct preface preface;
static struct sockaddr_in relay;
static uint8_t ticket[32];

struct link {
    struct dp_io client, relay;
    struct half in, out;
    struct dp_task again, bury;
    uint8_t answer[PREFACE_ANSWER_LEN];
    size_t got;
    bool closed;
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
    dp_io_close(&k->client, reset);
    dp_io_close(&k->relay, reset);
    dp_bury(loop, &k->bury);
}

static void link_pump(struct link *k)
{
    while (k->got < PREFACE_ANSWER_LEN) {
        ssize_t n = dp_io_read(&k->relay, k->answer + k->got, PREFACE_ANSWER_LEN - k->got);
        if (n == DP_IO_AGAIN)
            return;
        k->got += n > 0 ? (size_t)n : 0;
        enum preface_status status;
        uint64_t gen;
        if (n <= 0 || (k->got == PREFACE_ANSWER_LEN &&
                       (!preface_answer_decode(k->answer, &status, &gen) || status != PREFACE_OK))) {
            fprintf(stderr, "the relay refused\n");
            link_close(k, true);
            return;
        }
    }
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

static void on_client(struct dp_io *io)
{
    link_pump(LINK_OF(io, client));
}

static void on_relay(struct dp_io *io)
{
    link_pump(LINK_OF(io, relay));
}

static void on_accept(struct dp_watch *w, uint32_t events)
{
    int one = 1, fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct link *k = calloc(1, sizeof *k);
    if (k == NULL || to < 0 || connect(to, (struct sockaddr *)&relay, sizeof relay) != 0) {
        perror("connecting to the relay");
        exit(1);
    }
    fcntl(to, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *k = (struct link){.client = {.on_read = on_client, .on_drain = on_client},
                       .relay = {.on_read = on_relay, .on_drain = on_relay},
                       .again = {.run = on_again},
                       .bury = {.run = on_bury}};
    k->in = (struct half){.from = &k->client, .to = &k->relay, .pipe = {-1, -1}};
    k->out = (struct half){.from = &k->relay, .to = &k->client, .pipe = {-1, -1}};
    uint8_t bytes[PREFACE_LEN];
    preface.expiry_s = (uint32_t)time(NULL) + 30;
    preface.nonce++;
    preface_encode(&preface, ticket, bytes);
    dp_io_open(&k->relay, loop, to, NULL, false);
    dp_io_write(&k->relay, bytes, sizeof bytes);
    dp_io_open(&k->client, loop, fd, NULL, false);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    signal(SIGPIPE, SIG_IGN);
    if (argc != 6 || strlen(argv[2]) > sizeof preface.sandbox || !hex_decode(argv[5], ticket, sizeof ticket))
        return 2;
    relay = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)atoi(argv[1])),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    preface.gen = strtoull(argv[3], NULL, 10);
    preface.port = (uint16_t)atoi(argv[4]);
    memcpy(preface.sandbox, argv[2], strlen(argv[2]));
    loop = dp_loop_new();
    struct dp_watch listener = {.ready = on_accept, .fd = dp_listen("127.0.0.1:0", false, &e)};
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    if (listener.fd < 0 || getsockname(listener.fd, (struct sockaddr *)&sa, &len) != 0)
        return 1;
    printf("%u\n", ntohs(sa.sin_port));
    fflush(stdout);
    dp_watch_add(loop, &listener, DP_WATCH_LISTEN);
    dp_loop_run(loop);
}
