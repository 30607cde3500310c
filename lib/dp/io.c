/* Owns a socket, its TLS state and the bytes the kernel did not take. Invariant: while `out` is not empty
 * every further byte goes behind it, so order is kept; the buffer is given back as soon as it is empty. */
#include "lib/dp/io.h"

#include "lib/base/sockaddr.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- memory ---- */

enum { CLASSES = 4, CACHED = 64 };
static const uint32_t class_size[CLASSES] = {4096, 16384, 32768, 65536};
static _Thread_local struct {
    char *block[CLASSES][CACHED];
    int count[CLASSES];
    size_t held;
} cache;

char *dp_mem_get(size_t n, uint32_t *cap)
{
    for (int c = 0; c < CLASSES; c++) {
        if (n > class_size[c])
            continue;
        n = class_size[c];
        break;
    }
    *cap = (uint32_t)n;
    char *p = NULL;
    for (int c = 0; c < CLASSES && p == NULL; c++)
        if (n == class_size[c] && cache.count[c])
            p = cache.block[c][--cache.count[c]];
    if (p == NULL)
        p = malloc(n);
    cache.held += p ? n : 0;
    return p;
}

void dp_mem_put(char *p, uint32_t cap)
{
    cache.held -= p ? cap : 0;
    for (int c = 0; p && c < CLASSES; c++) {
        if (cap == class_size[c] && cache.count[c] < (cap > 16384 ? CACHED / 4 : CACHED)) {
            cache.block[c][cache.count[c]++] = p;
            return;
        }
    }
    free(p);
}

size_t dp_mem_held(void)
{
    return cache.held;
}

void dp_mem_count(size_t before, size_t after)
{
    cache.held += after - before;
}

/* ---- the kernel's buffers ---- */

enum { CHECK_EVERY = 262144 };
static int receive_limit, unsent_limit; /* set before the first stream; 0: none */

void dp_io_limit(int64_t bytes, int64_t unsent)
{
    unsigned long long allowed = 0;
    FILE *f = fopen("/proc/sys/net/core/rmem_max", "re");
    if (f && fscanf(f, "%llu", &allowed) != 1)
        allowed = 0;
    if (f)
        fclose(f);
    receive_limit = allowed * 2 >= (unsigned long long)bytes ? (int)bytes : 0;
    unsent_limit = (int)unsent;
}

void dp_io_limit_sending(int fd)
{
    if (unsent_limit)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_limit, sizeof unsent_limit);
}

void dp_io_unpaced(int fd, const struct sockaddr *address)
{
    static const char name[] = "reno"; /* built in, and allowed to everybody */
    if (sockaddr_is_local(address))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, sizeof name - 1);
}

void dp_io_unix_room(int fd)
{
    int size;
    socklen_t len = sizeof size;
    if (unsent_limit && getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, &len) == 0 && unsent_limit > size / 2)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &unsent_limit, sizeof unsent_limit);
}

static void received(struct dp_io *io, size_t got)
{
    int size, half = receive_limit / 2; /* the kernel doubles what it is given */
    socklen_t len = sizeof size;
    io->got += got;
    if (receive_limit == 0 || (io->unchecked += (uint32_t)got) < CHECK_EVERY)
        return;
    io->unchecked = 0;
    if (getsockopt(io->watch.fd, SOL_SOCKET, SO_RCVBUF, &size, &len) == 0 && size > receive_limit)
        setsockopt(io->watch.fd, SOL_SOCKET, SO_RCVBUF, &half, sizeof half);
}

/* ---- pending output ---- */

static void out_free(struct dp_io *io)
{
    dp_mem_put(io->out, io->out_cap);
    io->out = NULL;
    io->out_off = io->out_len = io->out_cap = 0;
}

static void out_arm(struct dp_io *io)
{
    if (!io->out_armed) {
        io->out_armed = true;
        dp_watch_out(io->loop, &io->watch, true);
    }
}

static void drained(struct dp_io *io)
{
    io->readable = false;
    dp_watch_drained(io->loop, &io->watch);
}

static bool out_append(struct dp_io *io, const char *p, size_t n)
{
    size_t need = (size_t)io->out_len + n;
    if (need > UINT32_MAX / 4)
        return false;
    if (io->out == NULL || io->out_off + need > io->out_cap) {
        if (io->out && need <= io->out_cap) {
            memmove(io->out, io->out + io->out_off, io->out_len);
        } else {
            uint32_t cap;
            /* Room for as much again: many small writes to a peer that does not read must not copy all of it
             * each time. */
            char *q = dp_mem_get(io->out ? need * 2 : need, &cap);
            if (q == NULL)
                return false;
            if (io->out_len)
                memcpy(q, io->out + io->out_off, io->out_len);
            dp_mem_put(io->out, io->out_cap);
            io->out = q;
            io->out_cap = cap;
        }
        io->out_off = 0;
    }
    memcpy(io->out + io->out_off + io->out_len, p, n);
    io->out_len += (uint32_t)n;
    out_arm(io);
    return true;
}

