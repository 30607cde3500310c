/* Owns pause, resume and the deadline of a running sandbox. Invariant: a resume that finds a pause in flight
 * waits for it, and whoever finds another's resume in flight shares it: one VM is started, however many ask.
 */
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/ops.h"
#include "proto/node.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESUME_WAIT_MS 60000
#define PAUSE_TIMEOUT_MS 110000
#define HEALTHY_WITHIN_MS 15000
#define WAKE_TIMEOUT_MS 300000

static int not_now(const struct record *r, const char *verb, struct err *e)
{
    if (state_table[r->state].view == VIEW_GONE)
        return err_set(e, ERR_NOT_FOUND, "sandbox %s not found", r->id);
    return err_set(e, ERR_CONFLICT, "sandbox %s is %s and cannot be %s now", r->id,
                   state_table[r->state].name, verb);
}

/* Whether the node's error leaves open what it did. */
static bool unknown_effect(const struct err *e)
{
    return e->code == ERR_DEADLINE || e->code == ERR_CANCELLED ||
           (e->code == ERR_UNAVAILABLE && e->sys != ECONNREFUSED);
}

static int pause_commit(struct master *m, struct record *r, bool disk_only, const char *reason,
                        const char *snapshot, const char *trace, struct err *e)
{
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_PAUSING, trace);
    commit_own(&c);
    commit_set(&c, "snapshot", snapshot);
    commit_set(&c, "fs_only", disk_only ? "1" : "");
    commit_event(&c, "state", "pausing%s: %s", disk_only ? " (file system only)" : "",
                 *reason ? reason : "asked by the user");
    if (commit_run(&c, &res, e) != COMMIT_OK)
        return -1;
    r->state = STATE_PAUSING;
    r->rev = res.rev;
    r->filesystem_only = disk_only;
    snprintf(r->owner, sizeof r->owner, "%s", m->instance);
    return 0;
}

static int pause_end(struct master *m, struct record *r, enum sandbox_state to,
                     const Cube__Node__V1__PauseReply *reply, const char *why, struct err *e)
{
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, to, NULL);
    if (to == STATE_PAUSED) {
        commit_set_int(&c, "end", m->now_ms());
        if (*reply->snapshot_id)
            commit_set(&c, "snapshot", reply->snapshot_id);
        commit_set(&c, "unresponsive", reply->guest_unresponsive ? "1" : "");
        commit_event(&c, "state", "paused (frozen for %" PRId64 " ms)", reply->frozen_us / 1000);
    } else {
        commit_set(&c, "snapshot", "");
        commit_set(&c, "fs_only", "");
        commit_route(&c, r->spec, r->gen);
        commit_event(&c, "state", "running: the pause was refused: %s", why);
    }
    return commit_settle(&c, r, to, &res, e) == COMMIT_OK ? 0 : -1;
}

int op_pause(struct master *m, const Cube__Master__V1__PauseRequest *req, const char *trace,
             struct record *out, struct err *e)
{
    _cleanup_record_ struct record r = {0};
    bool disk_only = req->filesystem_only;
    for (int tries = 0;; tries++) {
        record_free(&r);
        if (op_load(m, req->sandbox_id, req->team_id, &r, e) < 0)
            return -1;
        if (r.state == STATE_PAUSED || r.state == STATE_PAUSING)
            return err_set(e, ERR_CONFLICT, "sandbox %s is already paused", r.id);
        if (r.state != STATE_RUNNING)
            return not_now(&r, "paused", e);
        if (*r.op)
            return err_set(e, ERR_CONFLICT, "a %s of sandbox %s is in flight", r.op, r.id);
        if (req->if_rev && req->if_rev != r.rev)
            return err_set(e, ERR_CONFLICT, "the sandbox changed meanwhile");
        if (req->require_healthy && r.last_answer_ms && m->now_ms() - r.last_answer_ms > HEALTHY_WITHIN_MS)
            return err_set(e, ERR_UNAVAILABLE, "the guest agent of sandbox %s does not answer; not paused",
                           r.id);
        if (req->by_policy && r.auto_pause)
            disk_only = !r.spec->auto_pause_memory;
        char snapshot[24] = "p";
        id_random(snapshot + 1, 19);
        if (pause_commit(m, &r, disk_only, req->reason, snapshot, trace, e) == 0) {
            snprintf(r.snapshot, sizeof r.snapshot, "%s", snapshot);
            break;
        }
        if (e->code != ERR_CONFLICT || req->if_rev || tries >= 20)
            return -1;
    }
    struct inflight busy;
    inflight_begin(&busy, m, r.id);
    Cube__Node__V1__PauseRequest ask = CUBE__NODE__V1__PAUSE_REQUEST__INIT;
    ask.sandbox_id = r.id;
    ask.gen = r.gen;
    ask.filesystem_only = disk_only;
    ask.snapshot_id = r.snapshot;
    ProtobufCMessage *reply = NULL;
    struct err why = {0};
    int rc = node_call(m, r.node, "/cube.node.v1.Sandboxes/Pause", &ask.base,
                       &cube__node__v1__pause_reply__descriptor, PAUSE_TIMEOUT_MS, trace, &reply, &why);
    if (rc == 0) {
        rc = pause_end(m, &r, STATE_PAUSED, (Cube__Node__V1__PauseReply *)reply, NULL, e);
        protobuf_c_message_free_unpacked(reply, NULL);
    } else if (unknown_effect(&why) || why.code == ERR_NOT_FOUND) {
        inflight_end(&busy);
        op_reconcile_later(m, r.id);
        err_set(e, ERR_UNAVAILABLE, "pausing sandbox %s: %.180s", r.id, why.msg);
        op_ended_meanwhile(m, r.id, e);
        return -1;
    } else {
        pause_end(m, &r, STATE_RUNNING, NULL, why.msg, e);
        *e = why;
        rc = -1;
    }
    if (rc < 0)
        op_ended_meanwhile(m, r.id, e);
    inflight_end(&busy);
    return rc == 0 ? op_load(m, r.id, "", out, e) : -1;
}

