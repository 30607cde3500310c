/* Owns the repair of what went wrong between records and nodes. Invariant: the node's word about its own VMs
 * decides; every repair is an ordinary commit that compares the rev seen before the node was asked, so that a
 * repair based on an old view does nothing. */
#include "master/reconcile.h"

#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/cell.h"
#include "master/stats.h"
#include "proto/node.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_MS 1000
#define SWEEP_LIMIT 256
#define LEASE_MS 20000 /* how long one repair attempt owns the record */
#define NODE_ASK_MS 3000
#define GRACE_MS 30000 /* what nobody can adopt is dropped after this */

/* What a node said about one sandbox. */
struct truth {
    bool asked, known;
    uint64_t gen;
    enum sandbox_state state;
    int64_t end_ms;
    char reason[200], snapshot[64];
    bool filesystem_only;
    char envd[REPLY_WORD_MAX + 1], isolation[REPLY_WORD_MAX + 1];
};

static void truth_read(struct truth *t, const Cube__Master__V1__NodeSandbox *s)
{
    t->known = true;
    t->gen = s->gen;
    t->state = (enum sandbox_state)s->state;
    t->end_ms = s->end_ms;
    t->filesystem_only = s->filesystem_only;
    snprintf(t->reason, sizeof t->reason, "%s", s->reason);
    snprintf(t->snapshot, sizeof t->snapshot, "%s", s->snapshot_id);
    snprintf(t->envd, sizeof t->envd, "%s", s->envd_version);
    snprintf(t->isolation, sizeof t->isolation, "%s", s->isolation);
}

static void node_ask(struct master *m, const char *node, const char *id, struct truth *t)
{
    *t = (struct truth){0};
    Cube__Node__V1__ListRequest req = CUBE__NODE__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *msg = NULL;
    struct err e = {0};
    if (!*node || node_call(m, node, "/cube.node.v1.Sandboxes/List", &req.base,
                            &cube__node__v1__list_reply__descriptor, NODE_ASK_MS, NULL, &msg, &e) < 0)
        return;
    t->asked = true;
    Cube__Node__V1__ListReply *list = (Cube__Node__V1__ListReply *)msg;
    for (size_t i = 0; i < list->n_sandboxes; i++)
        if (list->sandboxes[i]->spec && strcmp(list->sandboxes[i]->spec->sandbox_id, id) == 0)
            truth_read(t, list->sandboxes[i]);
    protobuf_c_message_free_unpacked(msg, NULL);
}

static bool ended(enum sandbox_state s)
{
    return s == STATE_KILLED || s == STATE_FAILED || s == STATE_LOST;
}

static enum commit_outcome move(struct master *m, struct record *r, enum sandbox_state to,
                                const struct truth *t, const char *why)
{
    struct commit_result res;
    struct err e = {0};
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, to, NULL);
    if (to == STATE_RUNNING || to == STATE_PAUSED) {
        uint64_t gen = t && t->gen > r->gen ? t->gen : r->gen;
        if (gen > r->gen)
            commit_gen(&c, gen);
        commit_opt(&c, "force", "1");
        commit_reserve(&c, ops_initial_memory(m, r->spec->limits), &(struct sched_policy){0});
        commit_route(&c, r->spec, gen);
        /* The answer to the start may have been lost with the master that waited for it. */
        if (t && t->envd[0])
            commit_set(&c, "envd", t->envd);
        if (t && t->isolation[0])
            commit_set(&c, "isolation", t->isolation);
    }
    if (to == STATE_RUNNING) {
        int64_t now = m->now_ms(), timeout = r->idle_ms > 0 ? r->idle_ms : r->spec->timeout_ms;
        if (r->state != STATE_PAUSING) {
            commit_set_int(&c, "started", now);
            commit_set_int(&c, "end", t && t->end_ms > 0 ? t->end_ms : timeout > 0 ? now + timeout : 0);
        }
        commit_set(&c, "snapshot", "");
        commit_set(&c, "fs_only", "");
    } else if (to == STATE_PAUSED) {
        if (r->state != STATE_RESUMING)
            commit_set_int(&c, "end", m->now_ms());
        if (t && t->snapshot[0])
            commit_set(&c, "snapshot", t->snapshot);
        if (t)
            commit_set(&c, "fs_only", t->filesystem_only ? "1" : "");
    } else {
        commit_own(&c);
        commit_set(&c, "reason", why);
    }
    commit_event(&c, "state", "%s: %s", state_table[to].name, why);
    enum commit_outcome o = commit_run(&c, &res, &e);
    if (o == COMMIT_OK) {
        r->state = to;
        r->rev = res.rev;
        r->gen = res.gen;
        snprintf(r->owner, sizeof r->owner, "%s", m->instance);
        snprintf(r->reason, sizeof r->reason, "%s", why);
        stats_reconciled();
        log_line(LOG_INFO, &(struct log_about){.sandbox = r->id, .gen = r->gen}, "reconciled to %s: %s",
                 state_table[to].name, why);
    } else if (o != COMMIT_CONFLICT) {
        log_line(LOG_WARN, &(struct log_about){.sandbox = r->id, .gen = r->gen, .err = &e},
                 "reconciling to %s", state_table[to].name);
    }
    return o;
}