void dp_io_want_write(struct dp_io *io)
{
    io->want_write = true;
    out_arm(io);
}

/* One attempt. Bytes taken (0 = would block), or -1. */
static ssize_t write_some(struct dp_io *io, const struct iovec *iov, int count)
{
    if (io->handshaking)
        return 0;
    if (io->ssl == NULL) {
        struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
        ssize_t n;
        do {
            n = count == 1 ? send(io->watch.fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : sendmsg(io->watch.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        } while (n < 0 && errno == EINTR);
        if (n < 0)
            return errno == EAGAIN || errno == ENOTCONN ? 0 : -1;
        io->sent += (uint64_t)n;
        return n;
    }
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        size_t off = 0;
        while (off < iov[i].iov_len) {
            size_t done = 0;
            ERR_clear_error();
            int rc = SSL_write_ex(io->ssl, (char *)iov[i].iov_base + off, iov[i].iov_len - off, &done);
            if (rc != 1) {
                int why = SSL_get_error(io->ssl, rc);
                if (why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ)
                    return total;
                return -1;
            }
            off += done;
            total += (ssize_t)done;
            io->sent += done;
        }
    }
    return total;
}

static void write_failed(struct dp_io *io)
{
    io->wfailed = true;
    io->failed |= io->ssl != NULL;
    out_free(io);
}

bool dp_io_writev(struct dp_io *io, const struct iovec *iov, int count)
{
    if (io->failed || io->wfailed || io->watch.fd < 0)
        return false;
    char joined[4096];
    struct iovec one;
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += iov[i].iov_len;
    if (total == 0)
        return true;
    if (io->ssl && count > 1 && total <= sizeof joined) {
        /* One TLS record instead of one per piece. */
        size_t off = 0;
        for (int i = 0; i < count; i++) {
            memcpy(joined + off, iov[i].iov_base, iov[i].iov_len);
            off += iov[i].iov_len;
        }
        one = (struct iovec){joined, total};
        iov = &one;
        count = 1;
    }
    ssize_t done = 0;
    if (io->out_len == 0) {
        done = write_some(io, iov, count);
        if (done < 0) {
            write_failed(io);
            return false;
        }
    }
    for (int i = 0; i < count; i++) {
        size_t n = iov[i].iov_len;
        if ((size_t)done >= n) {
            done -= (ssize_t)n;
            continue;
        }
        if (!out_append(io, (char *)iov[i].iov_base + done, n - (size_t)done)) {
            write_failed(io);
            return false;
        }
        done = 0;
    }
    return true;
}

bool dp_io_write(struct dp_io *io, const void *p, size_t n)
{
    return dp_io_writev(io, &(struct iovec){(void *)p, n}, 1);
}

/* ---- reading ---- */

ssize_t dp_io_read(struct dp_io *io, void *p, size_t n)
{
    if (io->failed)
        return DP_IO_FAILED;
    if (io->eof)
        return DP_IO_END;
    if (!io->readable || io->handshaking)
        return DP_IO_AGAIN;
    if (io->ssl == NULL) {
        ssize_t got;
        do {
            got = recv(io->watch.fd, p, n, MSG_DONTWAIT);
        } while (got < 0 && errno == EINTR);
        if (got > 0) {
            received(io, (size_t)got);
            /* A short read emptied the socket; what comes later is a new edge. */
            if ((size_t)got < n && !io->rdhup)
                drained(io);
            return got;
        }
        if (got < 0 && errno == EAGAIN) {
            drained(io);
            return DP_IO_AGAIN;
        }
        if (got == 0) {
            io->eof = true;
            return DP_IO_END;
        }
        io->failed = true;
        return DP_IO_FAILED;
    }
    size_t got = 0;
    ERR_clear_error();
    int rc = SSL_read_ex(io->ssl, p, n, &got);
    if (rc == 1) {
        received(io, got);
        return (ssize_t)got;
    }
    int why = SSL_get_error(io->ssl, rc);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        drained(io);
        return DP_IO_AGAIN;
    }
    if (why == SSL_ERROR_ZERO_RETURN) {
        io->eof = true;
        return DP_IO_END;
    }
    io->failed = true;
    return DP_IO_FAILED;
}

