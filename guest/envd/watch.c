/* WatchDir streams and polled watchers. Invariant: no event is lost silently: when the kernel's queue or ours
 * overflows, the stream ends (or the next poll fails) with resource_exhausted. */
#include "guest/envd/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_rpc.h"
#include "guest/envd/fsid.h"
#include "guest/envd/jobs.h"
#include "guest/envd/messages.h"
#include "guest/envd/state.h"
#include "guest/envd/watcher.h"
#include "lib/base/ids.h"

#define PENDING_MAX (256 * 1024) /* unsent bytes of a stream before events wait in the kernel's queue, */
#define PENDING_MIN (8 * 1024)   /* and when there are many streams, */
#define PENDING_ALL (4 << 20)    /* which share this much */
#define QUEUE_MAX 65536          /* events of one polled watcher */
#define QUEUED_ALL (16 << 20)    /* bytes of the events of all of them */
#define POLLED_MAX 1024

struct event {
    char *name;
    enum event_type type;
};

struct watch {
    struct job job;
    struct watch *next; /* polled ones */
    struct rpc *rpc;    /* the stream, or the creating call */
    struct watcher w;
    struct ev ev;
    bool polled, streaming, failed, dead;
    struct err err;
    char id[24];
    int64_t polled_ms, last_ms;
    struct event *queue;
    size_t n_queue, queue_cap;
    struct timer keepalive, deadline;
};

static struct watch *polled;
static unsigned n_polled, n_streams;
static size_t queued;

static const char *const type_names[] = {"EVENT_TYPE_UNSPECIFIED", "EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE",
                                         "EVENT_TYPE_REMOVE",      "EVENT_TYPE_RENAME", "EVENT_TYPE_CHMOD"};

static size_t queued_size(const char *name)
{
    return strlen(name) + 48; /* with its slot, and what malloc adds */
}

static void queue_clear(struct watch *s)
{
    for (size_t i = 0; i < s->n_queue; i++) {
        queued -= queued_size(s->queue[i].name);
        free(s->queue[i].name);
    }
    free(s->queue);
    s->queue = NULL;
    s->n_queue = s->queue_cap = 0;
}

static void watch_free(struct watch *s)
{
    ev_watch(&s->ev, 0);
    s->ev.fd = -1; /* the descriptor is the watcher's */
    timer_clear(&s->keepalive);
    timer_clear(&s->deadline);
    watcher_close(&s->w);
    queue_clear(s);
    n_streams -= s->streaming;
    loop_free_later(s);
}

/* name, type and, when asked for and there, the entry. */
static void event_write(struct msgw *w, struct watch *s, const char *name, enum event_type type)
{
    msgw_str(w, "name", 1, name);
    msgw_enum(w, "type", 2, type_names[type], (int)type);
    if (!s->w.include_entry || type == EVENT_REMOVE || type == EVENT_RENAME)
        return;
    struct arena a = {0};
    struct entry entry;
    struct err e = {0};
    struct name_cache users = {.n = 0}, groups = {.n = 0};
    char path[PATH_MAX];
    size_t n = strlen(s->w.path), k = strlen(name);
    if (n + k + 2 > sizeof(path))
        return;
    memcpy(path, s->w.path, n);
    path[n] = '/';
    memcpy(path + n + 1, name, k + 1);
    bool other = fsid_enter(&s->w.user);
    if (fs_stat(path, path, &a, &entry, &e) == 0) {
        msgw_open(w, "entry", 3);
        entry_write(w, &entry, &users, &groups);
        msgw_close(w);
    }
    if (other)
        fsid_leave();
    arena_free(&a);
}

static void send_named(struct rpc *r, const char *field, uint32_t num, struct watch *s, const char *name,
                       enum event_type type)
{
    _cleanup_buf_ struct buf b = {0};
    struct msgw w;
    msgw_start(&w, r->codec, &b);
    msgw_open(&w, field, num);
    if (name)
        event_write(&w, s, name, type);
    msgw_close(&w);
    msgw_end(&w);
    if (!b.failed)
        rpc_message(r, b.data, b.len);
}

static void queue_overflow(struct watch *s)
{
    s->w.overflow = true;
    queue_clear(s);
}