static void kill_now(struct master *m, struct record *r, const char *why)
{
    if (r->state == STATE_KILLING || move(m, r, STATE_KILLING, NULL, why) == COMMIT_OK)
        op_kill_finish(m, r);
}

/* The node proved something about a record: the record follows. */
static void follow(struct master *m, struct record *r, const struct truth *t)
{
    char why[320];
    if (!t->known) {
        snprintf(why, sizeof why, "missing on node %s", r->node);
        if (r->state == STATE_CREATING)
            kill_now(m, r, "the create was not finished");
        else
            move(m, r, STATE_LOST, t, why);
        return;
    }
    if (t->state == STATE_PAUSED && r->state == STATE_PAUSED && t->gen <= r->gen)
        return; /* a refused resume used up generations */
    if (ended(t->state) && r->state == STATE_LOST) {
        node_drop_later(m, r->node, r->id, t->gen, "it ended");
        return;
    }
    if (t->gen < r->gen && r->state != STATE_RESUMING) {
        /* Only what is older lives there: it is not this generation's VM. */
        node_drop_later(m, r->node, r->id, t->gen, "an older generation");
        snprintf(why, sizeof why, "node %s holds only generation %" PRIu64, r->node, t->gen);
        move(m, r, STATE_LOST, t, why);
        return;
    }
    if (ended(t->state)) {
        snprintf(why, sizeof why, "%s", t->reason[0] ? t->reason : "it ended on the node");
        if (t->state == STATE_KILLED || r->state == STATE_CREATING)
            kill_now(m, r, why);
        else
            move(m, r, STATE_LOST, t, why);
        return;
    }
    if (t->state == STATE_PAUSED && r->state != STATE_PAUSED) {
        snprintf(why, sizeof why, "%s", t->reason[0] ? t->reason : "paused on the node");
        move(m, r, STATE_PAUSED, t, why);
    } else if (t->state == STATE_RUNNING && (r->state != STATE_RUNNING || t->gen > r->gen)) {
        move(m, r, STATE_RUNNING, t, "it runs on the node");
    }
}

void op_reconcile(struct master *m, const char *id)
{
    _cleanup_record_ struct record r = {0};
    struct err e = {0};
    /* What changed hands, or ended and began anew, while this waited its turn is its owner's. */
    if (inflight_has(m, id) || op_load(m, id, "", &r, &e) < 0 || inflight_has(m, id) ||
        strcmp(r.owner, m->instance) != 0)
        return;
    struct inflight busy;
    inflight_begin(&busy, m, r.id);
    struct truth t = {0};
    switch (r.state) {
    case STATE_CREATING:
        kill_now(m, &r, "the create was not finished by the master that began it");
        break;
    case STATE_KILLING:
        op_kill_finish(m, &r);
        break;
    case STATE_PAUSING:
    case STATE_RESUMING: {
        node_ask(m, r.node, r.id, &t);
        struct node *n = fleet_find(m->fleet, r.node);
        if (t.asked)
            follow(m, &r, &t);
        else if (n && strcmp(n->status, "lost") == 0)
            move(m, &r, STATE_LOST, NULL, "its node is gone");
        break;
    }
    default:
        if (*r.op) { /* an operation on a running sandbox lost its owner */
            struct commit_result res;
            _cleanup_commit_ struct commit c;
            commit_begin(&c, m, r.id, r.rev, STATE_NONE, NULL);
            commit_set(&c, "op", "");
            commit_event(&c, "retry", "the %s was not finished and is dropped", r.op);
            commit_run(&c, &res, &e);
        }
        break;
    }
    inflight_end(&busy);
}

struct later {
    struct master *m;
    char id[SANDBOX_ID_LEN + 1];
};

static void later_fiber(void *arg)
{
    struct later *l = arg;
    op_reconcile(l->m, l->id);
    free(l);
}

