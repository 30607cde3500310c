/* The links of the proxies on this host (lib/net/relay_link.h): a stream that is opened over one is checked
 * and counted here as any other, but its descriptor goes to the proxy and the bytes do not pass through.
 * Invariants: every OPEN is answered once unless its link or the stream ends before; a link that has answers
 * which its proxy does not take is not read; what is counted over a link is uncounted when it ends. The
 * socket is open to every process of the host, as the relay's port on loopback is: it is the MAC of each
 * preface that opens a guest. Who connects as another user than proxies run as can keep none of them out. */
#include "node/relay/relay.h"

#include "lib/base/log.h"
#include "lib/base/seqpacket.h"
#include "lib/net/relay_link.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 256, STRANGERS_MAX = 32, BUCKETS = 8192, MESSAGES_PER_TURN = 64 };

enum held_state { HELD_OPENING, HELD_ANSWERING, HELD_OPEN };

/* A stream of a proxy. */
struct held {
    struct link *link;
    uint64_t id;
    struct ticket *ticket;       /* NULL: refused, only its answer is left to send */
    struct held *next, **prev;   /* of its link */
    struct held *same, **before; /* in its bucket */
    struct held *later;          /* HELD_ANSWERING: in link->answers */
    enum held_state state;
    enum preface_status status;
    uint64_t gen;
    struct knock *knock; /* until it is answered */
};

/* The connection that becomes the proxy's. Outlives its stream until the end of the turn. */
struct knock {
    struct door door; /* first */
    struct held *held;
    struct dp_task bury;
};

struct link {
    struct dp_watch watch; /* first */
    struct relay *relay;
    struct link *next, **prev;
    struct held *streams;
    struct held *answers, **answers_end; /* that the socket did not take */
    uint32_t unanswered;
    bool stranger;
    struct dp_task again, bury;
};

static struct held *table[BUCKETS];

static struct held **bucket_of(const struct link *k, uint64_t id)
{
    return &table[(id * 31 + (uintptr_t)k / sizeof *k) % BUCKETS];
}

static struct held *held_find(const struct link *k, uint64_t id)
{
    struct held *h = *bucket_of(k, id);
    while (h && (h->id != id || h->link != k))
        h = h->same;
    return h;
}

static struct held *held_new(struct link *k, uint64_t id, struct ticket *t, enum held_state state)
{
    struct held *h = calloc(1, sizeof *h);
    if (h == NULL)
        return NULL;
    struct held **slot = bucket_of(k, id);
    *h = (struct held){.link = k,
                       .id = id,
                       .ticket = t,
                       .next = k->streams,
                       .prev = &k->streams,
                       .same = *slot,
                       .before = slot,
                       .state = state};
    if (h->next)
        h->next->prev = &h->next;
    if (h->same)
        h->same->before = &h->same;
    k->streams = *slot = h;
    if (t) {
        k->relay->open++;
        relay_enter(t);
    }
    return h;
}

static void on_knock_bury(struct dp_task *t)
{
    free((char *)t - offsetof(struct knock, bury));
}

static void knock_end(struct held *h)
{
    if (h->knock == NULL)
        return;
    door_close(&h->knock->door, false);
    dp_bury(h->link->relay->loop, &h->knock->bury);
    h->knock = NULL;
}

/* Not for one that waits in link->answers, but when the link ends. */
static void held_free(struct held *h)
{
    knock_end(h);
    *h->prev = h->next;
    if (h->next)
        h->next->prev = h->prev;
    *h->before = h->same;
    if (h->same)
        h->same->before = h->before;
    if (h->state != HELD_OPEN)
        h->link->unanswered--;
    if (h->ticket)
        relay_leave(h->link->relay, h->ticket);
    free(h);
}

static void on_link_bury(struct dp_task *t)
{
    struct link *k = (struct link *)((char *)t - offsetof(struct link, bury));
    if (k->again.queued)
        dp_bury(k->relay->loop, t);
    else
        free(k);
}

static void link_end(struct link *k)
{
    if (k->watch.fd < 0)
        return;
    while (k->streams)
        held_free(k->streams);
    *k->prev = k->next;
    if (k->next)
        k->next->prev = k->prev;
    k->relay->link_count--;
    k->relay->strangers -= k->stranger;
    dp_watch_close(k->relay->loop, &k->watch);
    dp_bury(k->relay->loop, &k->bury);
}