static void queue_add(struct watch *s, const char *name, enum event_type type)
{
    if (s->w.overflow) /* the client must look for itself anyway */
        return;
    if (queued + queued_size(name) > QUEUED_ALL) {
        queue_overflow(s);
        return;
    }
    if (s->n_queue == s->queue_cap) {
        size_t cap = s->queue_cap ? s->queue_cap * 2 : 64;
        struct event *more = cap <= QUEUE_MAX ? realloc(s->queue, cap * sizeof(*more)) : NULL;
        if (!more) {
            queue_overflow(s);
            return;
        }
        s->queue = more;
        s->queue_cap = cap;
    }
    char *copy = strdup(name);
    if (!copy) {
        queue_overflow(s);
        return;
    }
    s->queue[s->n_queue++] = (struct event){copy, type};
    queued += queued_size(name);
}

static void on_event(void *owner, const char *name, enum event_type type)
{
    struct watch *s = owner;
    s->last_ms = loop_now_ms();
    if (s->polled)
        queue_add(s, name, type);
    else
        send_named(s->rpc, "filesystem", 2, s, name, type);
}

static size_t pending_max(void)
{
    size_t share = PENDING_ALL / (n_streams ? n_streams : 1);
    return share > PENDING_MAX ? PENDING_MAX : share < PENDING_MIN ? PENDING_MIN : share;
}

static void stream_stop(struct watch *s, enum rpc_code code, const char *why)
{
    struct rpc *r = s->rpc;
    watch_free(s);
    rpc_fail(r, code, "%s", why);
}

static void on_ready(void *owner, uint32_t events)
{
    struct watch *s = owner;
    for (int i = 0; i < 16; i++) {
        if (!s->polled && conn_pending(s->rpc->c) > pending_max()) {
            ev_watch(&s->ev, 0); /* on_drain goes on */
            return;
        }
        int rc = watcher_read(&s->w, s->polled ? SIZE_MAX : pending_max() / 4);
        if (s->w.overflow && s->polled) {
            ev_watch(&s->ev, 0);
            return;
        }
        if (rc < 0) {
            stream_stop(s, RPC_RESOURCE_EXHAUSTED, "event queue overflow: events were lost");
            return;
        }
        if (rc == 0)
            return;
    }
}

static void on_stream_drain(struct rpc *r)
{
    struct watch *s = r->user;
    ev_watch(&s->ev, EPOLLIN);
}

static void on_stream_gone(struct rpc *r)
{
    watch_free(r->user);
}

static void on_keepalive(void *owner)
{
    struct watch *s = owner;
    int64_t left = s->last_ms + s->rpc->keepalive_ms - loop_now_ms();
    if (left <= 0) {
        s->last_ms = loop_now_ms();
        left = s->rpc->keepalive_ms;
        send_named(s->rpc, "keepalive", 3, s, NULL, EVENT_UNSPECIFIED);
        ev_watch(&s->ev, EPOLLIN);
    }
    timer_set(&s->keepalive, left);
}

static void on_deadline(void *owner)
{
    stream_stop(owner, RPC_DEADLINE_EXCEEDED, "context deadline exceeded");
}

static void stream_start(struct watch *s)
{
    struct rpc *r = s->rpc;
    s->ev = (struct ev){.fd = s->w.fd, .cb = on_ready, .owner = s};
    s->streaming = true;
    n_streams++;
    s->last_ms = loop_now_ms();
    s->keepalive = (struct timer){.cb = on_keepalive, .owner = s};
    s->deadline = (struct timer){.cb = on_deadline, .owner = s};
    r->user = s;
    r->on_gone = on_stream_gone;
    r->on_drain = on_stream_drain;
    timer_set(&s->keepalive, r->keepalive_ms);
    if (r->timeout_ms >= 0)
        timer_set(&s->deadline, r->timeout_ms);
    send_named(r, "start", 1, s, NULL, EVENT_UNSPECIFIED);
    ev_watch(&s->ev, EPOLLIN);
}

static void polled_drop(struct watch *s)
{
    for (struct watch **at = &polled; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            n_polled--;
            break;
        }
    watch_free(s);
}