void op_reconcile_later(struct master *m, const char *id)
{
    struct later *l = calloc(1, sizeof *l);
    if (!l)
        return;
    l->m = m;
    snprintf(l->id, sizeof l->id, "%s", id);
    fiber_spawn(later_fiber, l);
}

/* ---- reports ---- */

/* Nobody's sandbox is not taken in. Whether the catalog lacks the team rightly is for the operator to see
 * first: a catalog that was lost must not take paused sandboxes along at once. */
static bool team_known(struct master *m, const char *node, const Cube__Master__V1__NodeSandbox *s)
{
    Cube__Master__V1__Team *team = NULL;
    struct err e = {0};
    if (catalog_team(m, s->spec->team_id, &team, &e) == 0) {
        cube__master__v1__team__free_unpacked(team, NULL);
        return true;
    }
    if (e.code != ERR_NOT_FOUND)
        return false; /* the next full report asks again */
    int64_t since = s->started_ms > m->epoch_ms ? s->started_ms : m->epoch_ms;
    if (m->now_ms() - since > m->cfg.adopt_grace_ms)
        node_drop_later(m, node, s->spec->sandbox_id, s->gen, "its team does not exist");
    log_line(LOG_WARN, &(struct log_about){.sandbox = s->spec->sandbox_id, .gen = s->gen},
             "node %s holds a sandbox of team %.64s, which the catalog does not know", node,
             s->spec->team_id);
    return false;
}

/* Redis does not know a sandbox that a node holds: after a loss of data it is taken in again with all the
 * node knows. */
static void adopt(struct master *m, const char *node, const Cube__Master__V1__NodeSandbox *s)
{
    Cube__V1__SandboxSpec *spec = s->spec;
    bool running = s->state == CUBE__V1__SANDBOX_STATE__RUNNING;
    if (!spec || !spec->limits || !*spec->team_id || s->gen == 0 || ended((enum sandbox_state)s->state) ||
        (!running && s->state != CUBE__V1__SANDBOX_STATE__PAUSED)) {
        if (spec && (ended((enum sandbox_state)s->state) || m->now_ms() - s->started_ms > GRACE_MS))
            node_drop_later(m, node, spec->sandbox_id, s->gen, "nobody knows it and it cannot be adopted");
        return;
    }
    if (!team_known(m, node, s))
        return;
    struct commit_result res;
    struct err e = {0};
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, spec->sandbox_id, REV_NEW, running ? STATE_RUNNING : STATE_PAUSED, NULL);
    commit_gen(&c, s->gen);
    commit_opt(&c, "force", "1");
    commit_reserve(&c, ops_initial_memory(m, spec->limits), &(struct sched_policy){0});
    commit_set(&c, "node", node);
    commit_set_int(&c, "started", s->started_ms > 0 ? s->started_ms : m->now_ms());
    commit_set_int(&c, "created", s->started_ms > 0 ? s->started_ms : m->now_ms());
    commit_set_int(&c, "end", s->end_ms);
    commit_set(&c, "envd", s->envd_version);
    commit_set(&c, "isolation", s->isolation);
    if (!running) {
        commit_set(&c, "snapshot", s->snapshot_id);
        commit_set(&c, "fs_only", s->filesystem_only ? "1" : "");
    }
    commit_spec(&c, spec);
    commit_route(&c, spec, s->gen);
    commit_event(&c, "state", "%s: adopted from node %s, which held it while the records had lost it",
                 running ? "running" : "paused", node);
    if (commit_run(&c, &res, &e) == COMMIT_OK)
        log_line(LOG_INFO, &(struct log_about){.sandbox = spec->sandbox_id, .gen = s->gen},
                 "adopted from node %s", node);
}

/* A transition that began since the report is its owner's, unless the node has proved that it cannot come
 * true (node_report.lua decides by the same). */
static bool of_its_owner(const struct record *r, const struct truth *t)
{
    if (r->state == STATE_RESUMING)
        return t->known && t->gen <= r->gen;
    if (r->state == STATE_PAUSING)
        return t->known && t->gen == r->gen && !ended(t->state);
    return r->state == STATE_CREATING || r->state == STATE_KILLING;
}

static void report_differs(struct master *m, const char *node, const char *id)
{
    _cleanup_record_ struct record r = {0};
    struct err e = {0};
    if (inflight_has(m, id) || op_load(m, id, "", &r, &e) < 0 || inflight_has(m, id))
        return;
    struct inflight busy;
    inflight_begin(&busy, m, r.id);
    struct truth now;
    /* Asked after the record was read: what is missing now was never started under this rev. */
    node_ask(m, node, r.id, &now);
    if (now.asked && strcmp(r.node, node) == 0 && !of_its_owner(&r, &now))
        follow(m, &r, &now);
    inflight_end(&busy);
}

