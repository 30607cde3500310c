/* Owns the calls to masters. Invariant: a call has at most one RPC or one retry timer in flight; both end
 * when the request ends, and a call that may have had an effect is never repeated by us. */
#include "api/masters.h"
#include "api/metrics.h"
#include "api/server.h"

#include <errno.h>
#include <string.h>

#define RETRY_DELAY_MS 50

struct upstream {
    struct call *call;
    struct rpc_out *rpc;
    struct master *master; /* while rpc is in flight */
    struct loop_timer retry;
    const char *path;
    const ProtobufCMessageDescriptor *out;
    uint8_t *packed;
    size_t packed_len;
    unsigned flags;
    int64_t give_up_ms, deadline_ms;
    call_reply_cb *reply;
    call_error_cb *failed;
};

static void start(struct upstream *u);

static void on_retry(struct loop_timer *t)
{
    struct upstream *u = H2O_STRUCT_FROM_MEMBER(struct upstream, retry, t);
    api_metrics_master_retry();
    start(u);
}

static bool may_repeat(const struct upstream *u, const struct err *e)
{
    if (e->code != ERR_UNAVAILABLE)
        return false;
    bool never_sent = e->sys == ECONNREFUSED;
    return never_sent || (u->flags & UPSTREAM_READ);
}

static void finish(struct upstream *u, const struct err *e)
{
    struct call *c = u->call;
    c->upstream = NULL;
    struct err named;
    /* A quota does not become free by waiting, a rate does (contracts/e2b.md §7). */
    bool rate = e->code == ERR_RATE_LIMITED && strstr(e->msg, " rate ");
    if (rate)
        call_add_header(c, "retry-after", "1");
    if (e->code == ERR_UNSUPPORTED) {
        err_set(&named, ERR_UNSUPPORTED, "%s (%s %s) is not implemented yet: %.150s", c->route->name,
                route_method_name(c->route->method), c->route->pattern, e->msg);
        e = &named;
    }
    bool unknown_outcome = (e->code == ERR_UNAVAILABLE && e->sys != ECONNREFUSED) || e->code == ERR_DEADLINE;
    if ((u->flags & UPSTREAM_CREATE) && unknown_outcome && !call_header(c, "idempotency-key"))
        call_add_header(c, "should-retry", "false");
    if (u->failed)
        u->failed(c, e);
    else
        call_fail(c, e);
}

static void settle(struct upstream *u, const ProtobufCMessage *reply, const struct err *e)
{
    struct call *c = u->call;
    if (reply) {
        c->upstream = NULL;
        u->reply(c, reply);
        return;
    }
    if (may_repeat(u, e) && loop_now_ms(c->w->loop) < u->give_up_ms) {
        u->retry.fire = on_retry;
        loop_timer_start(c->w->loop, &u->retry,
                         masters_count(c->w->masters) > 1 ? RETRY_DELAY_MS / 10 : RETRY_DELAY_MS);
        return;
    }
    finish(u, e);
}

/* The master is left last: what the answer lies in may end with its connection. */
static void on_reply(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct upstream *u = data;
    struct master *master = u->master;
    u->rpc = NULL;
    u->master = NULL;
    if (!reply && may_repeat(u, e))
        masters_failed(u->call->w->masters, master);
    settle(u, reply, e);
    masters_leave(master);
}

static void start(struct upstream *u)
{
    struct call *c = u->call;
    u->master = masters_take(c->w->masters);
    if (!u->master) {
        struct err e = {0};
        err_set(&e, ERR_UNAVAILABLE, "no master is known: none has announced itself in Redis yet");
        e.sys = ECONNREFUSED; /* never sent */
        settle(u, NULL, &e);
        return;
    }
    int64_t left = u->deadline_ms - loop_now_ms(c->w->loop);
    u->rpc = rpc_unary_packed(master_client(u->master), u->path, u->packed, u->packed_len, u->out,
                              left > 1 ? left : 1, c->trace, on_reply, u);
}

void call_master(struct call *c, const char *path, const ProtobufCMessage *in,
                 const ProtobufCMessageDescriptor *out, unsigned flags, call_reply_cb *reply,
                 call_error_cb *failed)
{
    struct upstream *u = call_alloc(c, sizeof *u);
    int64_t now = loop_now_ms(c->w->loop);
    *u = (struct upstream){.call = c,
                           .path = path,
                           .out = out,
                           .flags = flags,
                           .give_up_ms = now + c->w->api->master_wait_ms,
                           .deadline_ms = now + c->w->api->master_timeout_ms,
                           .reply = reply,
                           .failed = failed};
    u->packed_len = protobuf_c_message_get_packed_size(in);
    u->packed = call_alloc(c, u->packed_len + 1);
    protobuf_c_message_pack(in, u->packed);
    c->upstream = u;
    start(u);
}

void upstream_cancel(struct call *c)
{
    struct upstream *u = c->upstream;
    if (!u)
        return;
    c->upstream = NULL;
    loop_timer_stop(c->w->loop, &u->retry);
    if (u->rpc)
        rpc_out_cancel(u->rpc);
    if (u->master)
        masters_leave(u->master);
    u->rpc = NULL;
    u->master = NULL;
}
