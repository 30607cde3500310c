/* The control thread: Redis look-ups, the event stream, wake calls. The only writer of the route cache.
 * Invariants: a look-up whose sandbox got an event while it was under way is asked again, so an older answer
 * never replaces a newer state; that a sandbox does not exist is believed of a cell that has its records. */
#include "proxy/proxy.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/base/sockaddr.h"
#include "lib/net/daemon.h"
#include "lib/net/loop.h"
#include "lib/net/redis.h"
#include "lib/net/rpc.h"
#include "proto/lifecycle.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS_MAX = 64 };

/* One question about one sandbox; several workers may wait for the answer. */
struct question {
    struct question *next;
    struct control *control;
    char sandbox[SANDBOX_ID_LEN + 1];
    bool wake, again;
    uint64_t gen_seen, workers; /* bit per worker */
    int64_t took_ms;            /* of the wake that went well; the route is being read */
    char trace[33];
};

struct control {
    struct proxy *proxy;
    struct loop *loop;
    struct redis *redis;
    struct redis_stream *events;
    struct rpc_client *lifecycle;
    char key_prefix[32];
    int ended;
    struct question *questions[1024];
};

/* ---- messages between threads ---- */

struct ask_msg { /* worker → control */
    struct control *control;
    int worker;
    bool wake;
    uint64_t gen_seen;
    char sandbox[SANDBOX_ID_LEN + 1], trace[33];
};

struct answer_msg { /* control → worker */
    struct dp_msg msg;
    struct worker *worker;
    enum { ANSWER_LOOKUP, ANSWER_WAKE, ANSWER_CHANGED } what;
    struct route route;
    bool failed;
    struct err err;
    int64_t took_ms;
};

static void on_answer(struct dp_msg *m)
{
    struct answer_msg *a = (struct answer_msg *)m;
    const struct err *e = a->failed ? &a->err : NULL;
    switch (a->what) {
    case ANSWER_LOOKUP:
        sandbox_looked_up(a->worker, &a->route, e);
        break;
    case ANSWER_WAKE:
        sandbox_woken(a->worker, &a->route, e, a->took_ms);
        break;
    case ANSWER_CHANGED:
        sandbox_changed(a->worker, a->route.sandbox, a->route.gen, a->route.state);
        break;
    }
    free(a);
}

static void tell(struct worker *w, const struct answer_msg *what)
{
    struct answer_msg *a = malloc(sizeof *a);
    if (a == NULL)
        return;
    *a = *what;
    a->msg.run = on_answer;
    a->worker = w;
    dp_post(w->loop, &a->msg);
}

static void tell_all(struct control *c, const struct answer_msg *what)
{
    for (int i = 0; i < c->proxy->worker_count; i++)
        tell(&c->proxy->workers[i], what);
}

/* ---- routes as Redis has them ---- */

static struct str reply_str(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING ? (struct str){r->str, (uint32_t)r->len} : STR("");
}

static bool route_parse(struct control *c, const redisReply *reply, const char *sandbox, struct route *r)
{
    *r = (struct route){0};
    snprintf(r->sandbox, sizeof r->sandbox, "%s", sandbox);
    if (reply->type != REDIS_REPLY_ARRAY)
        return false;
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        if (!route_record_take(r, reply_str(reply->element[i]), reply_str(reply->element[i + 1])))
            return false;
    if (r->state != ROUTE_RUNNING)
        return true;
    /* Off loopback only TLS, with the node's name verified. */
    return r->relay_len && r->gen &&
           (c->proxy->relay_tls || sockaddr_is_local((const struct sockaddr *)&r->relay));
}

/* ---- questions ---- */