/* The sandbox goes on, its story says what happened in it. */
static void guest_oom(struct master *m, const char *id, uint32_t kills)
{
    for (int tries = 0; tries < 5; tries++) {
        _cleanup_record_ struct record r = {0};
        struct err e = {0};
        struct commit_result res;
        if (op_load(m, id, "", &r, &e) < 0 || r.state != STATE_RUNNING)
            return;
        _cleanup_commit_ struct commit c;
        commit_begin(&c, m, id, r.rev, STATE_NONE, NULL);
        commit_set_int(&c, "guest_oom", kills);
        commit_event(&c, "node", "out of memory in the guest: its kernel killed %u process%s so far", kills,
                     kills == 1 ? "" : "es");
        if (commit_run(&c, &res, &e) != COMMIT_CONFLICT)
            return;
    }
}

void reconcile_report(struct master *m, const char *node, const char *id, const char *verdict,
                      const Cube__Master__V1__NodeSandbox *s)
{
    if (strcmp(verdict, "unknown") == 0) {
        if (s && m->cell != CELL_REDIS_AWAY)
            adopt(m, node, s);
    } else if (strcmp(verdict, "elsewhere") == 0) {
        node_drop_later(m, node, id, s ? s->gen : 0, "it lives on another node");
    } else if (strcmp(verdict, "forget") == 0) {
        node_drop_later(m, node, id, 0, "it ended");
    } else if (strcmp(verdict, "oom") == 0) {
        guest_oom(m, id, s ? s->guest_oom_kills : 0);
    } else if (strcmp(verdict, "tomb") == 0) {
        _cleanup_record_ struct record r = {0};
        struct err e = {0};
        if (op_load(m, id, "", &r, &e) < 0)
            return;
        Cube__Node__V1__KillRequest req = CUBE__NODE__V1__KILL_REQUEST__INIT;
        req.sandbox_id = r.id;
        req.reason = r.reason;
        if (node_call(m, node, "/cube.node.v1.Sandboxes/Kill", &req.base,
                      &cube__node__v1__kill_reply__descriptor, 10000, NULL, NULL, &e) < 0 &&
            e.code != ERR_NOT_FOUND)
            return;
        struct commit_result res;
        _cleanup_commit_ struct commit c;
        commit_begin(&c, m, id, r.rev, STATE_NONE, NULL);
        commit_set(&c, "unconfirmed", "");
        commit_event(&c, "node", "node %s returned and cleaned up", node);
        commit_run(&c, &res, &e);
    } else {
        report_differs(m, node, id);
    }
}

/* ---- nodes that went away ---- */

struct id_list {
    char ids[512][SANDBOX_ID_LEN + 1];
    size_t n;
};

static int ids_parse(const redisReply *r, void *out, struct err *e)
{
    struct id_list *l = out;
    l->n = 0;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "reading a list of sandboxes: unexpected answer");
    for (size_t i = 0; i < r->elements && l->n < 512; i++)
        if (r->element[i]->type == REDIS_REPLY_STRING && r->element[i]->len == SANDBOX_ID_LEN)
            snprintf(l->ids[l->n++], sizeof l->ids[0], "%s", r->element[i]->str);
    return 0;
}

static int node_sandboxes(struct master *m, const char *node, const char *const *states, struct id_list *out)
{
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, node);
    db_arg_int(&a, 512);
    for (; *states; states++)
        db_arg(&a, *states);
    return db_eval(m, &script_node_ids, &a, ids_parse, out, &e);
}

unsigned reconcile_node_gone(struct master *m, const char *name, const char *why)
{
    static const char *const states[] = {"running", "paused", "pausing", "resuming", NULL};
    char node[NODE_ID_MAX + 1];
    snprintf(node, sizeof node, "%s", name);
    journal_node_lost(m, node);
    unsigned total = 0;
    struct id_list *l = calloc(1, sizeof *l);
    if (!l)
        return 0;
    while (node_sandboxes(m, node, states, l) == 0 && l->n > 0) {
        size_t moved = 0;
        for (size_t i = 0; i < l->n; i++) {
            _cleanup_record_ struct record r = {0};
            struct err e = {0};
            if (op_load(m, l->ids[i], "", &r, &e) == 0 && strcmp(r.node, node) == 0)
                moved += move(m, &r, STATE_LOST, NULL, why) == COMMIT_OK;
        }
        total += (unsigned)moved;
        if (!moved)
            break;
    }
    free(l);
    return total;
}

void reconcile_node_lost(struct master *m, const char *name)
{
    reconcile_node_gone(m, name, "its node stopped answering");
}

