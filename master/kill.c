/* Owns the end of a sandbox: legal from every state, in effect once, and finished even when its node is gone.
 * Invariant: after `killing` is committed nothing brings the sandbox back; the node's resources are freed
 * when the node confirms, or by the node itself when it returns and finds the tombstone. */
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/ops.h"
#include "proto/node.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_WITHIN_MS 5000 /* the caller waits this long for the node */
#define RETRY_MS 500

static int node_kill(struct master *m, const struct record *r, int64_t timeout_ms, struct err *e)
{
    if (!*r->node)
        return 0;
    Cube__Node__V1__KillRequest req = CUBE__NODE__V1__KILL_REQUEST__INIT;
    req.sandbox_id = (char *)r->id;
    req.reason = (char *)r->reason; /* gen 0: whatever runs of it */
    if (node_call(m, r->node, "/cube.node.v1.Sandboxes/Kill", &req.base,
                  &cube__node__v1__kill_reply__descriptor, timeout_ms, NULL, NULL, e) == 0)
        return 0;
    return e->code == ERR_NOT_FOUND ? 0 : -1;
}

static void commit_killed(struct master *m, const struct record *r, bool confirmed)
{
    struct commit_result res;
    struct err e = {0};
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_KILLED, NULL);
    commit_set(&c, "unconfirmed", confirmed ? "" : "1");
    commit_event(&c, "state",
                 confirmed ? "killed: the node confirmed"
                           : "killed: the node is away and will clean up when it returns");
    if (commit_settle(&c, r, STATE_KILLED, &res, &e) == COMMIT_FAILED)
        log_line(LOG_WARN, &(struct log_about){.sandbox = r->id, .err = &e}, "a kill stays for the sweeper");
}

void op_kill_finish(struct master *m, const struct record *r)
{
    int64_t until = m->now_ms() + state_table[STATE_KILLING].deadline_ms;
    for (;;) {
        struct err e = {0};
        if (node_kill(m, r, 5000, &e) == 0) {
            commit_killed(m, r, true);
            return;
        }
        struct node *n = fleet_find(m->fleet, r->node);
        if (m->now_ms() >= until || (n && (n->removed || strcmp(n->status, "lost") == 0))) {
            commit_killed(m, r, false);
            return;
        }
        fiber_sleep(RETRY_MS);
    }
}

struct background {
    struct master *m;
    struct record r;
};

static void background_fiber(void *arg)
{
    struct background *b = arg;
    struct inflight busy;
    inflight_begin(&busy, b->m, b->r.id);
    op_kill_finish(b->m, &b->r);
    inflight_end(&busy);
    free(b);
}

int op_kill(struct master *m, const char *id, const char *team, uint64_t if_rev, const char *reason,
            const char *trace, struct err *e)
{
    for (int tries = 0;; tries++) {
        _cleanup_record_ struct record r = {0};
        if (op_load(m, id, team, &r, e) < 0)
            return -1;
        if (r.state == STATE_KILLING || r.state == STATE_KILLED || r.state == STATE_FAILED)
            return err_set(e, ERR_NOT_FOUND, "sandbox %s not found", id);
        if (if_rev && if_rev != r.rev)
            return err_set(e, ERR_CONFLICT, "the sandbox changed meanwhile (it is %s)",
                           state_table[r.state].name);
        struct inflight busy;
        inflight_begin(&busy, m, r.id);
        struct commit_result res;
        struct commit c;
        commit_begin(&c, m, id, r.rev, STATE_KILLING, trace);
        commit_own(&c);
        commit_set(&c, "reason", reason);
        commit_event(&c, "state", "killing: %s", reason);
        enum commit_outcome o = commit_run(&c, &res, e);
        commit_end(&c);
        if (o == COMMIT_OK) {
            r.state = STATE_KILLING;
            r.rev = res.rev;
            snprintf(r.owner, sizeof r.owner, "%s", m->instance);
            snprintf(r.reason, sizeof r.reason, "%s", reason);
            struct err why = {0};
            if (node_kill(m, &r, ANSWER_WITHIN_MS, &why) == 0) {
                commit_killed(m, &r, true);
                inflight_end(&busy);
                return 0;
            }
            log_line(LOG_WARN, &(struct log_about){.sandbox = r.id, .err = &why},
                     "the kill goes on behind: %s", why.msg);
            struct background *b = malloc(sizeof *b);
            if (b) {
                *b = (struct background){.m = m, .r = r};
                b->r.spec = NULL;
                fiber_spawn(background_fiber, b);
            }
            inflight_end(&busy);
            return 0;
        }
        inflight_end(&busy);
        if ((o != COMMIT_CONFLICT && o != COMMIT_ILLEGAL) || tries >= 20)
            return -1;
    }
}
