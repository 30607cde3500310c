/* Owns the worker's link. Invariants: a stream is on one of two lists while its connection lives (`asked`
 * until it is answered, `open` after); what has to be said of it waits in one queue in its order, at most one
 * message per stream, and is neither dropped nor waited for when the socket is full; a stream that the
 * relay may count is said to have ended on the same link. */
#include "proxy/link.h"

#include "lib/base/log.h"
#include "lib/base/seqpacket.h"
#include "lib/net/loop.h"
#include "lib/net/relay_link.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RETRY_MIN_MS = 8, RETRY_MAX_MS = 1000, REPORT_MS = 1000, MESSAGES_PER_TURN = 64 };

enum stream_state {
    TO_OPEN, /* queued */
    ASKED,
    TO_HOLD, /* queued */
    OPEN,
    TO_END, /* queued; no connection any more */
    DROPPED /* the same, but there is nothing to say */
};

struct link_stream {
    struct back *back;
    uint64_t id;
    uint64_t in, out; /* as last said */
    enum stream_state state;
    struct link_stream *next, **prev; /* on its list */
    struct link_stream *later;        /* in the queue */
};

struct link {
    struct dp_watch watch; /* first */
    struct worker *worker;
    struct sockaddr_storage relay; /* what routes name; relay_len = 0: no HELLO yet */
    socklen_t relay_len;
    struct link_stream *asked, *open, *queue, **queue_end;
    uint32_t unanswered;
    uint64_t last_id;
    bool full; /* the socket takes no more now */
    int64_t retry_ms;
    struct dp_timer retry, report;
};

/* ---- saying ---- */

static void list_enter(struct link_stream **list, struct link_stream *s)
{
    s->next = *list;
    s->prev = list;
    if (s->next)
        s->next->prev = &s->next;
    *list = s;
}