static int deadline_touch(struct master *m, struct record *r, int64_t end, const char *why, struct err *e)
{
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_NONE, NULL);
    commit_set_int(&c, "end", end);
    commit_event(&c, "deadline", "%s: %" PRId64 " s from now", why, (end - m->now_ms() + 500) / 1000);
    if (commit_run(&c, &res, e) != COMMIT_OK)
        return -1;
    r->end_ms = end;
    r->rev = res.rev;
    return 0;
}

/* The longest time that the team grants, counted from the sandbox's (last) start: no extension passes it
 * (contracts/e2b.md §7). 0 = none; a sandbox of mode idle lives by its activity. */
static int life_limit(struct master *m, const struct record *r, int64_t *ms, struct err *e)
{
    Cube__Master__V1__Team *team = NULL;
    *ms = 0;
    if (r->idle_ms > 0)
        return 0;
    if (catalog_team(m, r->team, &team, e) < 0)
        return e->code == ERR_NOT_FOUND ? (*e = (struct err){0}, 0) : -1;
    *ms = team->max_timeout_ms;
    cube__master__v1__team__free_unpacked(team, NULL);
    return 0;
}

/* Cuts `*end` to that. An end that is not later than the present one needs no leave. */
static int end_limit(struct master *m, const struct record *r, int64_t *end, struct err *e)
{
    int64_t life, last;
    if (r->end_ms > 0 && *end <= r->end_ms)
        return 0;
    if (life_limit(m, r, &life, e) < 0)
        return -1;
    last = r->started_ms + life;
    if (life == 0 || *end <= last)
        return 0;
    if (m->now_ms() >= last)
        return err_set(e, ERR_INVALID, "Max instance length exceeded");
    *end = last;
    return 0;
}

struct update {
    struct master *m;
    char node[NODE_ID_MAX + 1], id[SANDBOX_ID_LEN + 1];
    uint64_t gen;
    int64_t remaining_ms;
};

static void update_fiber(void *arg)
{
    struct update *u = arg;
    Cube__Node__V1__UpdateRequest req = CUBE__NODE__V1__UPDATE_REQUEST__INIT;
    struct err e = {0};
    req.sandbox_id = u->id;
    req.gen = u->gen;
    req.remaining_ms = u->remaining_ms;
    /* The node's copy only matters when the control plane is gone (internal.md §10): best effort. */
    if (node_call(u->m, u->node, "/cube.node.v1.Sandboxes/Update", &req.base,
                  &cube__node__v1__update_reply__descriptor, 5000, NULL, NULL, &e) < 0)
        log_line(LOG_DEBUG, &(struct log_about){.sandbox = u->id, .gen = u->gen, .err = &e},
                 "telling the node a deadline: %s", e.msg);
    free(u);
}

static void node_update_later(struct master *m, const struct record *r)
{
    struct update *u = calloc(1, sizeof *u);
    if (!u)
        return;
    u->m = m;
    u->gen = r->gen;
    u->remaining_ms = remaining_ms(m, r->end_ms);
    snprintf(u->node, sizeof u->node, "%s", r->node);
    snprintf(u->id, sizeof u->id, "%s", r->id);
    fiber_spawn(update_fiber, u);
}

