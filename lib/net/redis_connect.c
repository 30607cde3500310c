/* Owns the way to a working connection: Sentinel, name, TCP, AUTH, and the check that a loaded master
 * answers. Invariant: at most one attempt is under way, and it ends within the configured timeout. */
#include "lib/net/redis_impl.h"

#include "lib/base/ids.h"
#include "lib/base/log.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define BACKOFF_FIRST_MS 50
#define BACKOFF_MOST_MS 1000

static void on_timer(struct loop_timer *t);
static void dial(struct redis *r, const char *address);

/* A tenth of chance, so that the clients of a fallen Redis do not come back in one beat. */
static int64_t with_jitter(int64_t ms)
{
    uint8_t b;
    random_bytes(&b, 1);
    return ms + ms * b / 2560;
}

void redis_lost(struct redis *r, const char *why)
{
    bool was_ready = r->state == REDIS_READY;
    redis_enter(r);
    log_line(was_ready ? LOG_WARN : LOG_DEBUG, NULL, "Redis at %s: %s", r->address, why);
    r->state = REDIS_WAITING;
    resolve_cancel(r->resolving);
    r->resolving = NULL;
    if (r->sentinel_count > 0)
        r->sentinel_next = (r->sentinel_next + 1) % r->sentinel_count;
    if (was_ready || r->backoff_ms == 0)
        r->backoff_ms = BACKOFF_FIRST_MS;
    r->timer.fire = on_timer;
    loop_timer_start(r->loop, &r->timer, with_jitter(r->backoff_ms));
    r->backoff_ms = r->backoff_ms * 2 > BACKOFF_MOST_MS ? BACKOFF_MOST_MS : r->backoff_ms * 2;
    redisAsyncContext *ctx = r->ctx;
    r->ctx = NULL;
    if (ctx) {
        ctx->data = NULL;
        redisAsyncFree(ctx); /* the callbacks of what was sent */
    }
    if (was_ready && !r->freed)
        redis_became(r, false);
    redis_leave(r);
}

static void on_timer(struct loop_timer *t)
{
    struct redis *r = H2O_STRUCT_FROM_MEMBER(struct redis, timer, t);
    if (r->state == REDIS_WAITING)
        redis_connect(r);
    else
        redis_lost(r, "connecting timed out");
}

/* The callbacks of a context that was given up come late; ctx->data says whose it was, r->ctx whether it
 * still counts. */
static void on_disconnect(const redisAsyncContext *ctx, int status)
{
    struct redis *r = ctx->data;
    if (!r || r->ctx != ctx)
        return;
    char why[128];
    snprintf(why, sizeof why, "%s", ctx->errstr && *ctx->errstr ? ctx->errstr : "disconnected");
    r->ctx = NULL; /* hiredis frees it after this */
    redis_lost(r, why);
}

static void ready(struct redis *r)
{
    loop_timer_stop(r->loop, &r->timer);
    r->state = REDIS_READY;
    r->backoff_ms = BACKOFF_FIRST_MS;
    log_info("Redis at %s: connected", r->address);
    redis_became(r, true);
}

/* PING is refused while the data set is read; ROLE is not, but tells a replica from a master. Where the ACL
 * forbids ROLE, the PING has to do. */
static void on_ping(const redisReply *reply, const struct err *e, void *data)
{
    struct redis *r = data;
    if (r->freed || r->state != REDIS_CONNECTING || !r->ctx)
        return;
    if (e)
        redis_lost(r, e->msg);
    else
        ready(r);
}

static void on_role(const redisReply *reply, const struct err *e, void *data)
{
    struct redis *r = data;
    if (r->freed || r->state != REDIS_CONNECTING || !r->ctx)
        return;
    if (e && !strstr(e->msg, "NOPERM"))
        redis_lost(r, e->msg);
    else if (reply && (reply->type != REDIS_REPLY_ARRAY || reply->elements < 1 || !reply->element[0]->str ||
                       strcmp(reply->element[0]->str, "master") != 0))
        redis_lost(r, "the server is a replica");
    else
        redis_command_within(r, 0, on_ping, r, 1, (const char *[]){"PING"});
}