static void polled_start(struct watch *s)
{
    struct rpc *r = s->rpc;
    if (n_polled >= POLLED_MAX) { /* the one that was not asked for longest is a client's leftover */
        struct watch *oldest = polled;
        for (struct watch *p = polled; p; p = p->next)
            if (p->polled_ms < oldest->polled_ms)
                oldest = p;
        polled_drop(oldest);
    }
    s->id[0] = 'w';
    id_random(s->id + 1, 20);
    s->ev = (struct ev){.fd = s->w.fd, .cb = on_ready, .owner = s};
    s->polled_ms = loop_now_ms();
    s->next = polled;
    polled = s;
    n_polled++;
    ev_watch(&s->ev, EPOLLIN);
    s->rpc = NULL;
    _cleanup_buf_ struct buf b = {0};
    struct msgw w;
    msgw_start(&w, r->codec, &b);
    msgw_str(&w, "watcherId", 1, s->id);
    msgw_end(&w);
    rpc_reply_buf(r, &b);
}

static void on_run(struct job *job)
{
    struct watch *s = (struct watch *)job;
    s->failed = watcher_open(&s->w, &s->err) < 0;
}

static void on_opened(struct job *job)
{
    struct watch *s = (struct watch *)job;
    if (s->failed || s->dead) {
        struct rpc *r = s->rpc;
        bool dead = s->dead;
        enum rpc_code code =
            s->err.sys == ENOSPC || s->err.sys == EMFILE ? RPC_RESOURCE_EXHAUSTED : fs_rpc_code(&s->err);
        struct err e = s->err;
        watch_free(s);
        if (!dead)
            rpc_fail(r, code, "%s", e.msg);
    } else if (s->polled) {
        polled_start(s);
    } else {
        stream_start(s);
    }
}

/* The client of a stream left while the worker was still opening the watcher. */
static void on_early_gone(struct rpc *r)
{
    struct watch *s = r->user;
    s->dead = true;
}

static void open_watch(struct rpc *r, const struct msg_watch *m, bool poll)
{
    struct err e = {0};
    struct watch *s = calloc(1, sizeof(*s));
    if (!s) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    s->job = (struct job){.run = on_run, .done = on_opened};
    s->rpc = r;
    s->polled = poll;
    s->ev.fd = s->w.fd = -1;
    s->w.recursive = m->recursive;
    s->w.include_entry = m->include_entry;
    s->w.allow_network = m->allow_network_mounts;
    s->w.on_event = on_event;
    s->w.owner = s;
    bool user = rpc_user(r, &s->w.user) == 0;
    if (user && state_path(m->path, &s->w.user, s->w.path, &e) < 0) {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "%s", e.msg);
        user = false;
    }
    if (!user) {
        free(s);
        return;
    }
    r->user = s;
    r->on_gone = on_early_gone;
    jobs_submit(&s->job);
}

void watch_dir(struct rpc *r, void *request)
{
    open_watch(r, request, false);
}

void watch_create(struct rpc *r, void *request)
{
    open_watch(r, request, true);
}

static struct watch *polled_find(const char *id)
{
    for (struct watch *s = polled; s; s = s->next)
        if (!strcmp(s->id, id))
            return s;
    return NULL;
}

void watch_events(struct rpc *r, void *request)
{
    const struct msg_watcher *m = request;
    struct watch *s = polled_find(m->watcher_id);
    if (!s) {
        rpc_fail(r, RPC_NOT_FOUND, "watcher with id %s not found", m->watcher_id);
        return;
    }
    s->polled_ms = loop_now_ms();
    while (!s->w.overflow && watcher_read(&s->w, SIZE_MAX) > 0)
        continue; /* what happened before this call is in its answer */
    if (s->w.overflow) {
        s->w.overflow = false;
        queue_clear(s);
        ev_watch(&s->ev, EPOLLIN);
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "event queue overflow: events were lost");
        return;
    }
    _cleanup_buf_ struct buf b = {0};
    struct msgw w;
    msgw_start(&w, r->codec, &b);
    msgw_list(&w, "events");
    for (size_t i = 0; i < s->n_queue; i++) {
        msgw_item(&w, 1);
        event_write(&w, s, s->queue[i].name, s->queue[i].type);
        msgw_close(&w);
    }
    msgw_list_end(&w);
    msgw_end(&w);
    queue_clear(s);
    rpc_reply_buf(r, &b);
}

void watch_remove(struct rpc *r, void *request)
{
    const struct msg_watcher *m = request;
    struct watch *s = polled_find(m->watcher_id);
    if (!s) {
        rpc_fail(r, RPC_NOT_FOUND, "watcher with id %s not found", m->watcher_id);
        return;
    }
    polled_drop(s);
    rpc_reply(r, NULL, 0);
}