static struct question **question_slot(struct control *c, const char *sandbox, bool wake)
{
    uint32_t h = 2166136261u;
    for (const char *p = sandbox; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    struct question **at = &c->questions[h % 1024];
    while (*at && ((*at)->wake != wake || strcmp((*at)->sandbox, sandbox) != 0))
        at = &(*at)->next;
    return at;
}

static void question_answer(struct question *q, struct answer_msg *a)
{
    struct control *c = q->control;
    struct question **at = question_slot(c, q->sandbox, q->wake);
    *at = q->next;
    memcpy(a->route.sandbox, q->sandbox, sizeof q->sandbox);
    a->what = q->wake ? ANSWER_WAKE : ANSWER_LOOKUP;
    for (int i = 0; i < c->proxy->worker_count; i++)
        if (q->workers >> i & 1)
            tell(&c->proxy->workers[i], a);
    free(q);
}

static void lookup_send(struct question *q);

static bool asked_again(struct question *q, const struct err *e)
{
    if (!q->again || e)
        return false;
    q->again = false;
    lookup_send(q);
    return true;
}

/* No route. After a loss of data the records come back with the nodes' reports (internal.md §3): until then
 * the route that was known stays in use (the relay checks the generation), and of others nothing is said. */
static void on_cell_state(const redisReply *reply, const struct err *e, void *data)
{
    struct question *q = data;
    struct control *c = q->control;
    struct answer_msg a = {.took_ms = q->took_ms};
    if (asked_again(q, e))
        return;
    if (e) {
        a.failed = true;
        a.err = *e;
    } else if (str_is(reply_str(reply), "ready")) {
        route_cache_drop(c->proxy->routes, q->sandbox);
    } else if (!route_cache_last(c->proxy->routes, q->sandbox, &a.route)) {
        a.failed = true;
        err_set(&a.err, ERR_UNAVAILABLE, "the records of the cell are being recovered");
    }
    question_answer(q, &a);
}

static void on_lookup(const redisReply *reply, const struct err *e, void *data)
{
    struct question *q = data;
    struct answer_msg a = {.took_ms = q->took_ms};
    if (asked_again(q, e))
        return;
    if (e) {
        a.failed = true;
        a.err = *e;
    } else if (!route_parse(q->control, reply, q->sandbox, &a.route)) {
        log_line(LOG_ERROR, &(struct log_about){.sandbox = q->sandbox},
                 "the route in Redis is malformed, or its relay may only be reached by TLS");
        a.failed = true;
        err_set(&a.err, ERR_INTERNAL, "reading the route of %s: malformed", q->sandbox);
    } else if (a.route.state == ROUTE_NONE) {
        redis_command(q->control->redis, on_cell_state, q, "HGET %s:meta state", q->control->key_prefix);
        return;
    } else {
        route_cache_put(q->control->proxy->routes, &a.route);
    }
    question_answer(q, &a);
}

static void lookup_send(struct question *q)
{
    redis_command(q->control->redis, on_lookup, q, "HGETALL %s:rt:%s", q->control->key_prefix, q->sandbox);
}

static void on_wake(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct question *q = data;
    const Cube__Lifecycle__V1__WakeReply *w = (const Cube__Lifecycle__V1__WakeReply *)reply;
    if (w == NULL) {
        struct answer_msg a = {.failed = true, .err = *e};
        log_line(LOG_WARN, &(struct log_about){.sandbox = q->sandbox, .trace = q->trace, .err = e}, "waking");
        question_answer(q, &a);
        return;
    }
    q->took_ms = w->took_ms;
    /* The answer has no token digests and no policy: the route is read anew. */
    lookup_send(q);
}

static void wake_send(struct question *q)
{
    struct control *c = q->control;
    char trace[64];
    uint64_t span;
    random_bytes(&span, sizeof span);
    snprintf(trace, sizeof trace, "00-%s-%016" PRIx64 "-01", q->trace, span | 1);
    Cube__Lifecycle__V1__WakeRequest req = CUBE__LIFECYCLE__V1__WAKE_REQUEST__INIT;
    req.sandbox_id = q->sandbox;
    req.gen_seen = q->gen_seen;
    req.trace = trace;
    rpc_unary(c->lifecycle, "/cube.lifecycle.v1.Wake/Wake", &req.base,
              &cube__lifecycle__v1__wake_reply__descriptor, c->proxy->cfg.wake_timeout_ms, trace, on_wake, q);
}

static void on_ask(void *data)
{
    struct ask_msg *m = data;
    struct control *c = m->control;
    struct question **slot = question_slot(c, m->sandbox, m->wake), *q = *slot;
    if (q == NULL && (q = calloc(1, sizeof *q))) {
        q->control = c;
        q->wake = m->wake;
        q->gen_seen = m->gen_seen;
        memcpy(q->sandbox, m->sandbox, sizeof q->sandbox);
        memcpy(q->trace, m->trace, sizeof q->trace);
        if (q->trace[0] == 0) {
            uint8_t id[16];
            random_bytes(id, sizeof id);
            hex_encode(id, sizeof id, q->trace);
        }
        *slot = q;
        q->workers = 1ULL << m->worker;
        if (m->wake)
            wake_send(q);
        else
            lookup_send(q);
    } else if (q) {
        q->workers |= 1ULL << m->worker;
        q->again |= !m->wake; /* the answer on its way may be older than this question */
    }
    free(m);
}

static void ask(struct worker *w, const char *sandbox, bool wake, uint64_t gen_seen, const char *trace)
{
    struct ask_msg *m = calloc(1, sizeof *m);
    if (m == NULL)
        return;
    m->control = w->proxy->control;
    m->worker = w->index;
    m->wake = wake;
    m->gen_seen = gen_seen;
    snprintf(m->sandbox, sizeof m->sandbox, "%s", sandbox);
    snprintf(m->trace, sizeof m->trace, "%s", trace);
    loop_post(m->control->loop, on_ask, m);
}

void control_lookup(struct worker *w, const char *sandbox)
{
    ask(w, sandbox, false, 0, "");
}

void control_wake(struct worker *w, const char *sandbox, uint64_t gen_seen, const char *trace)
{
    ask(w, sandbox, true, gen_seen, trace);
}

/* ---- events ---- */

static struct str entry_field(const redisReply *fields, const char *name)
{
    for (size_t i = 0; i + 1 < fields->elements; i += 2)
        if (str_is(reply_str(fields->element[i]), name))
            return reply_str(fields->element[i + 1]);
    return STR("");
}

static void on_event(const char *id, const redisReply *fields, void *data)
{
    struct control *c = data;
    struct answer_msg a = {.what = ANSWER_CHANGED};
    char gen[24];
    if (!str_is(entry_field(fields, "kind"), "route") ||
        !route_text_copy(entry_field(fields, "id"), a.route.sandbox, sizeof a.route.sandbox) ||
        !route_text_copy(entry_field(fields, "gen"), gen, sizeof gen))
        return;
    a.route.gen = strtoull(gen, NULL, 10);
    a.route.state = route_state_parse(entry_field(fields, "state"));
    /* First nobody can find the old route any more, then the connections of the old generation go. */
    route_cache_drop(c->proxy->routes, a.route.sandbox);
    for (int wake = 0; wake < 2; wake++) { /* a wake ends in a look-up too */
        struct question *q = *question_slot(c, a.route.sandbox, wake);
        if (q)
            q->again = true;
    }
    tell_all(c, &a);
}

static void on_gap(void *data)
{
    struct control *c = data;
    log_info("events may have been missed: routes are read again at their next use");
    route_cache_unverify(c->proxy->routes);
}

static void on_redis_state(bool connected, void *data)
{
    struct control *c = data;
    route_cache_offline(c->proxy->routes, !connected);
    log_line(connected ? LOG_INFO : LOG_WARN, NULL,
             connected ? "Redis is reachable" : "Redis is away: known routes stay in use");
}

/* ---- start ---- */

struct loop *control_loop(struct proxy *p)
{
    return p->control->loop;
}

void control_accepting(struct proxy *p)
{
    announce_start(p, p->control->redis, p->control->key_prefix);
}

bool control_ready(struct proxy *p)
{
    return redis_connected(p->control->redis);
}

static int password_load(const char *path, char *out, size_t cap, struct err *e)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (f == NULL || fgets(out, (int)cap, f) == NULL)
        return err_sys(e, ERR_INVALID, "reading the Redis password from %s", path);
    out[strcspn(out, "\r\n")] = 0;
    return 0;
}

