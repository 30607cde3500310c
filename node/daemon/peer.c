/* Owns the framing and the matching of replies to requests. Invariant: each pending call belongs to a waiting
 * fiber and is answered exactly once: by its reply, its timeout, or the end of the conversation. Whatever the
 * other end sends is bounded (1 MiB, 16 descriptors) and a message that does not parse ends the conversation:
 * the guest end is hostile. A guest that never stops talking is read no faster than a fixed rate, so that it
 * takes no time of the node from its neighbours. */
#include "node/daemon/peer.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/net/fiber.h"
#include "proto/init.pb-c.h"
#include "proto/jailer.pb-c.h"
#include "proto/vmm.pb-c.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* What a guest may have read at once and per millisecond: bytes, and the work that each message makes. */
#define TALK_BURST (4 << 20)
#define TALK_PER_MS (8 << 10)
#define TALK_MESSAGE 256

/* The common beginning of all three request and reply types; the field order in the .proto files makes it so.
 */
struct request_head {
    ProtobufCMessage base;
    uint64_t id;
};
struct reply_head {
    ProtobufCMessage base;
    uint64_t id;
    char *error_code, *error;
};
#define SAME_HEAD(type)                                                                                      \
    _Static_assert(offsetof(type##__Reply, id) == offsetof(struct reply_head, id) &&                         \
                       offsetof(type##__Reply, error) == offsetof(struct reply_head, error) &&               \
                       offsetof(type##__Request, id) == offsetof(struct request_head, id),                   \
                   "layout of " #type)
SAME_HEAD(Cube__Vmm__V1);
SAME_HEAD(Cube__Jailer__V1);
SAME_HEAD(Cube__Init__V1);

struct pending {
    uint64_t id;
    struct fiber_event done;
    struct peer_reply reply;
    struct pending *next;
};

struct peer {
    struct peer_config cfg;
    char name[64];
    int fd;
    struct loop_watch *watch;
    uint64_t next_id;
    struct pending *pending;
    unsigned users; /* fibers inside peer_call, and the reader while it calls back */
    bool closed, freed;
    struct fiber_lock sending; /* stream framing: messages must not interleave */
    struct buf in;             /* stream framing: bytes of an unfinished message */
    int64_t talk, talk_us;     /* stream framing: what may be read still, and since when */
    struct loop_timer rest;    /* until there is something again */
    struct loop *loop;
};

void peer_reply_free(struct peer_reply *r)
{
    if (r->message)
        protobuf_c_message_free_unpacked(r->message, NULL);
    for (int i = 0; i < r->fd_count; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    *r = (struct peer_reply){0};
}

static void peer_release(struct peer *p)
{
    if (!p->freed || p->users > 0)
        return;
    buf_free(&p->in);
    free(p);
}

static void peer_shut(struct peer *p)
{
    if (p->closed)
        return;
    p->closed = true;
    loop_timer_stop(p->loop, &p->rest);
    loop_watch_free(p->watch);
    p->watch = NULL;
    close(p->fd);
    p->fd = -1;
    for (struct pending *c = p->pending; c; c = c->next)
        fiber_event_set(&c->done);
}

static void peer_broken(struct peer *p)
{
    if (p->closed)
        return;
    peer_shut(p);
    if (!p->freed && p->cfg.closed)
        p->cfg.closed(p->cfg.data);
}

void peer_free(struct peer *p)
{
    if (!p)
        return;
    p->freed = true;
    peer_shut(p);
    peer_release(p);
}

bool peer_is_closed(const struct peer *p)
{
    return p->closed;
}

static bool peer_take(struct peer *p, const uint8_t *data, size_t n, struct peer_reply *r)
{
    r->message = protobuf_c_message_unpack(p->cfg.reply, NULL, n, data);
    if (!r->message) {
        peer_reply_free(r);
        return false;
    }
    uint64_t id = ((struct reply_head *)r->message)->id;
    if (id == 0) {
        if (p->cfg.event)
            p->cfg.event(r->message, p->cfg.data);
        peer_reply_free(r);
        return true;
    }
    for (struct pending *c = p->pending; c; c = c->next)
        if (c->id == id && !c->reply.message) {
            c->reply = *r;
            fiber_event_set(&c->done);
            return true;
        }
    peer_reply_free(r); /* its caller gave up */
    return true;
}

static bool read_packet(struct peer *p, bool *more)
{
    static uint8_t data[PEER_MAX_MESSAGE];
    char control[CMSG_SPACE(sizeof(int) * PEER_MAX_FDS)];
    struct iovec iov = {data, sizeof data};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(p->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        *more = false;
        return true;
    }
    struct peer_reply r = {0};
    for (struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) && r.fd_count < PEER_MAX_FDS;
                 i++)
                memcpy(&r.fds[r.fd_count++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    if (n <= 0 || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        peer_reply_free(&r);
        return false;
    }
    return peer_take(p, data, (size_t)n, &r);
}

static bool read_stream(struct peer *p, bool *more)
{
    if (!buf_reserve(&p->in, 16384))
        return false;
    ssize_t n = recv(p->fd, p->in.data + p->in.len, 16384, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        *more = false;
        return true;
    }
    if (n <= 0)
        return false;
    p->in.len += (size_t)n;
    p->talk -= n;
    size_t at = 0;
    while (p->in.len - at >= 4 && !p->closed) {
        const uint8_t *h = (const uint8_t *)p->in.data + at;
        size_t len = (size_t)h[0] << 24 | (size_t)h[1] << 16 | (size_t)h[2] << 8 | h[3];
        if (len > PEER_MAX_MESSAGE)
            return false;
        if (p->in.len - at - 4 < len)
            break;
        struct peer_reply r = {0};
        if (!peer_take(p, h + 4, len, &r))
            return false;
        at += 4 + len;
        p->talk -= TALK_MESSAGE;
    }
    buf_consume(&p->in, at);
    *more = n == 16384;
    return true;
}

static void talk_refill(struct peer *p)
{
    int64_t now = clock_mono_us();
    p->talk += (now - p->talk_us) * TALK_PER_MS / 1000;
    if (p->talk > TALK_BURST)
        p->talk = TALK_BURST;
    p->talk_us = now;
}

static void on_ready(void *data);

static void on_rested(struct loop_timer *t)
{
    struct peer *p = (struct peer *)((char *)t - offsetof(struct peer, rest));
    p->watch = loop_watch_read(p->loop, p->fd, on_ready, p);
    if (!p->watch)
        peer_broken(p);
}

static void on_ready(void *data)
{
    struct peer *p = data;
    p->users++;
    bool more = true;
    talk_refill(p);
    for (int i = 0; i < 16 && more && !p->closed; i++) /* bounded: a chatty guest must not starve the loop */
        if (!(p->cfg.framing == PEER_PACKET ? read_packet : read_stream)(p, &more)) {
            peer_broken(p);
            break;
        }
    if (p->talk < 0 && !p->closed) {
        loop_watch_free(p->watch);
        p->watch = NULL;
        loop_timer_start(p->loop, &p->rest, 1 - p->talk / TALK_PER_MS);
    }
    p->users--;
    peer_release(p);
}

struct peer *peer_new(struct loop *l, int fd, const struct peer_config *cfg)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->cfg = *cfg;
    snprintf(p->name, sizeof p->name, "%s", cfg->name);
    p->loop = l;
    p->fd = fd;
    p->talk = TALK_BURST;
    p->talk_us = clock_mono_us();
    p->rest.fire = on_rested;
    p->watch = loop_watch_read(l, fd, on_ready, p);
    if (!p->watch)
        abort();
    return p;
}

static int send_packet(struct peer *p, const void *data, size_t n, const int *fds, int fd_count,
                       struct err *e)
{
    char control[CMSG_SPACE(sizeof(int) * PEER_MAX_FDS)] = {0};
    struct iovec iov = {(void *)data, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)fd_count);
    }
    for (int tries = 0; !p->closed; tries++) {
        if (sendmsg(p->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN || tries > 2000)
            return err_sys(e, ERR_UNAVAILABLE, "sending to %s", p->name);
        fiber_sleep(1);
    }
    return err_set(e, ERR_UNAVAILABLE, "%s has gone away", p->name);
}

static int send_stream(struct peer *p, const uint8_t *data, size_t n, struct err *e)
{
    fiber_lock(&p->sending);
    struct fiber_lock *held _cleanup_unlock_ = &p->sending;
    size_t at = 0;
    for (int tries = 0; at < n && !p->closed; tries++) {
        ssize_t w = send(p->fd, data + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (w > 0) {
            at += (size_t)w;
            tries = 0;
        } else if (errno != EINTR && (errno != EAGAIN || tries > 2000)) {
            int sys = errno;
            peer_broken(p); /* half a message went out: nothing after it can be understood */
            errno = sys;
            return err_sys(e, ERR_UNAVAILABLE, "sending to %s", p->name);
        } else if (errno == EAGAIN) {
            fiber_sleep(1);
        }
    }
    return p->closed ? err_set(e, ERR_UNAVAILABLE, "%s has gone away", p->name) : 0;
}

static int send_request(struct peer *p, ProtobufCMessage *request, const int *fds, int fd_count,
                        struct err *e)
{
    size_t n = protobuf_c_message_get_packed_size(request);
    if (n > PEER_MAX_MESSAGE)
        return err_set(e, ERR_TOO_LARGE, "a request of %zu bytes to %s", n, p->name);
    _cleanup_free_ uint8_t *data = malloc(n + 4);
    if (!data)
        abort();
    data[0] = (uint8_t)(n >> 24), data[1] = (uint8_t)(n >> 16), data[2] = (uint8_t)(n >> 8),
    data[3] = (uint8_t)n;
    protobuf_c_message_pack(request, data + 4);
    if (p->cfg.framing == PEER_PACKET)
        return send_packet(p, data + 4, n, fds, fd_count, e);
    return send_stream(p, data, n + 4, e);
}

static void unlink_pending(struct peer *p, struct pending *c)
{
    for (struct pending **at = &p->pending; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            return;
        }
}

int peer_call(struct peer *p, ProtobufCMessage *request, const int *fds, int fd_count, int64_t timeout_ms,
              struct peer_reply *out, struct err *e)
{
    if (p->closed)
        return err_set(e, ERR_UNAVAILABLE, "%s has gone away", p->name);
    p->users++;
    struct pending c = {.id = ++p->next_id, .next = p->pending};
    p->pending = &c;
    ((struct request_head *)request)->id = c.id;
    int rc = send_request(p, request, fds, fd_count, e);
    if (rc == 0 && !fiber_event_wait(&c.done, timeout_ms))
        rc = err_set(e, ERR_DEADLINE, "%s did not answer within %lld ms", p->name, (long long)timeout_ms);
    unlink_pending(p, &c);
    if (rc == 0 && !c.reply.message)
        rc = err_set(e, ERR_UNAVAILABLE, "%s has gone away", p->name);
    struct reply_head *h = (struct reply_head *)c.reply.message;
    if (rc == 0 && h->error_code && *h->error_code)
        rc =
            err_set(e, err_code_parse(h->error_code), "%s: %s", p->name, h->error ? h->error : h->error_code);
    if (rc == 0 && out)
        *out = c.reply;
    else
        peer_reply_free(&c.reply);
    p->users--;
    peer_release(p);
    return rc;
}
