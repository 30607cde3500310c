/* Owns one stream: preface check in the order of internal.md §5, connection to the guest, then the two pumps.
 * Invariant: not one byte of the client reaches a guest before the MAC was verified, and the answer `ok` is
 * sent only after the guest has accepted. */
#include "node/relay/relay.h"

#include "lib/base/ids.h"
#include "lib/base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* STREAM_QUEUE: the VMM has not accepted as many connections as wait for it already. */
enum stream_state { STREAM_PREFACE, STREAM_QUEUE, STREAM_CONNECT, STREAM_OPEN, STREAM_CLOSED };
enum { QUEUE_RETRY_MS = 8 };

struct stream {
    struct relay *relay;
    struct dp_io proxy, guest;
    enum stream_state state;
    uint8_t preface[PREFACE_LEN];
    size_t got;
    struct ticket *ticket; /* counted in ticket->open from CONNECT on */
    uint64_t gen;
    uint16_t port;
    int64_t deadline_ms; /* of preface and guest connect */
    struct half in, out;
    struct dp_timer timer;
    struct dp_task again, bury;
};

#define STREAM_OF(ptr, member) ((struct stream *)((char *)(ptr)-offsetof(struct stream, member)))

static void on_bury(struct dp_task *t)
{
    struct stream *s = STREAM_OF(t, bury);
    if (s->again.queued)
        dp_bury(s->relay->loop, t);
    else
        free(s);
}

static void account(struct stream *s)
{
    uint64_t n = s->in.bytes + s->out.bytes;
    if (n == 0)
        return;
    s->ticket->bytes += n;
    s->ticket->last_ms = dp_now_ms(s->relay->loop);
    s->relay->bytes_in += s->in.bytes;
    s->relay->bytes_out += s->out.bytes;
    s->in.bytes = s->out.bytes = 0;
}

static void stream_close(struct stream *s, bool reset)
{
    if (s->state == STREAM_CLOSED)
        return;
    s->state = STREAM_CLOSED;
    dp_timer_stop(&s->timer);
    pump_release(&s->in);
    pump_release(&s->out);
    if (s->ticket)
        s->ticket->open--;
    s->relay->open--;
    dp_io_close(&s->proxy, reset);
    dp_io_close(&s->guest, reset);
    dp_bury(s->relay->loop, &s->bury);
    if (s->relay->draining && s->relay->open == 0)
        dp_loop_stop(s->relay->loop);
}

static void stream_refuse(struct stream *s, enum preface_status status, uint64_t gen)
{
    uint8_t answer[PREFACE_ANSWER_LEN];
    s->relay->refused[status & 7]++;
    preface_answer_encode(status, gen, answer);
    dp_io_write(&s->proxy, answer, sizeof answer);
    stream_close(s, false);
}

/* ---- open: pumping ---- */

static void stream_pump(struct stream *s)
{
    enum pump_result in = pump_half(&s->in), out = pump_half(&s->out);
    account(s);
    if (in == PUMP_FAILED || out == PUMP_FAILED) {
        stream_close(s, true);
        return;
    }
    if (pump_over(&s->in, &s->out)) {
        stream_close(s, false);
        return;
    }
    if (in == PUMP_AGAIN || out == PUMP_AGAIN)
        dp_defer(s->relay->loop, &s->again);
}

static void on_again(struct dp_task *t)
{
    struct stream *s = STREAM_OF(t, again);
    if (s->state == STREAM_OPEN)
        stream_pump(s);
}

/* ---- guest side ---- */

static void on_guest_status(struct stream *s)
{
    uint8_t status;
    ssize_t n = dp_io_read(&s->guest, &status, 1);
    if (n == DP_IO_AGAIN)
        return;
    if (n != 1) {
        stream_refuse(s, PREFACE_NOT_READY, s->gen);
        return;
    }
    if (status != PREFACE_OK) {
        stream_refuse(s, status == PREFACE_PORT_CLOSED ? PREFACE_PORT_CLOSED : PREFACE_NOT_READY, s->gen);
        return;
    }
    uint8_t answer[PREFACE_ANSWER_LEN];
    preface_answer_encode(PREFACE_OK, s->gen, answer);
    s->state = STREAM_OPEN;
    dp_timer_stop(&s->timer);
    if (!dp_io_write(&s->proxy, answer, sizeof answer)) {
        stream_close(s, true);
        return;
    }
    stream_pump(s);
}

static void on_guest_read(struct dp_io *io)
{
    struct stream *s = STREAM_OF(io, guest);
    if (s->state == STREAM_CONNECT)
        on_guest_status(s);
    else if (s->state == STREAM_OPEN)
        stream_pump(s);
}

static void on_drain_guest(struct dp_io *io)
{
    struct stream *s = STREAM_OF(io, guest);
    if (s->state == STREAM_OPEN)
        stream_pump(s);
}

