/* Moves bytes from one side of a stream to the other: small messages by copying through the stack, bulk by
 * splice(2) through a pipe. Invariant: the pipe is the only buffer, it is emptied before the next read, and
 * an idle stream holds none. */
#include "lib/dp/pump.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Each page of a socket's buffer takes a slot of the pipe, so a pipe of the default size would move 64 KiB. A
 * full one wakes the peer once per MiB: where a wake-up costs 50 us, that is what bounds a fast transfer. */
enum { CHUNK = 1 << 20, CHUNK_LESS = 262144, TURN_MAX = 2 << 20 };
enum { BULK_MIN = 65536, COPY = 16384, ROUNDS = 8, PIPES = 32 };
static _Thread_local struct {
    int fds[PIPES][2];
    int count;
} spare;

static bool pipe_borrow(struct half *h)
{
    if (h->pipe[0] >= 0)
        return true;
    if (spare.count) {
        memcpy(h->pipe, spare.fds[--spare.count], sizeof h->pipe);
        return true;
    }
    if (pipe2(h->pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        h->pipe[0] = h->pipe[1] = -1;
        return false;
    }
    /* Where the user's pages for pipes are used up (64 MiB by default) it stays small, and works all the
     * same.
     */
    if (fcntl(h->pipe[1], F_SETPIPE_SZ, CHUNK) < 0)
        (void)fcntl(h->pipe[1], F_SETPIPE_SZ, CHUNK_LESS);
    return true;
}

void pump_release(struct half *h)
{
    if (h->pipe[0] < 0)
        return;
    if (h->in_pipe == 0 && spare.count < PIPES) {
        memcpy(spare.fds[spare.count++], h->pipe, sizeof h->pipe);
    } else {
        close(h->pipe[0]);
        close(h->pipe[1]);
    }
    h->pipe[0] = h->pipe[1] = -1;
    h->in_pipe = 0;
}

/* Empties the pipe. PUMP_AGAIN = it is empty. */
static enum pump_result pipe_flush(struct half *h)
{
    while (h->in_pipe) {
        if (h->to->failed || h->to->wfailed)
            return PUMP_FAILED;
        ssize_t n =
            splice(h->pipe[0], NULL, h->to->watch.fd, NULL, h->in_pipe, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            dp_io_want_write(h->to);
            return PUMP_WAIT;
        }
        if (n <= 0)
            return PUMP_FAILED;
        h->in_pipe -= (uint32_t)n;
        h->to->sent += (uint64_t)n;
    }
    return PUMP_AGAIN;
}

static enum pump_result finish(struct half *h)
{
    pump_release(h);
    h->done = true;
    dp_io_shutdown(h->to);
    return PUMP_DONE;
}

/* The destination takes nothing more. What it said before is still to be read by the other direction (a
 * service that refuses an upload answers and closes), so this one does not end the stream: it goes on without
 * effect. */
static enum pump_result write_lost(struct half *h)
{
    pump_release(h);
    h->bulk = false;
    h->to->wfailed = true;
    h->to->want_write = false;
    return PUMP_AGAIN;
}

static enum pump_result copy_once(struct half *h)
{
    char bytes[COPY];
    ssize_t n = dp_io_read(h->from, bytes, sizeof bytes);
    if (n == DP_IO_AGAIN)
        return PUMP_WAIT;
    if (n == DP_IO_END)
        return finish(h);
    if (n < 0)
        return PUMP_FAILED;
    h->bytes += (uint64_t)n;
    if (h->to->wfailed)
        return PUMP_AGAIN;
    h->bulk = n == sizeof bytes && h->from->ssl == NULL && h->to->ssl == NULL;
    return dp_io_write(h->to, bytes, (size_t)n) ? PUMP_AGAIN : write_lost(h);
}

enum pump_result pump_bulk(struct half *h, uint64_t *left)
{
    uint64_t moved = 0;
    for (int i = 0; i < ROUNDS && moved < TURN_MAX; i++) {
        enum pump_result r = pipe_flush(h);
        if (r != PUMP_AGAIN)
            return r;
        if (*left == 0) {
            pump_release(h);
            return PUMP_DONE;
        }
        if (dp_io_blocked(h->to))
            return PUMP_WAIT;
        ssize_t n = pipe_borrow(h) ? dp_io_splice_in(h->from, h->pipe[1], *left < CHUNK ? *left : CHUNK)
                                   : DP_IO_FAILED;
        if (n == DP_IO_AGAIN) {
            /* A stream that is as fast as we stays here; a slow one is cheaper to copy. */
            h->bulk = moved >= BULK_MIN;
            pump_release(h);
            return PUMP_WAIT;
        }
        if (n <= 0) {
            h->bulk = false;
            pump_release(h);
            return PUMP_COPY; /* whose read says what is the matter */
        }
        h->in_pipe = (uint32_t)n;
        h->bytes += (uint64_t)n;
        *left -= (uint64_t)n;
        moved += (uint64_t)n;
    }
    return PUMP_AGAIN;
}

enum pump_result pump_half(struct half *h)
{
    uint64_t unlimited = UINT64_MAX;
    if (h->done)
        return PUMP_DONE;
    if (h->bulk || h->in_pipe) {
        enum pump_result r = pump_bulk(h, &unlimited);
        if (r == PUMP_FAILED)
            return write_lost(h);
        if (r != PUMP_COPY)
            return r;
    }
    for (int i = 0; i < ROUNDS; i++) {
        if (dp_io_blocked(h->to))
            return PUMP_WAIT;
        enum pump_result r = copy_once(h);
        if (r != PUMP_AGAIN || h->bulk)
            return r;
    }
    return PUMP_AGAIN;
}