static void on_auth(const redisReply *reply, const struct err *e, void *data)
{
    struct redis *r = data;
    if (e && !r->freed && r->state == REDIS_CONNECTING && r->ctx) {
        log_fail(e, "authenticating at Redis %s", r->address);
        redis_lost(r, e->msg);
    }
}

static void on_master_address(const redisReply *reply, const struct err *e, void *data)
{
    struct redis *r = data;
    if (r->freed || r->state != REDIS_FINDING || !r->ctx)
        return;
    if (e || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || !reply->element[0]->str ||
        !reply->element[1]->str) {
        redis_lost(r, e ? e->msg : "the Sentinel does not know this master");
        return;
    }
    char address[300];
    bool v6 = strchr(reply->element[0]->str, ':') != NULL;
    snprintf(address, sizeof address, v6 ? "[%.200s]:%.8s" : "%.200s:%.8s", reply->element[0]->str,
             reply->element[1]->str);
    redisAsyncContext *ctx = r->ctx;
    r->ctx = NULL;
    ctx->data = NULL;
    redisAsyncFree(ctx); /* after this callback */
    r->state = REDIS_CONNECTING;
    dial(r, address);
}

static void on_connect(const redisAsyncContext *ctx, int status)
{
    struct redis *r = ctx->data;
    if (!r || r->ctx != ctx)
        return;
    if (status != REDIS_OK) {
        char why[128];
        snprintf(why, sizeof why, "%s", ctx->errstr ? ctx->errstr : "connecting failed");
        r->ctx = NULL; /* hiredis frees it after this */
        redis_lost(r, why);
        return;
    }
    if (r->state == REDIS_FINDING) {
        const char *ask[] = {"SENTINEL", "get-master-addr-by-name", r->sentinel_name};
        redis_command_within(r, 0, on_master_address, r, 3, ask);
        return;
    }
    if (r->password) {
        const char *auth[] = {"AUTH", r->user ? r->user : "default", r->password};
        redis_command_within(r, 0, on_auth, r, 3, auth);
    }
    redis_command_within(r, 0, on_role, r, 1, (const char *[]){"ROLE"});
}

static void on_resolved(const struct sockaddr_storage *a, socklen_t len, const struct err *e, void *data)
{
    struct redis *r = data;
    r->resolving = NULL;
    if (!a) {
        redis_lost(r, e->msg);
        return;
    }
    char host[INET6_ADDRSTRLEN];
    redisAsyncContext *ctx;
    if (a->ss_family == AF_UNIX) {
        ctx = redisAsyncConnectUnix(((const struct sockaddr_un *)a)->sun_path);
    } else if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        ctx = redisAsyncConnect(inet_ntop(AF_INET, &in->sin_addr, host, sizeof host), ntohs(in->sin_port));
    } else {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
        ctx =
            redisAsyncConnect(inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host), ntohs(in6->sin6_port));
    }
    if (!ctx || ctx->err || redis_attach(r->loop, ctx) < 0) {
        char why[128];
        snprintf(why, sizeof why, "%s", ctx && ctx->errstr ? ctx->errstr : "connecting failed");
        if (ctx)
            redisAsyncFree(ctx);
        redis_lost(r, why);
        return;
    }
    int on = 1;
    setsockopt(ctx->c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* fails on Unix sockets, harmlessly */
    ctx->data = r;
    r->ctx = ctx;
    redisAsyncSetConnectCallback(ctx, on_connect);
    redisAsyncSetDisconnectCallback(ctx, on_disconnect);
}

static void dial(struct redis *r, const char *address)
{
    r->resolving = resolve_start(r->loop, address, on_resolved, r);
}

void redis_connect(struct redis *r)
{
    r->timer.fire = on_timer;
    loop_timer_start(r->loop, &r->timer, r->timeout_ms);
    r->state = r->sentinel_count > 0 ? REDIS_FINDING : REDIS_CONNECTING;
    dial(r, r->sentinel_count > 0 ? r->sentinels[r->sentinel_next] : r->address);
}