ssize_t dp_io_splice_in(struct dp_io *io, int pipe_fd, size_t n)
{
    if (io->failed)
        return DP_IO_FAILED;
    if (io->eof)
        return DP_IO_END;
    if (!io->readable)
        return DP_IO_AGAIN;
    ssize_t got;
    do {
        got = splice(io->watch.fd, NULL, pipe_fd, NULL, n, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        received(io, (size_t)got);
        return got;
    }
    if (got == 0) {
        io->eof = true;
        return DP_IO_END;
    }
    if (errno == EAGAIN) {
        drained(io);
        return DP_IO_AGAIN;
    }
    io->failed = true;
    return DP_IO_FAILED;
}

void dp_io_settle(struct dp_io *io)
{
    char byte;
    if (!io->readable || io->eof || io->failed || io->handshaking || (io->ssl && SSL_has_pending(io->ssl)))
        return;
    if (recv(io->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN)
        drained(io);
}

/* ---- closing ---- */

static void shutdown_now(struct dp_io *io)
{
    io->shut = true;
    if (io->ssl) {
        ERR_clear_error();
        SSL_shutdown(io->ssl);
    }
    shutdown(io->watch.fd, SHUT_WR);
}

void dp_io_mute(struct dp_io *io)
{
    io->failed = io->wfailed = true;
    io->want_write = false;
    out_free(io);
}

void dp_io_shutdown(struct dp_io *io)
{
    if (io->watch.fd < 0 || io->shut || io->shut_wanted)
        return;
    io->shut_wanted = true;
    if (io->out_len == 0 && !io->handshaking)
        shutdown_now(io);
}

void dp_io_close(struct dp_io *io, bool reset)
{
    if (io->watch.fd < 0)
        return;
    if (reset) {
        struct linger hard = {.l_onoff = 1};
        setsockopt(io->watch.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    if (io->ssl) {
        ERR_clear_error();
        if (!reset && !io->failed && !io->shut && !io->handshaking)
            SSL_shutdown(io->ssl);
        SSL_free(io->ssl);
        io->ssl = NULL;
    }
    out_free(io);
    dp_watch_close(io->loop, &io->watch);
}

/* ---- events ---- */

static bool out_flush(struct dp_io *io)
{
    while (io->out_len) {
        struct iovec v = {io->out + io->out_off, io->out_len};
        ssize_t n = write_some(io, &v, 1);
        if (n < 0) {
            write_failed(io);
            return false;
        }
        if (n == 0)
            return false;
        io->out_off += (uint32_t)n;
        io->out_len -= (uint32_t)n;
    }
    out_free(io);
    if (io->out_armed && io->on_demand)
        dp_watch_out(io->loop, &io->watch, false);
    io->out_armed = false;
    if (io->shut_wanted && !io->shut)
        shutdown_now(io);
    return true;
}

/* Whether the handshake is over (also by failure). */
static bool handshake_step(struct dp_io *io)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(io->ssl);
    if (rc == 1) {
        io->handshaking = false;
        io->readable = true;
        return true;
    }
    int why = SSL_get_error(io->ssl, rc);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        drained(io);
        if (why == SSL_ERROR_WANT_WRITE)
            dp_watch_out(io->loop, &io->watch, true);
        return false;
    }
    io->handshaking = false;
    io->failed = true;
    return true;
}

static void on_event(struct dp_watch *w, uint32_t events)
{
    struct dp_io *io = (struct dp_io *)w;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        io->rdhup = true;
    if (io->handshaking) {
        if (!handshake_step(io))
            return;
        events |= EPOLLIN | EPOLLOUT;
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        io->readable = true;
    if ((io->out_len || io->want_write) && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))) {
        if (out_flush(io) && io->on_drain) {
            io->want_write = false;
            io->on_drain(io);
        }
        if (io->watch.fd < 0)
            return;
        if (io->out_len && io->out_armed && (events & EPOLLOUT)) {
            io->out_armed = false; /* asked for once per wait */
            out_arm(io);
        }
        if (io->failed || io->wfailed)
            io->readable = true;
    }
    if (io->readable && io->on_read)
        io->on_read(io);
}

int dp_io_open(struct dp_io *io, struct dp_loop *l, int fd, SSL *ssl, bool on_demand)
{
    void (*on_read)(struct dp_io *) = io->on_read, (*on_drain)(struct dp_io *) = io->on_drain;
    *io = (struct dp_io){.watch = {.ready = on_event, .fd = fd},
                         .loop = l,
                         .ssl = ssl,
                         .on_demand = on_demand,
                         .on_read = on_read,
                         .on_drain = on_drain,
                         .handshaking = ssl != NULL};
    if (ssl && SSL_set_fd(ssl, fd) != 1)
        return -1;
    if (dp_watch_add(l, &io->watch, on_demand ? DP_WATCH_IN : DP_WATCH_ALL) != 0)
        return -1;
    if (ssl)
        dp_watch_out(l, &io->watch, true); /* a client has to speak first */
    return 0;
}

void dp_io_move(struct dp_io *to, struct dp_io *from)
{
    void (*on_read)(struct dp_io *) = to->on_read, (*on_drain)(struct dp_io *) = to->on_drain;
    *to = *from;
    to->on_read = on_read;
    to->on_drain = on_drain;
    dp_watch_moved(to->loop, &to->watch);
    from->watch.fd = -1;
    from->watch.handle = NULL;
    from->ssl = NULL;
    from->out = NULL;
    from->out_off = from->out_len = from->out_cap = 0;
}