/* ---- answers ---- */

/* false: the socket takes no more now. */
static bool answer_send(struct held *h)
{
    struct link *k = h->link;
    struct link_msg m = {.type = LINK_OPENED, .stream = h->id};
    uint8_t bytes[LINK_MSG_MAX];
    bool ok = h->status == PREFACE_OK;
    preface_answer_encode(h->status, h->gen, m.answer);
    size_t n = link_encode(&m, bytes);
    if (seqpacket_send(k->watch.fd, bytes, n, ok ? &h->knock->door.io.watch.fd : NULL, ok) != 0) {
        if (errno == EAGAIN)
            return false;
        if (errno != ETOOMANYREFS)
            return true;               /* the proxy is gone; the next read says so, and all is freed */
        h->status = PREFACE_NOT_READY; /* more descriptors are on their way than this user may have open */
        return answer_send(h);
    }
    if (!ok) {
        k->relay->refused[h->status & 7]++;
        held_free(h);
        return true;
    }
    k->relay->handed_over++;
    k->unanswered--;
    h->state = HELD_OPEN;
    knock_end(h); /* the proxy has its own descriptor */
    return true;
}

static void answer(struct held *h, enum preface_status status, uint64_t gen)
{
    struct link *k = h->link;
    h->state = HELD_ANSWERING;
    h->status = status;
    h->gen = gen;
    if (k->answers == NULL && answer_send(h))
        return;
    *k->answers_end = h;
    k->answers_end = &h->later;
    dp_watch_out(k->relay->loop, &k->watch, true);
}

static void answers_flush(struct link *k)
{
    while (k->answers) {
        struct held *h = k->answers, *later = h->later;
        if (!answer_send(h))
            return;
        k->answers = later;
    }
    k->answers_end = &k->answers;
    dp_watch_out(k->relay->loop, &k->watch, false);
    dp_defer(k->relay->loop, &k->again);
}

/* ---- messages ---- */

static void on_door(struct door *d, enum preface_status status)
{
    answer(((struct knock *)d)->held, status, d->gen);
}

/* false: the link is to be ended. */
static bool take_open(struct link *k, const struct link_msg *m)
{
    struct relay *r = k->relay;
    struct preface p;
    struct ticket *t;
    uint64_t gen;
    uint16_t port;
    if (!preface_decode(m->preface, &p) || held_find(k, m->stream) || k->unanswered >= LINK_UNANSWERED_MAX)
        return false;
    r->accepted++;
    enum preface_status status = relay_admit(r, &p, m->preface, &t, &gen, &port);
    if (status == PREFACE_OK && r->open >= (uint64_t)r->cfg.max_streams)
        status = PREFACE_LIMIT;
    struct knock *knock = status == PREFACE_OK ? calloc(1, sizeof *knock) : NULL;
    struct held *h = held_new(k, m->stream, knock ? t : NULL, HELD_OPENING);
    if (h == NULL) {
        free(knock);
        return false;
    }
    k->unanswered++;
    if (knock == NULL) {
        answer(h, status == PREFACE_OK ? PREFACE_NOT_READY : status, gen);
        return true;
    }
    knock->held = h;
    knock->bury.run = on_knock_bury;
    knock->door.opened = on_door;
    h->knock = knock;
    door_open(&knock->door, r, t, port, dp_now_ms(r->loop) + r->cfg.handshake_timeout_ms);
    return true;
}

static bool take_held(struct link *k, const struct link_msg *m)
{
    struct preface p;
    if (!preface_decode(m->preface, &p) || held_find(k, m->stream))
        return false;
    struct ticket *t = k->relay->open < (uint64_t)k->relay->cfg.max_streams
                           ? relay_recognise(k->relay, &p, m->preface)
                           : NULL;
    if (t && held_new(k, m->stream, t, HELD_OPEN) && m->used)
        t->last_ms = dp_now_ms(k->relay->loop);
    return true;
}

/* A number that is not known belongs to a HELD that was not counted. */
static void take_moved(struct link *k, const struct link_moved *m, bool ended)
{
    struct held *h = held_find(k, m->stream);
    if (h && h->state == HELD_OPEN)
        relay_moved(k->relay, h->ticket, m->in, m->out);
    if (h && ended)
        held_free(h); /* it is not in k->answers: with those a link is not read */
}