static void list_leave(struct link_stream *s)
{
    *s->prev = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

/* false: the socket takes no more now. When the relay is gone it says true: reading finds out. */
static bool say(struct link *k, const struct link_msg *m)
{
    uint8_t bytes[LINK_MSG_MAX];
    if (seqpacket_send(k->watch.fd, bytes, link_encode(m, bytes), NULL, 0) == 0 || errno != EAGAIN)
        return true;
    k->full = true;
    dp_watch_out(k->worker->loop, &k->watch, true);
    return false;
}

static void moved_since(const struct link_stream *s, struct link_moved *m)
{
    const struct dp_io *io = &s->back->io;
    *m = (struct link_moved){s->id, io->sent - s->in, io->got - s->out};
}

static bool say_of(struct link *k, struct link_stream *s)
{
    struct link_msg m = {.stream = s->id};
    switch (s->state) {
    case TO_OPEN:
    case TO_HOLD:
        m.type = s->state == TO_OPEN ? LINK_OPEN : LINK_HELD;
        m.used = s->state == TO_HOLD && (s->back->io.got || s->back->io.sent);
        back_preface(s->back, m.preface);
        if (!say(k, &m))
            return false;
        s->state = s->state == TO_OPEN ? ASKED : OPEN;
        return true;
    case TO_END:
        m.type = LINK_ENDED;
        m.moved[0] = (struct link_moved){s->id, s->in, s->out};
        if (!say(k, &m))
            return false;
        free(s);
        return true;
    default:
        free(s);
        return true;
    }
}

static void queue_flush(struct link *k)
{
    while (k->queue && !k->full) {
        struct link_stream *s = k->queue, *later = s->later;
        if (!say_of(k, s))
            return;
        k->queue = later;
    }
    if (k->queue == NULL)
        k->queue_end = &k->queue;
}

static void queue_enter(struct link *k, struct link_stream *s, enum stream_state state)
{
    s->state = state;
    s->later = NULL;
    *k->queue_end = s;
    k->queue_end = &s->later;
}

static void on_report(struct dp_timer *t)
{
    struct link *k = (struct link *)((char *)t - offsetof(struct link, report));
    struct link_msg m = {.type = LINK_MOVED};
    struct link_stream *said[LINK_MOVED_MAX];
    for (struct link_stream *s = k->open; s && k->queue == NULL && !k->full; s = s->next) {
        struct link_moved *now = &m.moved[m.count];
        moved_since(s, now);
        if (now->in + now->out)
            said[m.count++] = s;
        if (m.count == 0 || (m.count < LINK_MOVED_MAX && s->next))
            continue;
        if (!say(k, &m))
            break;
        while (m.count) {
            m.count--;
            said[m.count]->in += m.moved[m.count].in;
            said[m.count]->out += m.moved[m.count].out;
        }
    }
    if (k->open)
        dp_timer_start(k->worker->loop, &k->report, REPORT_MS);
}

/* ---- streams ---- */

bool link_open(struct back *b)
{
    struct link *k = b->worker->link;
    const struct route *r = &b->sandbox->route;
    if (k == NULL || k->relay_len == 0 || k->unanswered >= LINK_UNANSWERED_MAX || b->sandbox->is_api ||
        k->relay_len != r->relay_len || memcmp(&k->relay, &r->relay, r->relay_len) != 0)
        return false;
    struct link_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return false;
    s->back = b;
    s->id = ++k->last_id;
    b->link_stream = s;
    list_enter(&k->asked, s);
    k->unanswered++;
    queue_enter(k, s, TO_OPEN);
    queue_flush(k);
    return true;
}

void link_leave(struct back *b)
{
    struct link *k = b->worker->link;
    struct link_stream *s = b->link_stream;
    if (s == NULL)
        return;
    b->link_stream = NULL;
    struct link_moved m;
    moved_since(s, &m);
    s->in = m.in; /* from now on what ENDED says */
    s->out = m.out;
    list_leave(s);
    s->back = NULL;
    if (s->state == TO_OPEN || s->state == ASKED)
        k->unanswered--;
    if (s->state == TO_OPEN || s->state == TO_HOLD) {
        s->state = DROPPED; /* it is in the queue */
    } else if (k->relay_len == 0) {
        free(s); /* between two links */
    } else {
        queue_enter(k, s, TO_END);
        queue_flush(k);
    }
}

static void take_opened(struct link *k, const struct link_msg *m, int fd)
{
    struct link_stream *s = k->asked;
    while (s && s->id != m->stream)
        s = s->next;
    if (s == NULL) { /* it was given up, and ENDED is on its way */
        if (fd >= 0)
            close(fd);
        return;
    }
    struct back *b = s->back;
    k->retry_ms = RETRY_MIN_MS; /* this relay serves */
    if (m->answer[4] == PREFACE_OK && fd < 0) {
        stats_add("no_descriptors"); /* this process had none left to take the guest's */
        link_leave(b);
        back_failed(b);
        return;
    }
    list_leave(s);
    k->unanswered--;
    if (m->answer[4] == PREFACE_OK) {
        s->state = OPEN;
        list_enter(&k->open, s);
        if (k->report.link == NULL)
            dp_timer_start(k->worker->loop, &k->report, REPORT_MS);
    } else {
        b->link_stream = NULL;
        free(s);
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    back_answered(b, m->answer, fd);
}

/* ---- the link ---- */

static void retry_later(struct link *k)
{
    dp_timer_start(k->worker->loop, &k->retry, k->retry_ms);
    k->retry_ms = k->retry_ms * 2 < RETRY_MAX_MS ? k->retry_ms * 2 : RETRY_MAX_MS;
}

static void link_lost(struct link *k)
{
    dp_watch_close(k->worker->loop, &k->watch);
    if (k->relay_len)
        stats_link(-1);
    k->relay_len = 0;
    k->full = false;
    for (struct link_stream *s = k->queue, *later; s; s = later) {
        later = s->later;
        if (s->state == TO_END || s->state == DROPPED)
            free(s);
        else if (s->state == TO_HOLD)
            s->state = OPEN;
    }
    k->queue = NULL;
    k->queue_end = &k->queue;
    retry_later(k);
    while (k->asked) {
        struct link_stream *s = k->asked;
        struct back *b = s->back;
        list_leave(s);
        k->unanswered--;
        b->link_stream = NULL;
        free(s);
        back_unlinked(b);
    }
}

static void take_hello(struct link *k, const struct link_msg *m)
{
    struct err e = {0};
    if (loop_address_parse(m->address, &k->relay, &k->relay_len, &e) != 0) {
        log_fail(&e, "the relay of this host");
        k->relay_len = 0;
        return;
    }
    stats_link(1);
    for (struct link_stream *s = k->open; s; s = s->next)
        queue_enter(k, s, TO_HOLD);
    queue_flush(k);
}

/* One message. 0: there is none now. -1: the link has ended. */
static int link_receive(struct link *k)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    uint8_t bytes[LINK_MSG_MAX];
    struct iovec v = {bytes, sizeof bytes};
    struct msghdr h = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct link_msg m;
    ssize_t n = recvmsg(k->watch.fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    int fd = -1;
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&h) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (n <= 0 || !link_decode(bytes, (size_t)n, &m) || (m.type == LINK_HELLO) != (k->relay_len == 0) ||
        (m.type != LINK_HELLO && m.type != LINK_OPENED)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (m.type == LINK_HELLO)
        take_hello(k, &m);
    else
        take_opened(k, &m, fd);
    return 1;
}

static void on_link(struct dp_watch *w, uint32_t events)
{
    struct link *k = (struct link *)w;
    if (events & EPOLLOUT) {
        k->full = false;
        queue_flush(k);
    }
    for (int i = 0, got = 1; (events & EPOLLIN) && got > 0 && i < MESSAGES_PER_TURN; i++) {
        got = link_receive(k);
        if (got < 0)
            link_lost(k);
    }
}

static void on_retry(struct dp_timer *t)
{
    struct link *k = (struct link *)((char *)t - offsetof(struct link, retry));
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const char *path = k->worker->proxy->cfg.relay_link;
    memcpy(un.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof un) == 0) {
        k->watch = (struct dp_watch){.ready = on_link, .fd = fd};
        if (dp_watch_add(k->worker->loop, &k->watch, DP_WATCH_LISTEN) == 0)
            return;
        k->watch.fd = -1;
    }
    if (fd >= 0)
        close(fd);
    retry_later(k);
}

void link_start(struct worker *w)
{
    const char *path = w->proxy->cfg.relay_link;
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        log_warn("proxy.relay_link %s: too long for a socket, so streams go over TCP", path);
    else if (path[0])
        w->link = calloc(1, sizeof *w->link);
    if (w->link == NULL)
        return;
    w->link->watch.fd = -1;
    w->link->worker = w;
    w->link->queue_end = &w->link->queue;
    w->link->retry_ms = RETRY_MIN_MS;
    w->link->retry.fire = on_retry;
    w->link->report.fire = on_report;
    dp_timer_start(w->loop, &w->link->retry, 0);
}
