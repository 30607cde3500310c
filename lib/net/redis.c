/* Owns the commands under way; invariant: every command gets exactly one callback, never before redis_command
 * has returned, and in the order of sending for those that were sent. */
#include "lib/net/redis_impl.h"

#include "lib/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void release(struct redis *r)
{
    while (r->watchers) {
        struct redis_watcher *w = r->watchers;
        r->watchers = w->next;
        free(w);
    }
    for (int i = 0; i < r->sentinel_count; i++)
        free(r->sentinels[i]);
    free(r->sentinel_name);
    free(r->address);
    free(r->user);
    free(r->password);
    free(r);
}

void redis_enter(struct redis *r)
{
    r->busy++;
}

void redis_leave(struct redis *r)
{
    if (--r->busy == 0 && r->freed)
        release(r);
}

bool redis_connected(struct redis *r)
{
    return r->state == REDIS_READY;
}

void redis_on_state(struct redis *r, void (*changed)(bool connected, void *data), void *data)
{
    struct redis_watcher *w = calloc(1, sizeof *w);
    if (!w)
        abort();
    *w = (struct redis_watcher){.changed = changed, .data = data, .next = r->watchers};
    r->watchers = w;
}

void redis_became(struct redis *r, bool connected)
{
    redis_enter(r);
    for (struct redis_watcher *w = r->watchers; w && !r->freed; w = w->next)
        w->changed(connected, w->data);
    redis_leave(r);
}

/* ---- requests ---- */

struct redis_request *redis_request_new(struct redis *r, redis_reply_cb cb, void *data, int64_t timeout_ms)
{
    struct redis_request *q = calloc(1, sizeof *q);
    if (!q)
        abort();
    *q = (struct redis_request){.redis = r, .cb = cb, .data = data, .deadline_ms = timeout_ms};
    redis_enter(r);
    return q;
}

static void request_end(struct redis_request *q, const redisReply *reply, const struct err *e)
{
    struct redis *r = q->redis;
    if (q->cb)
        q->cb(reply, e, q->data);
    buf_free(&q->tail);
    free(q);
    redis_leave(r);
}

static void on_fail_soon(struct loop_task *t)
{
    struct redis_request *q = H2O_STRUCT_FROM_MEMBER(struct redis_request, task, t);
    struct err e = {0};
    err_set(&e, ERR_UNAVAILABLE, "Redis at %s is not reachable", q->redis->address);
    e.sys = ECONNREFUSED; /* never sent */
    request_end(q, NULL, &e);
}

void redis_request_fail_soon(struct redis_request *q)
{
    q->task.run = on_fail_soon;
    loop_defer(q->redis->loop, &q->task);
}

static void watch_oldest(struct redis *r)
{
    if (r->sent)
        loop_timer_start(r->loop, &r->oldest, r->sent->deadline_ms - loop_now_ms(r->loop));
    else
        loop_timer_stop(r->loop, &r->oldest);
}

/* Errors that say "not now" rather than "wrong": the caller may try again. */
static enum err_code code_of(const char *message)
{
    static const char *const passing[] = {"LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS",
                                          "BUSY",    "TRYAGAIN", "CLUSTERDOWN"};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (strncmp(message, passing[i], strlen(passing[i])) == 0)
            return ERR_UNAVAILABLE;
    return ERR_INTERNAL;
}

static void on_reply(redisAsyncContext *ctx, void *raw, void *data)
{
    struct redis_request *q = data;
    struct redis *r = q->redis;
    const redisReply *reply = raw;
    struct err e = {0};
    if (r->sent == q) {
        r->sent = q->next;
        if (!r->sent)
            r->sent_tail = &r->sent;
    }
    redis_enter(r);
    if (!reply) {
        /* The connection broke with the command under way: whether it took effect is unknown. */
        err_set(&e, r->freed ? ERR_CANCELLED : ERR_UNAVAILABLE, "Redis at %s: %s", r->address,
                r->freed ? "the client was closed" : "the connection broke before the answer");
        e.sys = ECONNRESET;
        request_end(q, NULL, &e);
    } else if (reply->type == REDIS_REPLY_ERROR) {
        bool demoted = strncmp(reply->str, "READONLY", 8) == 0;
        if (!redis_script_retry(q, reply)) {
            err_set(&e, code_of(reply->str), "Redis: %s", reply->str);
            request_end(q, NULL, &e);
        }
        if (demoted && !r->freed && r->state == REDIS_READY)
            redis_lost(r, "the server has become a replica");
    } else {
        request_end(q, reply, NULL);
    }
    if (!r->freed)
        watch_oldest(r);
    redis_leave(r);
}