static void on_worker_ended(void *data)
{
    struct control *c = data;
    if (++c->ended < c->proxy->worker_count)
        return;
    workers_join(
        c->proxy); /* what OpenSSL keeps per thread goes as they end: not while it is being taken down */
    daemon_done();
}

void control_worker_ended(struct proxy *p)
{
    loop_post(p->control->loop, on_worker_ended, p->control);
}

int control_start(struct proxy *p, struct loop *l, struct err *e)
{
    struct control *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(e, ERR_INTERNAL, "starting the control thread: out of memory");
    c->loop = l;
    p->control = c;
    c->proxy = p;
    snprintf(c->key_prefix, sizeof c->key_prefix, "{c%s}", p->cfg.cell);
    char password[256] = "";
    if (p->cfg.redis_password_file[0] &&
        password_load(p->cfg.redis_password_file, password, sizeof password, e) != 0)
        return -1;
    struct redis_config redis = {.address = p->cfg.redis,
                                 .user = p->cfg.redis_user[0] ? p->cfg.redis_user : NULL,
                                 .password = password[0] ? password : NULL};
    struct rpc_auth auth = {.role = RPC_ROLE_PROXY, .key_dir = p->cfg.key_dir};
    struct rpc_creds *creds = rpc_creds_load(&auth, e);
    if (creds == NULL)
        return -1;
    c->lifecycle = rpc_client_new(c->loop, creds, p->cfg.lifecycle, NULL);
    c->redis = redis_new(c->loop, &redis);
    char key[40];
    snprintf(key, sizeof key, "%s:ev", c->key_prefix);
    route_cache_offline(p->routes, true);
    redis_on_state(c->redis, on_redis_state, c);
    c->events = redis_stream_follow(c->loop, &redis, key, "$", on_event, on_gap, c);
    if (c->lifecycle == NULL || c->redis == NULL || c->events == NULL)
        return err_set(e, ERR_INTERNAL, "connecting to Redis and lifecycle: out of memory");
    return 0;
}