int op_deadline(struct master *m, const Cube__Master__V1__SetDeadlineRequest *req, struct record *out,
                struct err *e)
{
    if (req->timeout_ms < 0)
        return err_set(e, ERR_INVALID, "Timeout must be greater than 0");
    for (int tries = 0;; tries++) {
        if (op_load(m, req->sandbox_id, req->team_id, out, e) < 0)
            return -1;
        int64_t end = m->now_ms() + req->timeout_ms;
        if (out->state != STATE_RUNNING) {
            not_now(out, "given another timeout", e);
        } else if (req->if_rev && req->if_rev != out->rev) {
            err_set(e, ERR_CONFLICT, "the sandbox changed meanwhile");
        } else if (*req->team_id && req->timeout_ms > 0 && end_limit(m, out, &end, e) < 0) {
            record_free(out);
            return -1;
        } else if ((req->extend_only && end <= out->end_ms) ||
                   deadline_touch(m, out, end, req->extend_only ? "extended" : "set", e) == 0) {
            node_update_later(m, out);
            return 0;
        } else if (e->code == ERR_CONFLICT && !req->if_rev && tries < 20) {
            record_free(out);
            continue;
        }
        record_free(out);
        return -1;
    }
}

/* ---- resume ---- */

static int resume_commit(struct master *m, struct record *r, uint64_t gen, const char *why, const char *trace,
                         struct err *e)
{
    struct sched_policy policy = fleet_policy(m);
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_RESUMING, trace);
    commit_gen(&c, gen);
    commit_own(&c);
    commit_reserve(&c, ops_initial_memory(m, r->spec->limits), &policy);
    commit_route(&c, r->spec, gen);
    if (r->state == STATE_PAUSED)
        commit_event(&c, "state", "resuming: %s", why);
    else
        commit_event(&c, "retry", "the node knew generation %" PRIu64, gen - 1);
    if (commit_run(&c, &res, e) != COMMIT_OK)
        return -1;
    r->state = STATE_RESUMING;
    r->gen = gen;
    r->rev = res.rev;
    snprintf(r->owner, sizeof r->owner, "%s", m->instance);
    return 0;
}

static int resume_end(struct master *m, struct record *r, const Cube__Node__V1__StartReply *reply,
                      int64_t timeout, int64_t took_ms, struct err *e)
{
    int64_t now = m->now_ms();
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_RUNNING, NULL);
    commit_route(&c, r->spec, r->gen);
    commit_set_int(&c, "started", now);
    commit_set_int(&c, "end", timeout > 0 ? now + timeout : 0);
    commit_set(&c, "snapshot", "");
    commit_set(&c, "fs_only", "");
    commit_set(&c, "unresponsive", "");
    if (*reply->envd_version)
        commit_set(&c, "envd", reply->envd_version);
    commit_event(&c, "wake", "node %s resumed it in %" PRId64 " ms", r->node, took_ms);
    commit_event(&c, "state", "running");
    return commit_settle(&c, r, STATE_RUNNING, &res, e) == COMMIT_OK ? 0 : -1;
}

static void resume_refused(struct master *m, struct record *r, const char *why)
{
    struct commit_result res;
    struct err e = {0};
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_PAUSED, NULL);
    commit_event(&c, "state", "paused: the resume was refused: %s", why);
    commit_settle(&c, r, STATE_PAUSED, &res, &e);
}

/* One node restores it; `r` was committed as `resuming`. `*overtaken`: it did, but the record had moved on.
 */
