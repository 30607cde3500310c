/* Owns what the operations share: reading a record, and the commit that ends a transient state. */
#include "master/ops.h"

#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "proto/node.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_PATIENCE_MS 5000

static int get_parse(const redisReply *r, void *out, struct err *e)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2)
        return err_set(e, ERR_NOT_FOUND, "sandbox not found");
    if (record_parse(r->element[0], out, e) < 0)
        return -1;
    if (r->element[1]->type == REDIS_REPLY_STRING)
        record_parse_activity(out, r->element[1]->str, r->element[1]->len);
    return 0;
}

int op_load(struct master *m, const char *id, const char *team, struct record *out, struct err *e)
{
    *out = (struct record){0};
    if (!id_sandbox_valid(id, strlen(id)))
        return err_set(e, ERR_INVALID, "Invalid sandbox ID");
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, id);
    if (db_eval(m, &script_get, &a, get_parse, out, e) < 0)
        return e->code == ERR_NOT_FOUND ? err_set(e, ERR_NOT_FOUND, "sandbox %s not found", id) : -1;
    if (team && *team && strcmp(team, out->team) != 0) {
        record_free(out);
        return err_set(e, ERR_NOT_FOUND, "sandbox %s not found", id);
    }
    return 0;
}

enum commit_outcome commit_settle(struct commit *c, const struct record *r, enum sandbox_state to,
                                  struct commit_result *out, struct err *e)
{
    int64_t patience = c->m->now_ms() + SETTLE_PATIENCE_MS;
    for (;;) {
        enum commit_outcome o = commit_run(c, out, e);
        if (o != COMMIT_FAILED && o != COMMIT_CONFLICT && o != COMMIT_ILLEGAL)
            return o;
        if (o == COMMIT_FAILED) {
            if (c->m->now_ms() >= patience)
                return o;
            fiber_sleep(100);
        }
        _cleanup_record_ struct record now = {0};
        struct err again = {0};
        if (op_load(c->m, r->id, "", &now, &again) < 0) {
            if (again.code == ERR_NOT_FOUND)
                return COMMIT_MISSING;
            continue;
        }
        if (now.state == to && now.gen == r->gen) {
            out->outcome = COMMIT_OK;
            out->state = to;
            out->gen = now.gen;
            out->rev = now.rev;
            return COMMIT_OK;
        }
        if (now.state != r->state || now.gen != r->gen || strcmp(now.owner, c->m->instance) != 0) {
            if (now.state >= STATE_KILLING)
                err_set(e, ERR_NOT_FOUND, "sandbox %s not found: it is %s", r->id,
                        state_table[now.state].name);
            else
                err_set(e, ERR_CONFLICT, "the sandbox became %s meanwhile", state_table[now.state].name);
            return COMMIT_CONFLICT;
        }
        commit_rev(c, now.rev);
    }
}

int64_t remaining_ms(struct master *m, int64_t end_ms)
{
    if (end_ms <= 0)
        return 365LL * 86400000;
    int64_t left = end_ms - m->now_ms();
    return left > 0 ? left : 0;
}

int64_t ops_initial_memory(const struct master *m, const Cube__V1__Limits *l)
{
    int64_t mib = (int64_t)l->memory_mib * m->cfg.initial_memory_pct / 100;
    return mib < 32 ? 32 : mib;
}

struct drop {
    struct master *m;
    char node[NODE_ID_MAX + 1], id[SANDBOX_ID_LEN + 1], reason[96];
    uint64_t gen;
};

static void drop_fiber(void *arg)
{
    struct drop *d = arg;
    Cube__Node__V1__KillRequest kill = CUBE__NODE__V1__KILL_REQUEST__INIT;
    kill.sandbox_id = d->id;
    kill.gen = d->gen;
    kill.reason = d->reason;
    struct err e = {0};
    if (node_call(d->m, d->node, "/cube.node.v1.Sandboxes/Kill", &kill.base,
                  &cube__node__v1__kill_reply__descriptor, 10000, NULL, NULL, &e) < 0 &&
        e.code != ERR_NOT_FOUND)
        log_line(LOG_WARN, &(struct log_about){.sandbox = d->id, .gen = d->gen, .err = &e},
                 "dropping a sandbox on %s: %s", d->node, e.msg);
    free(d);
}

void node_drop_later(struct master *m, const char *node, const char *id, uint64_t gen, const char *reason)
{
    struct drop *d = calloc(1, sizeof *d);
    if (!d)
        return;
    d->m = m;
    d->gen = gen;
    snprintf(d->node, sizeof d->node, "%s", node);
    snprintf(d->id, sizeof d->id, "%s", id);
    snprintf(d->reason, sizeof d->reason, "%s", reason);
    fiber_spawn(drop_fiber, d);
}

int ops_reply_check(const Cube__Node__V1__StartReply *reply, uint64_t gen, struct err *e)
{
    if (reply->gen != gen)
        return err_set(e, ERR_UNAVAILABLE, "the node answered for generation %" PRIu64 " instead of %" PRIu64,
                       reply->gen, gen);
    if (strlen(reply->envd_version) > REPLY_WORD_MAX || strlen(reply->isolation) > REPLY_WORD_MAX)
        return err_set(e, ERR_UNAVAILABLE, "the node answered with a version or isolation of over %d bytes",
                       REPLY_WORD_MAX);
    return 0;
}

void op_ended_meanwhile(struct master *m, const char *id, struct err *e)
{
    _cleanup_record_ struct record now = {0};
    struct err why = {0};
    bool gone = op_load(m, id, "", &now, &why) < 0 ? why.code == ERR_NOT_FOUND
                                                   : state_table[now.state].view == VIEW_GONE;
    if (!gone)
        return;
    *e = (struct err){0};
    err_set(e, ERR_NOT_FOUND, "sandbox %s not found: it was ended meanwhile", id);
}