static bool take(struct link *k, const uint8_t *bytes, size_t n)
{
    struct link_msg m;
    if (!link_decode(bytes, n, &m))
        return false;
    switch (m.type) {
    case LINK_OPEN:
        return take_open(k, &m);
    case LINK_HELD:
        return take_held(k, &m);
    case LINK_ENDED:
        take_moved(k, &m.moved[0], true);
        return true;
    case LINK_MOVED:
        for (uint16_t i = 0; i < m.count; i++)
            take_moved(k, &m.moved[i], false);
        return true;
    default:
        return false;
    }
}

static void link_read(struct link *k)
{
    uint8_t bytes[LINK_MSG_MAX + 1];
    for (int i = 0; i < MESSAGES_PER_TURN && k->answers == NULL; i++) {
        ssize_t n = recv(k->watch.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0 && take(k, bytes, (size_t)n))
            continue;
        if (n > 0 && !k->stranger) /* others could fill the log */
            log_warn("a link said what no proxy says");
        link_end(k);
        return;
    }
    if (k->answers == NULL)
        dp_defer(k->relay->loop, &k->again);
}

static void on_again(struct dp_task *t)
{
    struct link *k = (struct link *)((char *)t - offsetof(struct link, again));
    if (k->watch.fd >= 0)
        link_read(k);
}

static void on_link(struct dp_watch *w, uint32_t events)
{
    struct link *k = (struct link *)w;
    if (k->answers)
        answers_flush(k);
    link_read(k);
}

/* ---- the socket ---- */

/* Not a user of this host that proxies run as: its links are few, and none of theirs. */
static bool is_stranger(const struct relay *r, int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 ||
           (who.uid != (uid_t)r->cfg.proxy_uid && who.uid != geteuid() && who.uid != 0);
}

static void link_start(struct relay *r, int fd)
{
    bool stranger = is_stranger(r, fd),
         room = stranger ? r->strangers < STRANGERS_MAX : r->link_count - r->strangers < LINKS_MAX;
    struct link *k = room ? calloc(1, sizeof *k) : NULL;
    struct link_msg m = {.type = LINK_HELLO};
    uint8_t bytes[LINK_MSG_MAX];
    if (k == NULL) {
        close(fd);
        return;
    }
    *k = (struct link){.watch = {.ready = on_link, .fd = fd},
                       .relay = r,
                       .next = r->links,
                       .prev = &r->links,
                       .answers_end = &k->answers,
                       .stranger = stranger,
                       .again = {.run = on_again},
                       .bury = {.run = on_link_bury}};
    if (k->next)
        k->next->prev = &k->next;
    r->links = k;
    r->link_count++;
    r->strangers += stranger;
    snprintf(m.address, sizeof m.address, "%s", r->cfg.address);
    if (seqpacket_send(fd, bytes, link_encode(&m, bytes), NULL, 0) != 0 ||
        dp_watch_add(r->loop, &k->watch, DP_WATCH_IN) != 0)
        link_end(k);
}

static void on_listener(struct dp_watch *w, uint32_t events)
{
    struct relay *r = (struct relay *)((char *)w - offsetof(struct relay, link_listener));
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        link_start(r, fd);
    else
        accept_failed(r);
}

int links_serve(struct relay *r, struct err *e)
{
    char path[256];
    if (strlen(r->cfg.address) >= LINK_ADDRESS_LEN)
        return err_set(e, ERR_INVALID, "relay.address %s: longer than %d bytes", r->cfg.address,
                       LINK_ADDRESS_LEN - 1);
    snprintf(path, sizeof path, "%s/relay/link.sock", r->cfg.run_dir);
    int fd = seqpacket_listen(path, (uid_t)-1, (gid_t)-1, e);
    if (fd < 0)
        return -1;
    r->link_listener = (struct dp_watch){.ready = on_listener, .fd = fd};
    if (chmod(path, 0666) != 0 || dp_watch_add(r->loop, &r->link_listener, DP_WATCH_LISTEN) != 0)
        return err_sys(e, ERR_INTERNAL, "serving %s", path);
    return 0;
}

void links_close(struct relay *r)
{
    dp_watch_close(r->loop, &r->link_listener);
    while (r->links)
        link_end(r->links);
}
