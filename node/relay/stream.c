/* Owns one stream: preface check in the order of internal.md §5, connection to the guest, then the two pumps.
 * Invariant: not one byte of the client reaches a guest before the MAC was verified, and the answer `ok` is
 * sent only after the guest has accepted. */
#include "node/relay/relay.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

enum stream_state { STREAM_PREFACE, STREAM_CONNECT, STREAM_OPEN, STREAM_CLOSED };

struct stream {
    struct relay *relay;
    struct dp_io proxy;
    struct door door; /* to the guest */
    enum stream_state state;
    uint8_t preface[PREFACE_LEN];
    size_t got;
    struct ticket *ticket; /* counted in ticket->open from CONNECT on */
    int64_t deadline_ms;   /* of preface and guest connect */
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
    relay_moved(s->relay, s->ticket, s->in.bytes, s->out.bytes);
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
    dp_io_close(&s->proxy, reset);
    door_close(&s->door, reset);
    dp_bury(s->relay->loop, &s->bury);
    relay_leave(s->relay, s->ticket);
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

static void on_guest_ready(struct dp_io *io)
{
    struct stream *s = STREAM_OF(io, door.io);
    if (s->state == STREAM_OPEN)
        stream_pump(s);
}

static void on_door(struct door *d, enum preface_status status)
{
    struct stream *s = STREAM_OF(d, door);
    if (status != PREFACE_OK) {
        stream_refuse(s, status, d->gen);
        return;
    }
    uint8_t answer[PREFACE_ANSWER_LEN];
    preface_answer_encode(PREFACE_OK, d->gen, answer);
    s->state = STREAM_OPEN;
    d->io.on_read = d->io.on_drain = on_guest_ready;
    s->in = (struct half){.from = &s->proxy, .to = &d->io, .pipe = {-1, -1}};
    s->out = (struct half){.from = &d->io, .to = &s->proxy, .pipe = {-1, -1}};
    if (!dp_io_write(&s->proxy, answer, sizeof answer)) {
        stream_close(s, true);
        return;
    }
    stream_pump(s);
}

/* ---- proxy side ---- */

static void preface_complete(struct stream *s)
{
    struct preface p;
    struct ticket *t;
    uint64_t gen;
    uint16_t port;
    if (!preface_decode(s->preface, &p)) {
        stream_close(s, true);
        return;
    }
    enum preface_status status = relay_admit(s->relay, &p, s->preface, &t, &gen, &port);
    if (status != PREFACE_OK) {
        stream_refuse(s, status, gen);
        return;
    }
    s->ticket = t;
    s->state = STREAM_CONNECT;
    dp_timer_stop(&s->timer); /* the door has its own */
    relay_enter(t);
    door_open(&s->door, s->relay, t, port, s->deadline_ms);
}

static void on_proxy_read(struct dp_io *io)
{
    struct stream *s = STREAM_OF(io, proxy);
    if (s->state == STREAM_OPEN) {
        stream_pump(s);
        return;
    }
    if (s->state == STREAM_CONNECT) {
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
    stream_close(STREAM_OF(t, timer), true);
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
    s->door.io.watch.fd = -1;
    s->door.opened = on_door;
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
