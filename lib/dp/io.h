/* A byte stream on a socket, plain or TLS, for the data-plane loop: bounded reads into the caller's memory,
 * writes that keep what the kernel does not take, half-close. An idle stream owns no buffer. */
#pragma once

#include "lib/dp/loop.h"

#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct dp_io {
    struct dp_watch watch; /* first member */
    struct dp_loop *loop;
    SSL *ssl;
    char *out; /* bytes that the kernel has not taken yet */
    uint32_t out_off, out_len, out_cap;
    bool readable;          /* a read may bring something: cleared when the kernel said EAGAIN */
    bool rdhup;             /* the peer has closed its side: read on to see the end */
    bool eof;               /* a read has returned the end */
    bool failed;            /* reset, or a TLS error: nothing more in either direction */
    bool wfailed;           /* writing failed; what the peer has sent can still be read */
    bool shut, shut_wanted; /* our half-close: done, or due after the last pending byte */
    bool handshaking;       /* TLS not ready yet; on_read is first called when it is */
    bool on_demand; /* EPOLLOUT is asked for only while blocked (unix sockets report it per message) */
    bool out_armed;
    bool want_write;    /* dp_io_want_write was called */
    uint64_t got, sent; /* bytes that have passed, as the kernel counts them (with TLS: of the payload) */
    uint32_t unchecked; /* bytes read since the receive buffer was looked at */
    /** There is something to read (or the end, or a failure). Called once per edge: read until `readable` is
     * false or stop and call again yourself later. */
    void (*on_read)(struct dp_io *io);
    /** Everything pending was written. */
    void (*on_drain)(struct dp_io *io);
};

/** Bounds what the kernel holds for one stream, for the process, before the first stream: a receive buffer
 * that has grown past `bytes` (memory, as SO_RCVBUF counts) is brought back and grows no more, so a reader
 * that was fast and then stops cannot make it hold tcp_rmem's maximum; and at most `unsent` bytes wait
 * unsent. Streams that were never fast keep their small buffers. Without effect on receiving where
 * net.core.rmem_max does not allow as much: a smaller fixed buffer would slow distant clients. 0 = as the
 * kernel likes. */
void dp_io_limit(int64_t bytes, int64_t unsent);
/** Applies the bound of sending to a socket; accepted ones inherit it from their listener. */
void dp_io_limit_sending(int fd);
/** Before connect or listen: a congestion control that does not pace, where `address`, the other end or what
 * is listened on, is loopback. With one that does (bbr as the host's default) each burst of a fast transfer
 * waits for a timer, which costs more of the processor than its bytes, and there is no path to probe for.
 * Later is too late: a connection that was paced once stays so. */
void dp_io_unpaced(int fd, const struct sockaddr *address);
/** A Unix stream's send buffer never grows by itself and begins with 208 KiB: makes it the bound of what is
 * unsent (as SO_SNDBUF counts; the kernel doubles it), where net.core.wmem_max allows as much. */
void dp_io_unix_room(int fd);

/** Takes over a non-blocking descriptor. For TLS pass an SSL in accept or connect state (taken over), else
 * NULL. */
int dp_io_open(struct dp_io *io, struct dp_loop *l, int fd, SSL *ssl, bool on_demand);

/** Hands an open stream to another object. Callbacks are those of `to`. */
void dp_io_move(struct dp_io *to, struct dp_io *from);

enum { DP_IO_END = 0, DP_IO_AGAIN = -1, DP_IO_FAILED = -2 };
/** Bytes read, or one of the above. */
ssize_t dp_io_read(struct dp_io *io, void *p, size_t n);

/** For an owner who stops reading at a known end and not at DP_IO_AGAIN: when nothing is left, clears
 * `readable` and sees to it that the next byte, or the end, is told. */
void dp_io_settle(struct dp_io *io);

/** Writes all, keeping what does not fit now; false when writing has failed. Callers bound what they write:
 * they stop reading from the other side while dp_io_blocked. */
bool dp_io_write(struct dp_io *io, const void *p, size_t n);
bool dp_io_writev(struct dp_io *io, const struct iovec *iov, int count);
static inline bool dp_io_blocked(const struct dp_io *io)
{
    return io->out_len != 0;
}

/** For an owner that writes to the descriptor itself (splice): on_drain is called once when it takes bytes
 * again. */
void dp_io_want_write(struct dp_io *io);

/** From now on no byte passes in either direction, also none that waits here, and no callback comes but
 * on_read; the descriptor is still to be closed. Costs no system call. */
void dp_io_mute(struct dp_io *io);

/** Half-close after the pending bytes. */
void dp_io_shutdown(struct dp_io *io);
/** Closes; `reset` makes the peer see an error instead of an orderly end. Idempotent. */
void dp_io_close(struct dp_io *io, bool reset);
static inline bool dp_io_is_open(const struct dp_io *io)
{
    return io->watch.fd >= 0;
}

/** Moves up to `n` bytes from the socket into a pipe without copying; plain streams only. As dp_io_read. */
ssize_t dp_io_splice_in(struct dp_io *io, int pipe_fd, size_t n);

/** Blocks of 4, 16, 32 and 64 KiB, cached per thread; `*cap` gets the size. NULL only when out of memory. */
char *dp_mem_get(size_t n, uint32_t *cap);
void dp_mem_put(char *p, uint32_t cap);
/** Bytes in blocks that this thread has handed out, and what its owners counted beside them: all that waits
 * in this process for a peer. */
size_t dp_mem_held(void);
/** Counts memory of another kind: it grew (or shrank) from `before` to `after` bytes. */
void dp_mem_count(size_t before, size_t after);
