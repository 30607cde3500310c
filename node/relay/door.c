/* Makes the connection to a port of a guest (internal.md §5): in.sock of the generation, the port, one status
 * byte. Invariant: `opened` is called once per door_open, unless the owner closes the door before. */
#include "node/relay/relay.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { QUEUE_RETRY_MS = 8 };

void door_close(struct door *d, bool reset)
{
    dp_timer_stop(&d->timer);
    dp_io_close(&d->io, reset);
}

static void answer(struct door *d, enum preface_status status)
{
    dp_timer_stop(&d->timer);
    if (status != PREFACE_OK)
        door_close(d, false);
    d->opened(d, status);
}

static void on_status(struct dp_io *io)
{
    struct door *d = (struct door *)((char *)io - offsetof(struct door, io));
    uint8_t status = PREFACE_NOT_READY;
    ssize_t n = dp_io_read(io, &status, 1);
    if (n == DP_IO_AGAIN)
        return;
    answer(d, n == 1 && (status == PREFACE_OK || status == PREFACE_PORT_CLOSED) ? (enum preface_status)status
                                                                                : PREFACE_NOT_READY);
}

static void knock(struct door *d)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int64_t left = d->deadline_ms - dp_now_ms(d->relay->loop);
    snprintf(un.sun_path, sizeof un.sun_path, "%s/sb/%s/%llu/in.sock", d->relay->cfg.run_dir, d->sandbox,
             (unsigned long long)d->gen);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&un, sizeof un) != 0) {
        bool full = fd >= 0 && errno == EAGAIN; /* a Unix socket says so at once instead of waiting */
        if (fd >= 0)
            close(fd);
        if (full && left > 0)
            dp_timer_start(d->relay->loop, &d->timer, QUEUE_RETRY_MS);
        else
            answer(d, PREFACE_NOT_READY);
        return;
    }
    dp_io_unix_room(fd);
    if (dp_io_open(&d->io, d->relay->loop, fd, NULL, true) != 0) {
        answer(d, PREFACE_NOT_READY);
        return;
    }
    dp_timer_start(d->relay->loop, &d->timer, left);
    uint8_t be[2] = {(uint8_t)(d->port >> 8), (uint8_t)d->port};
    dp_io_write(&d->io, be, sizeof be);
}

static void on_timer(struct dp_timer *t)
{
    struct door *d = (struct door *)((char *)t - offsetof(struct door, timer));
    if (dp_io_is_open(&d->io))
        answer(d, PREFACE_NOT_READY); /* no status within the time */
    else
        knock(d);
}

void door_open(struct door *d, struct relay *r, const struct ticket *t, uint16_t port, int64_t deadline_ms)
{
    d->relay = r;
    memcpy(d->sandbox, t->sandbox, sizeof d->sandbox);
    d->gen = t->gen;
    d->port = port;
    d->deadline_ms = deadline_ms;
    d->timer.fire = on_timer;
    d->io.watch.fd = -1;
    d->io.on_read = on_status;
    d->io.on_drain = NULL;
    knock(d);
}
