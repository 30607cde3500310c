/* Owns the ways out of this process: scripts in Redis and calls to a master, both waited for in fibers.
 * Invariant: a proposal is sent to one master; only one that surely never arrived is sent to another. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lifecycle/lifecycle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISCOVER_MS 1000

struct script_wait {
    struct fiber_event done;
    int (*parse)(const redisReply *r, void *out, struct err *e);
    void *out;
    struct err *e;
    int result;
};

static void on_script(const redisReply *reply, const struct err *e, void *data)
{
    struct script_wait *w = data;
    if (!reply) {
        *w->e = *e;
        w->result = -1;
    } else if (w->parse) {
        w->result = w->parse(reply, w->out, w->e);
    }
    fiber_event_set(&w->done);
}

int script_run(struct lifecycle *l, struct redis_script *s, int n, const char *const *args,
               int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e)
{
    const char *argv[64] = {l->prefix};
    struct script_wait w = {.parse = parse, .out = out, .e = e};
    for (int i = 0; i < n && i < 63; i++)
        argv[i + 1] = args[i];
    redis_eval(l->redis, s, on_script, &w, 0, NULL, n + 1, argv, NULL);
    fiber_event_wait(&w.done, -1);
    return w.result;
}

struct call_wait {
    struct fiber_event done;
    ProtobufCMessage *reply;
    struct err *e;
    int result;
};

static void on_reply(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct call_wait *w = data;
    if (!reply) {
        *w->e = *e;
        w->result = -1;
    } else {
        size_t n = protobuf_c_message_get_packed_size(reply);
        uint8_t *bytes = malloc(n + 1);
        if (!bytes)
            abort();
        protobuf_c_message_pack(reply, bytes);
        w->reply = protobuf_c_message_unpack(reply->descriptor, NULL, n, bytes);
        free(bytes);
        if (!w->reply)
            w->result = err_set(w->e, ERR_INTERNAL, "reading an answer: out of memory");
    }
    fiber_event_set(&w->done);
}

int master_call(struct lifecycle *l, const char *path, const ProtobufCMessage *in,
                const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
                ProtobufCMessage **reply, struct err *e)
{
    err_set(e, ERR_UNAVAILABLE, "no master is known");
    e->sys = ECONNREFUSED;
    for (size_t tries = 0; tries < l->master_count + 1; tries++) {
        if (!l->master_count)
            return -1;
        struct rpc_client *c = l->masters[l->master_next++ % l->master_count];
        struct call_wait w = {.e = e};
        *e = (struct err){0};
        rpc_unary(c, path, in, out, timeout_ms, trace, on_reply, &w);
        fiber_event_wait(&w.done, -1);
        if (w.result == 0) {
            if (reply)
                *reply = w.reply;
            else
                protobuf_c_message_free_unpacked(w.reply, NULL);
            return 0;
        }
        if (e->code != ERR_UNAVAILABLE || e->sys != ECONNREFUSED)
            return -1;
    }
    return -1;
}

static bool master_known(struct lifecycle *l, const char *address)
{
    for (size_t i = 0; i < l->master_count; i++)
        if (strcmp(rpc_client_address(l->masters[i]), address) == 0)
            return true;
    return false;
}

static void master_add(struct lifecycle *l, const char *address)
{
    if (l->master_count == MASTERS_MAX || master_known(l, address))
        return;
    struct rpc_client *c = rpc_client_new(l->loop, l->creds, address, NULL);
    if (c)
        l->masters[l->master_count++] = c;
}

static int members_parse(const redisReply *r, void *out, struct err *e)
{
    struct lifecycle *l = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "discovering masters: unexpected answer");
    /* Members are "<instance> <address>". Masters that left keep their client: a call to them fails over at
     * once. */
    for (size_t i = 0; i < r->elements; i++) {
        const char *space = r->element[i]->str ? strchr(r->element[i]->str, ' ') : NULL;
        if (space)
            master_add(l, space + 1);
    }
    for (size_t i = 0; r->elements && i < l->master_count;) {
        bool alive = false;
        for (size_t k = 0; k < r->elements; k++) {
            const char *space = r->element[k]->str ? strchr(r->element[k]->str, ' ') : NULL;
            alive |= space && strcmp(space + 1, rpc_client_address(l->masters[i])) == 0;
        }
        if (alive || l->master_count == 1) {
            i++;
            continue;
        }
        rpc_client_free(l->masters[i]);
        l->masters[i] = l->masters[--l->master_count];
    }
    return 0;
}

static struct loop_timer discover_timer;
static struct lifecycle *discover_for;

static void on_members(const redisReply *reply, const struct err *e, void *data)
{
    struct err why = {0};
    if (reply)
        members_parse(reply, data, &why);
    loop_timer_start(discover_for->loop, &discover_timer, DISCOVER_MS);
}

static void on_discover(struct loop_timer *t)
{
    (void)t;
    redis_command(discover_for->redis, on_members, discover_for, "ZRANGEBYSCORE %s:svc:master %lld +inf",
                  discover_for->prefix, (long long)clock_realtime_ms());
}

int masters_start(struct lifecycle *l, struct err *e)
{
    if (strcmp(l->cfg.master, "discover") == 0) {
        discover_for = l;
        discover_timer.fire = on_discover;
        loop_timer_start(l->loop, &discover_timer, 0);
        return 0;
    }
    char *list = strdup(l->cfg.master), *save = NULL;
    if (!list)
        abort();
    for (char *a = strtok_r(list, ", ", &save); a; a = strtok_r(NULL, ", ", &save))
        master_add(l, a);
    free(list);
    if (!l->master_count)
        return err_set(e, ERR_INVALID,
                       "lifecycle.master names no master; give host:port, a list, or \"discover\"");
    return 0;
}