struct drain {
    struct master *m;
    char node[NODE_ID_MAX + 1];
};

/* A paused sandbox gives its memory back; those of mode `idle` that nobody uses agreed to that, only later.
 */
static void relieve_fiber(void *arg)
{
    struct drain *d = arg;
    struct master *m = d->m;
    struct id_list *l = calloc(1, sizeof *l);
    for (;;) {
        fleet_refresh(m->fleet);
        struct node *n = fleet_find(m->fleet, d->node);
        struct err e = {0};
        if (!l || !n || !n->pressure)
            break;
        _cleanup_db_args_ struct db_args a;
        db_args_start(&a, m);
        db_arg(&a, d->node);
        db_arg_int(&a, m->now_ms());
        db_arg_int(&a, 1); /* one by one: the next report says whether it was enough */
        if (db_eval(m, &script_node_idle, &a, ids_parse, l, &e) < 0 || l->n == 0)
            break;
        Cube__Master__V1__PauseRequest req = CUBE__MASTER__V1__PAUSE_REQUEST__INIT;
        struct record r;
        req.sandbox_id = l->ids[0];
        req.by_policy = true;
        req.reason = "memory pressure on its node, and it is idle";
        if (op_pause(m, &req, NULL, &r, &e) == 0)
            record_free(&r);
        else if (e.code != ERR_CONFLICT)
            break; /* the next report under pressure comes back to it */
        fiber_sleep(m->cfg.report_ms);
    }
    struct node *n = fleet_find(m->fleet, d->node);
    if (n)
        n->relieving = false;
    free(l);
    free(d);
}

void reconcile_pressure_later(struct master *m, const char *node)
{
    struct node *n = fleet_find(m->fleet, node);
    struct drain *d = n && !n->relieving ? calloc(1, sizeof *d) : NULL;
    if (!d)
        return;
    n->relieving = true;
    d->m = m;
    snprintf(d->node, sizeof d->node, "%s", node);
    fiber_spawn(relieve_fiber, d);
}

static void drain_fiber(void *arg)
{
    static const char *const states[] = {"running", NULL};
    struct drain *d = arg;
    struct id_list *l = calloc(1, sizeof *l);
    while (l) {
        struct node *n = fleet_find(d->m->fleet, d->node);
        if (!n || !n->draining || node_sandboxes(d->m, d->node, states, l) < 0 || l->n == 0)
            break;
        size_t paused = 0;
        for (size_t i = 0; i < l->n; i++) {
            Cube__Master__V1__PauseRequest req = CUBE__MASTER__V1__PAUSE_REQUEST__INIT;
            struct record r;
            struct err e = {0};
            req.sandbox_id = l->ids[i];
            req.reason = "its node is drained";
            if (op_pause(d->m, &req, NULL, &r, &e) == 0) {
                paused++;
                record_free(&r);
            }
        }
        if (!paused)
            fiber_sleep(1000);
    }
    free(l);
    free(d);
}

void reconcile_drain_later(struct master *m, const char *node)
{
    struct drain *d = calloc(1, sizeof *d);
    if (!d)
        return;
    d->m = m;
    snprintf(d->node, sizeof d->node, "%s", node);
    fiber_spawn(drain_fiber, d);
}

/* ---- sweeper ---- */

static struct loop_timer sweep_timer;
static struct master *sweep_master;

static void sweep_fiber(void *arg)
{
    struct master *m = arg;
    struct id_list *l = calloc(1, sizeof *l);
    struct err e = {0};
    struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, m->instance);
    db_arg_int(&a, m->now_ms());
    db_arg_int(&a, SWEEP_LIMIT);
    db_arg_int(&a, LEASE_MS);
    if (l && m->cell != CELL_REDIS_AWAY && db_eval(m, &script_sweep, &a, ids_parse, l, &e) == 0)
        for (size_t i = 0; i < l->n; i++)
            if (!inflight_has(m, l->ids[i]))
                op_reconcile_later(m, l->ids[i]);
    db_args_end(&a);
    if (m->cell == CELL_READY) {
        forks_sweep(m);
        drops_sweep(m);
    }
    free(l);
    loop_timer_start(m->loop, &sweep_timer, SWEEP_MS);
}

static void on_sweep(struct loop_timer *t)
{
    (void)t;
    fiber_spawn(sweep_fiber, sweep_master);
}

void reconcile_start(struct master *m)
{
    sweep_master = m;
    sweep_timer.fire = on_sweep;
    loop_timer_start(m->loop, &sweep_timer, SWEEP_MS);
}