static int node_restore(struct master *m, struct record *r, bool reboot, int64_t timeout, const char *trace,
                        bool *overtaken, struct err *e)
{
    uint8_t ticket[32];
    char token[65] = "";
    Cube__Node__V1__StartRequest req = CUBE__NODE__V1__START_REQUEST__INIT;
    ticket_derive(&m->seed, r->id, r->gen, ticket);
    if (r->spec->secure)
        token_envd(&m->seed, r->id, token);
    req.spec = r->spec;
    req.gen = r->gen;
    req.remaining_ms = timeout;
    req.ticket = (ProtobufCBinaryData){.data = ticket, .len = sizeof ticket};
    req.envd_token = token;
    req.snapshot_id = r->snapshot;
    req.trace = (char *)trace;
    req.reboot = reboot || r->filesystem_only;
    ProtobufCMessage *reply = NULL;
    int64_t begin = m->now_ms();
    int rc = node_call(m, r->node, "/cube.node.v1.Sandboxes/Restore", &req.base,
                       &cube__node__v1__start_reply__descriptor, m->cfg.node_timeout_ms, trace, &reply, e);
    explicit_bzero(token, sizeof token);
    if (rc < 0)
        return -1;
    rc = ops_reply_check((Cube__Node__V1__StartReply *)reply, r->gen, e);
    if (rc == 0) {
        rc = resume_end(m, r, (Cube__Node__V1__StartReply *)reply, timeout, m->now_ms() - begin, e);
        *overtaken = rc < 0 && (e->code == ERR_CONFLICT || e->code == ERR_NOT_FOUND);
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    if (rc < 0 && e->code != ERR_UNAVAILABLE)
        node_drop_later(m, r->node, r->id, r->gen, "the resume was overtaken");
    return rc;
}

/* The generation that a node named in "… gen=<n>", or 0. */
static uint64_t stale_gen(const struct err *e)
{
    const char *at = strstr(e->msg, "gen=");
    return at ? strtoull(at + 4, NULL, 10) : 0;
}

static int resume_here(struct master *m, struct record *r, const Cube__Master__V1__ResumeRequest *req,
                       const char *trace, struct err *e)
{
    int64_t timeout = req->timeout_ms > 0 ? req->timeout_ms : r->spec->timeout_ms;
    if (req->wake && timeout < WAKE_TIMEOUT_MS) /* contracts/e2b.md §7 */
        timeout = WAKE_TIMEOUT_MS;
    if (r->idle_ms > 0)
        timeout = r->idle_ms;
    int64_t life;
    if (life_limit(m, r, &life, e) < 0)
        return -1;
    if (life > 0 && timeout > life)
        timeout = life;
    uint64_t gen = r->gen + 1;
    bool overtaken = false;
    struct inflight busy;
    inflight_begin(&busy, m, r->id);
    for (int tries = 0; tries < 3; tries++) {
        if (resume_commit(m, r, gen, *req->reason ? req->reason : "asked by the user", trace, e) < 0)
            break;
        if (node_restore(m, r, req->reboot, timeout, trace, &overtaken, e) == 0) {
            inflight_end(&busy);
            return 0;
        }
        uint64_t known = e->code == ERR_STALE_GENERATION ? stale_gen(e) : 0;
        if (known < r->gen || known > r->gen + 1000000)
            break;
        gen = known + 1;
    }
    inflight_end(&busy);
    if (r->state != STATE_RESUMING || overtaken)
        return -1;
    if (unknown_effect(e) || e->code == ERR_STALE_GENERATION)
        op_reconcile_later(m, r->id);
    else if (e->code != ERR_CONFLICT)
        resume_refused(m, r, e->msg);
    if (e->code == ERR_NOT_FOUND)
        e->code = ERR_UNAVAILABLE; /* the sandbox exists; its node does not know it */
    return -1;
}

int op_resume(struct master *m, const Cube__Master__V1__ResumeRequest *req, const char *trace,
              struct record *out, bool *resumed, struct err *e)
{
    int64_t until = m->now_ms() + RESUME_WAIT_MS;
    *resumed = false;
    for (;;) {
        if (op_load(m, req->sandbox_id, req->team_id, out, e) < 0)
            return -1;
        int rc = -1;
        switch (out->state) {
        case STATE_RUNNING:
            if (req->must_be_paused && !*resumed) {
                err_set(e, ERR_CONFLICT, "sandbox %s is already running", out->id);
                break;
            }
            if (req->timeout_ms > 0 && !*resumed) {
                int64_t ask = out->idle_ms > 0 ? out->idle_ms : req->timeout_ms;
                int64_t end = m->now_ms() + ask;
                if (end_limit(m, out, &end, e) < 0)
                    break;
                if ((!req->extend_only || end > out->end_ms) &&
                    deadline_touch(m, out, end, "extended by connect", e) < 0) {
                    rc = e->code == ERR_CONFLICT ? 1 : -1;
                    break;
                }
                node_update_later(m, out);
            }
            return 0;
        case STATE_PAUSED:
            if (req->wake && (!out->spec->auto_resume || out->filesystem_only)) {
                err_set(e, ERR_FORBIDDEN, "sandbox %s does not resume by traffic", out->id);
                break;
            }
            if (resume_here(m, out, req, trace, e) == 0) {
                *resumed = true;
                rc = 1;
            } else if (e->code == ERR_CONFLICT) {
                rc = 1; /* another was faster: share its result */
                fiber_sleep(20);
            } else {
                op_ended_meanwhile(m, out->id, e);
            }
            break;
        case STATE_CREATING:
        case STATE_PAUSING:
        case STATE_RESUMING:
            rc = 1;
            route_event_wait(m, req->sandbox_id, 500);
            break;
        default:
            not_now(out, "resumed", e);
            break;
        }
        record_free(out);
        if (rc < 0)
            return -1;
        if (m->now_ms() >= until)
            return err_set(e, ERR_CONFLICT, "sandbox %s is still in transition after %d s", req->sandbox_id,
                           RESUME_WAIT_MS / 1000);
    }
}