static void guest_connect(struct stream *s)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s/sb/%s/%llu/in.sock", s->relay->cfg.run_dir,
             s->ticket->sandbox, (unsigned long long)s->gen);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&un, sizeof un) != 0) {
        bool full = fd >= 0 && errno == EAGAIN; /* a Unix socket says so at once instead of waiting */
        if (fd >= 0)
            close(fd);
        if (full && dp_now_ms(s->relay->loop) < s->deadline_ms) {
            s->state = STREAM_QUEUE;
            dp_timer_start(s->relay->loop, &s->timer, QUEUE_RETRY_MS);
            return;
        }
        stream_refuse(s, PREFACE_NOT_READY, s->gen);
        return;
    }
    s->guest.on_read = on_guest_read;
    s->guest.on_drain = on_drain_guest;
    if (dp_io_open(&s->guest, s->relay->loop, fd, NULL, true) != 0) {
        stream_close(s, true);
        return;
    }
    s->state = STREAM_CONNECT;
    dp_timer_start(s->relay->loop, &s->timer, s->deadline_ms - dp_now_ms(s->relay->loop));
    s->in = (struct half){.from = &s->proxy, .to = &s->guest, .pipe = {-1, -1}};
    s->out = (struct half){.from = &s->guest, .to = &s->proxy, .pipe = {-1, -1}};
    uint8_t be[2] = {(uint8_t)(s->port >> 8), (uint8_t)s->port};
    dp_io_write(&s->guest, be, sizeof be);
}

/* ---- proxy side ---- */

static void preface_complete(struct stream *s)
{
    struct preface p;
    char id[sizeof p.sandbox + 1] = {0};
    if (!preface_decode(s->preface, &p)) {
        stream_close(s, true);
        return;
    }
    memcpy(id, p.sandbox, sizeof p.sandbox);
    struct ticket *t = id_sandbox_valid(id, strlen(id)) ? ticket_find(s->relay, id) : NULL;
    if (t == NULL) {
        stream_refuse(s, PREFACE_UNKNOWN, 0);
        return;
    }
    if (p.gen != t->gen) {
        stream_refuse(s, PREFACE_STALE, t->gen);
        return;
    }
    enum preface_status status = preface_check(s->preface, t->key, (uint32_t)time(NULL));
    if (status == PREFACE_OK && p.port == 0)
        status = PREFACE_PORT_CLOSED;
    if (status == PREFACE_OK && (t->open >= s->relay->cfg.max_streams_per_sandbox))
        status = PREFACE_LIMIT;
    if (status != PREFACE_OK) {
        stream_refuse(s, status, t->gen);
        return;
    }
    s->gen = t->gen;
    s->ticket = t;
    t->open++;
    t->streams++;
    s->port = p.port;
    guest_connect(s);
}

static void on_proxy_read(struct dp_io *io)
{
    struct stream *s = STREAM_OF(io, proxy);
    if (s->state == STREAM_OPEN) {
        stream_pump(s);
        return;
    }
    if (s->state == STREAM_CONNECT || s->state == STREAM_QUEUE) {
        /* Nothing may come before `ok`; what shows here is the proxy giving up. */
        if (io->rdhup)
            stream_close(s, true);
        return;
    }
    while (s->got < PREFACE_LEN) {
        ssize_t n = dp_io_read(io, s->preface + s->got, PREFACE_LEN - s->got);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            stream_close(s, n != DP_IO_END);
            return;
        }
        s->got += (size_t)n;
    }
    preface_complete(s);
}

static void on_drain_proxy(struct dp_io *io)
{
    struct stream *s = STREAM_OF(io, proxy);
    if (s->state == STREAM_OPEN)
        stream_pump(s);
}

static void on_timeout(struct dp_timer *t)
{
    struct stream *s = STREAM_OF(t, timer);
    if (s->state == STREAM_QUEUE)
        guest_connect(s);
    else if (s->state == STREAM_CONNECT)
        stream_refuse(s, PREFACE_NOT_READY, s->gen);
    else
        stream_close(s, true);
}

void stream_start(struct relay *r, int fd)
{
    struct stream *s = r->open < (uint64_t)r->cfg.max_streams ? calloc(1, sizeof *s) : NULL;
    SSL *ssl = s && r->tls ? SSL_new(r->tls) : NULL;
    if (s == NULL || (r->tls && ssl == NULL)) {
        free(s);
        close(fd);
        return;
    }
    if (ssl)
        SSL_set_accept_state(ssl);
    s->relay = r;
    s->guest.watch.fd = -1;
    s->in.pipe[0] = s->in.pipe[1] = s->out.pipe[0] = s->out.pipe[1] = -1;
    s->proxy.on_read = on_proxy_read;
    s->proxy.on_drain = on_drain_proxy;
    s->timer.fire = on_timeout;
    s->again.run = on_again;
    s->bury.run = on_bury;
    r->open++;
    r->accepted++;
    if (dp_io_open(&s->proxy, r->loop, fd, ssl, false) != 0) {
        stream_close(s, true);
        return;
    }
    s->deadline_ms = dp_now_ms(r->loop) + r->cfg.handshake_timeout_ms;
    dp_timer_start(r->loop, &s->timer, r->cfg.handshake_timeout_ms);
}