void redis_send(struct redis *r, struct redis_request *q, const char *bytes, size_t n)
{
    int64_t timeout = q->deadline_ms > 0 && q->deadline_ms != INT64_MAX ? q->deadline_ms : r->timeout_ms;
    if (!r->ctx || r->freed || redisAsyncFormattedCommand(r->ctx, on_reply, q, bytes, n) != REDIS_OK) {
        redis_request_fail_soon(q);
        return;
    }
    q->deadline_ms = loop_now_ms(r->loop) + timeout;
    q->next = NULL;
    *r->sent_tail = q;
    r->sent_tail = &q->next;
    if (r->sent == q)
        watch_oldest(r);
}

static void on_oldest(struct loop_timer *t)
{
    struct redis *r = H2O_STRUCT_FROM_MEMBER(struct redis, oldest, t);
    redis_lost(r, "no answer in time");
}

void redis_put_bulk(struct buf *b, const char *s, size_t n)
{
    buf_printf(b, "$%zu\r\n", n);
    buf_append(b, s, n);
    buf_append(b, "\r\n", 2);
}

void redis_command_within(struct redis *r, int64_t timeout_ms, redis_reply_cb cb, void *data, int argc,
                          const char **argv)
{
    _cleanup_buf_ struct buf b = {0};
    buf_printf(&b, "*%d\r\n", argc);
    for (int i = 0; i < argc; i++)
        redis_put_bulk(&b, argv[i], strlen(argv[i]));
    struct redis_request *q = redis_request_new(r, cb, data, timeout_ms);
    if (b.failed)
        redis_request_fail_soon(q);
    else
        redis_send(r, q, b.data, b.len);
}

void redis_command_argv(struct redis *r, redis_reply_cb cb, void *data, int argc, const char **argv,
                        const size_t *lens)
{
    _cleanup_buf_ struct buf b = {0};
    buf_printf(&b, "*%d\r\n", argc);
    for (int i = 0; i < argc; i++)
        redis_put_bulk(&b, argv[i], lens ? lens[i] : strlen(argv[i]));
    struct redis_request *q = redis_request_new(r, cb, data, 0);
    if (b.failed || r->state != REDIS_READY)
        redis_request_fail_soon(q);
    else
        redis_send(r, q, b.data, b.len);
}

void redis_command(struct redis *r, redis_reply_cb cb, void *data, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = redisvFormatCommand(&text, fmt, ap);
    va_end(ap);
    struct redis_request *q = redis_request_new(r, cb, data, 0);
    if (n < 0 || r->state != REDIS_READY)
        redis_request_fail_soon(q);
    else
        redis_send(r, q, text, (size_t)n);
    if (n >= 0)
        redisFreeCommand(text);
}

/* ---- life ---- */

/* "sentinel:NAME@h1:p1,h2:p2"; anything malformed shows as an address that never answers, with this name in
 * the error. */
static void parse_sentinels(struct redis *r)
{
    if (strncmp(r->address, "sentinel:", 9) != 0)
        return;
    const char *name = r->address + 9, *at = strchr(name, '@');
    if (!at)
        return;
    r->sentinel_name = strndup(name, (size_t)(at - name));
    for (const char *p = at + 1; *p && r->sentinel_count < REDIS_SENTINELS;) {
        size_t n = strcspn(p, ",");
        if (n > 0)
            r->sentinels[r->sentinel_count++] = strndup(p, n);
        p += n + (p[n] == ',');
    }
}

struct redis *redis_new(struct loop *l, const struct redis_config *cfg)
{
    struct redis *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->loop = l;
    r->address = strdup(cfg->address);
    r->user = cfg->user && *cfg->user ? strdup(cfg->user) : NULL;
    r->password = cfg->password && *cfg->password ? strdup(cfg->password) : NULL;
    r->timeout_ms = cfg->timeout_ms > 0 ? cfg->timeout_ms : 2000;
    r->sent_tail = &r->sent;
    r->oldest.fire = on_oldest;
    parse_sentinels(r);
    redis_connect(r);
    return r;
}

void redis_free(struct redis *r)
{
    if (!r)
        return;
    redis_enter(r);
    r->freed = true;
    loop_timer_stop(r->loop, &r->timer);
    loop_timer_stop(r->loop, &r->oldest);
    resolve_cancel(r->resolving);
    r->resolving = NULL;
    redisAsyncContext *ctx = r->ctx;
    r->ctx = NULL;
    r->state = REDIS_WAITING;
    if (ctx) {
        ctx->data = NULL;    /* hiredis still calls on_disconnect, perhaps after we are gone */
        redisAsyncFree(ctx); /* answers what was sent, with NULL (later when called from a reply) */
    }
    redis_leave(r);
}
