/* Owns the operations on a running sandbox that are not states: snapshot, rollback, change of the network
 * policy. Invariant: while one is in flight the record names it, its owner and its deadline (`op`), so that
 * two never overlap and one whose master died is dropped by the sweeper. */
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/ops.h"
#include "proto/node.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_TIMEOUT_MS 110000
#define OP_LIMIT_MS 120000

/* Loads a running sandbox and marks the operation on it. */
static int mark(struct master *m, const char *id, const char *team, const char *op, const char *trace,
                struct record *r, struct err *e)
{
    for (int tries = 0;; tries++) {
        if (op_load(m, id, team, r, e) < 0)
            return -1;
        if (state_table[r->state].view == VIEW_GONE) {
            err_set(e, ERR_NOT_FOUND, "sandbox %s not found", id);
        } else if (r->state != STATE_RUNNING) {
            err_set(e, ERR_CONFLICT, "sandbox %s is %s: a %s needs a running one", id,
                    state_table[r->state].name, op);
        } else if (*r->op) {
            err_set(e, ERR_CONFLICT, "a %s of sandbox %s is in flight", r->op, id);
        } else {
            struct commit_result res;
            _cleanup_commit_ struct commit c;
            commit_begin(&c, m, id, r->rev, STATE_NONE, trace);
            commit_own(&c);
            commit_set(&c, "op", op);
            commit_opt_int(&c, "op_ms", OP_LIMIT_MS);
            if (commit_run(&c, &res, e) == COMMIT_OK) {
                r->rev = res.rev;
                snprintf(r->op, sizeof r->op, "%s", op);
                snprintf(r->owner, sizeof r->owner, "%s", m->instance);
                return 0;
            }
            if (res.outcome == COMMIT_CONFLICT && tries < 20) {
                record_free(r);
                continue;
            }
        }
        record_free(r);
        return -1;
    }
}

static void unmark(struct master *m, const struct record *r, const char *text)
{
    /* The deadline may have moved meanwhile; whatever else happened to the record has cleared the mark
     * itself. */
    for (int tries = 0; tries < 20; tries++) {
        _cleanup_record_ struct record now = {0};
        struct err e = {0};
        if (op_load(m, r->id, "", &now, &e) < 0 || strcmp(now.op, r->op) != 0 ||
            strcmp(now.owner, m->instance) != 0)
            return;
        struct commit_result res;
        _cleanup_commit_ struct commit c;
        commit_begin(&c, m, r->id, now.rev, STATE_NONE, NULL);
        commit_set(&c, "op", "");
        commit_event(&c, r->op, "%s", text);
        if (commit_run(&c, &res, &e) != COMMIT_CONFLICT)
            return;
    }
}

/* The catalog's entry of a snapshot. Named ones get the alias of their team's namespace. */
static int publish(struct master *m, const struct record *r, const char *id, const char *name, bool fork,
                   Cube__Master__V1__Template **out, struct err *e)
{
    Cube__Master__V1__Template t = CUBE__MASTER__V1__TEMPLATE__INIT, *base = NULL;
    struct err none = {0};
    char alias[200], *aliases[] = {alias};
    t.template_id = (char *)id;
    t.team_id = (char *)r->team;
    t.limits = r->spec->limits;
    t.envd_version = (char *)r->envd;
    t.status = (char *)"ready";
    t.source_sandbox = (char *)r->id;
    t.node_id = (char *)r->node;
    t.fork = fork;
    if (*name) {
        snprintf(alias, sizeof alias, "%s", name);
        t.aliases = aliases;
        t.n_aliases = 1;
    }
    if (catalog_template(m, r->team, r->spec->template_id, &base, &none) == 0) {
        t.default_user = base->default_user;
        t.default_workdir = base->default_workdir;
    }
    int rc = catalog_put_template(m, &t, e);
    if (rc == 0 && out)
        *out = (Cube__Master__V1__Template *)message_dup(&t.base);
    if (base)
        cube__master__v1__template__free_unpacked(base, NULL);
    return rc;
}

/* "<slug>/<alias>[:tag]" from "[slug/]alias[:tag]"; the namespace must be the team's own. */
static int full_name(struct master *m, const char *team, const char *name, char *out, size_t size,
                     struct err *e)
{
    Cube__Master__V1__Team *t = NULL;
    *out = 0;
    if (!*name)
        return 0;
    if (catalog_team(m, team, &t, e) < 0)
        return -1;
    const char *slash = strchr(name, '/');
    int rc = 0;
    if (slash &&
        (strlen(t->slug) != (size_t)(slash - name) || strncmp(t->slug, name, (size_t)(slash - name)) != 0))
        rc = err_set(e, ERR_INVALID, "the namespace of a snapshot's name must be '%s'", t->slug);
    else
        snprintf(out, size, "%s%s%s", slash ? "" : t->slug, slash ? "" : "/", name);
    char *tag = strstr(out, ":default");
    if (tag && !tag[8])
        *tag = 0;
    cube__master__v1__team__free_unpacked(t, NULL);
    return rc;
}

int op_snapshot(struct master *m, const Cube__Master__V1__SnapshotRequest *req, bool fork, const char *trace,
                Cube__Master__V1__Template **out, struct err *e)
{
    _cleanup_record_ struct record r = {0};
    char name[200], id[21];
    if (strlen(req->name) > TEMPLATE_ID_MAX ||
        full_name(m, req->team_id, req->name, name, sizeof name, e) < 0)
        return e->code ? -1
                       : err_set(e, ERR_INVALID, "a snapshot's name has at most %d bytes", TEMPLATE_ID_MAX);
    /* Before the work; two at once meet the limit again when they are written down. */
    if (catalog_snapshot_room(m, req->team_id, e) < 0 ||
        mark(m, req->sandbox_id, req->team_id, "snapshot", trace, &r, e) < 0)
        return -1;
    struct inflight busy;
    inflight_begin(&busy, m, r.id);
    Cube__Node__V1__SnapshotRequest q = CUBE__NODE__V1__SNAPSHOT_REQUEST__INIT;
    ProtobufCMessage *msg = NULL;
    char text[200];
    id_random(id, 20);
    q.sandbox_id = r.id;
    q.gen = r.gen;
    q.snapshot_id = id;
    q.filesystem_only = req->filesystem_only;
    /* Whoever dies in this, what lies on the node then goes, unless it is in the catalog. */
    int rc = drops_note(m, r.node, id, m->now_ms() + 2 * OP_LIMIT_MS, e);
    if (rc == 0) {
        rc = node_call(m, r.node, "/cube.node.v1.Sandboxes/Snapshot", &q.base,
                       &cube__node__v1__snapshot_reply__descriptor, SNAPSHOT_TIMEOUT_MS, trace, &msg, e);
        if (rc < 0 && e->code != ERR_UNAVAILABLE && e->code != ERR_DEADLINE)
            drops_done(m, r.node, id); /* refused: nothing lies there */
    }
    if (rc == 0) {
        snprintf(text, sizeof text, "snapshot %s made (frozen for %" PRId64 " ms)", id,
                 ((Cube__Node__V1__SnapshotReply *)msg)->frozen_us / 1000);
        protobuf_c_message_free_unpacked(msg, NULL);
        rc = publish(m, &r, id, name, fork, out, e);
        if (rc < 0)
            snapshot_drop_later(m, r.node, id);
    }
    if (rc < 0) {
        snprintf(text, sizeof text, "snapshot failed: %.170s", e->msg);
        op_ended_meanwhile(m, r.id, e);
    }
    unmark(m, &r, text);
    inflight_end(&busy);
    return rc;
}

static int rolled_back(struct master *m, struct record *r, uint64_t gen,
                       const Cube__Node__V1__StartReply *reply, const char *snapshot, struct err *e)
{
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, m, r->id, r->rev, STATE_RUNNING, NULL);
    commit_gen(&c, gen);
    commit_route(&c, r->spec, gen);
    if (*reply->envd_version)
        commit_set(&c, "envd", reply->envd_version);
    commit_event(&c, "state", "rolled back to snapshot %s", snapshot);
    for (int tries = 0; tries < 20; tries++) {
        if (commit_run(&c, &res, e) == COMMIT_OK)
            return 0;
        _cleanup_record_ struct record now = {0};
        struct err again = {0};
        if (op_load(m, r->id, "", &now, &again) < 0)
            break;
        if (now.state == STATE_RUNNING && now.gen == gen)
            return 0; /* the node's report was faster */
        if (now.state != STATE_RUNNING)
            break;
        commit_rev(&c, now.rev);
    }
    return -1;
}

int op_rollback(struct master *m, const Cube__Master__V1__RollbackRequest *req, const char *trace,
                struct record *out, struct err *e)
{
    _cleanup_record_ struct record r = {0};
    Cube__Master__V1__Template *t = NULL;
    if (catalog_template(m, req->team_id, req->snapshot_id, &t, e) < 0)
        return -1;
    char snapshot[TEMPLATE_ID_MAX + 1], node[NODE_ID_MAX + 1];
    bool is_snapshot = *t->source_sandbox;
    snprintf(snapshot, sizeof snapshot, "%s", t->template_id);
    snprintf(node, sizeof node, "%s", t->node_id);
    cube__master__v1__template__free_unpacked(t, NULL);
    if (!is_snapshot)
        return err_set(e, ERR_INVALID, "%s is a template, not a snapshot", snapshot);
    if (mark(m, req->sandbox_id, req->team_id, "rollback", trace, &r, e) < 0)
        return -1;
    struct inflight busy;
    inflight_begin(&busy, m, r.id);
    uint8_t ticket[32];
    char token[65] = "";
    uint64_t gen = r.gen + 1;
    Cube__Node__V1__StartRequest q = CUBE__NODE__V1__START_REQUEST__INIT;
    ProtobufCMessage *msg = NULL;
    int rc = 0;
    if (strcmp(node, r.node) != 0)
        rc = err_set(e, ERR_CONFLICT, "snapshot %s lies on another node than the sandbox", snapshot);
    ticket_derive(&m->seed, r.id, gen, ticket);
    if (r.spec->secure)
        token_envd(&m->seed, r.id, token);
    q.spec = r.spec;
    q.gen = gen;
    q.remaining_ms = remaining_ms(m, r.end_ms);
    q.ticket = (ProtobufCBinaryData){.data = ticket, .len = sizeof ticket};
    q.envd_token = token;
    q.snapshot_id = snapshot;
    q.trace = (char *)trace;
    if (rc == 0)
        rc = node_call(m, r.node, "/cube.node.v1.Sandboxes/Restore", &q.base,
                       &cube__node__v1__start_reply__descriptor, m->cfg.node_timeout_ms, trace, &msg, e);
    explicit_bzero(token, sizeof token);
    if (rc == 0) {
        rc = rolled_back(m, &r, gen, (Cube__Node__V1__StartReply *)msg, snapshot, e);
        protobuf_c_message_free_unpacked(msg, NULL);
    } else {
        char text[200];
        snprintf(text, sizeof text, "rollback failed: %.170s", e->msg);
        op_ended_meanwhile(m, r.id, e);
        unmark(m, &r, text);
    }
    inflight_end(&busy);
    return rc == 0 ? op_load(m, r.id, "", out, e) : -1;
}

int op_network(struct master *m, const Cube__Master__V1__UpdateNetworkRequest *req, struct record *out,
               struct err *e)
{
    if (strlen(req->network_json) > SPEC_BYTES_MAX / 2)
        return err_set(e, ERR_TOO_LARGE, "the network policy exceeds %u KiB", SPEC_BYTES_MAX >> 11);
    for (int tries = 0; tries < 20; tries++) {
        if (op_load(m, req->sandbox_id, req->team_id, out, e) < 0)
            return -1;
        if (out->state != STATE_RUNNING) {
            if (state_table[out->state].view == VIEW_GONE)
                err_set(e, ERR_NOT_FOUND, "sandbox %s not found", req->sandbox_id);
            else
                err_set(e, ERR_CONFLICT, "sandbox %s is %s; its network changes only while it runs", out->id,
                        state_table[out->state].name);
            break;
        }
        Cube__Node__V1__UpdateRequest q = CUBE__NODE__V1__UPDATE_REQUEST__INIT;
        q.sandbox_id = out->id;
        q.gen = out->gen;
        q.remaining_ms = -1;
        q.has_network = true;
        q.network_json = req->network_json;
        q.deny_internet = req->deny_internet;
        /* The node first: what the record says must be in force. */
        if (node_call(m, out->node, "/cube.node.v1.Sandboxes/Update", &q.base,
                      &cube__node__v1__update_reply__descriptor, 10000, NULL, NULL, e) < 0)
            break;
        if (out->spec->network_json != protobuf_c_empty_string)
            free(out->spec->network_json);
        out->spec->network_json = strdup(req->network_json);
        if (!out->spec->network_json)
            abort();
        out->spec->deny_internet = req->deny_internet;
        struct commit_result res;
        _cleanup_commit_ struct commit c;
        commit_begin(&c, m, out->id, out->rev, STATE_NONE, NULL);
        commit_spec(&c, out->spec);
        commit_event(&c, "network", "the network policy was replaced");
        if (commit_run(&c, &res, e) == COMMIT_OK)
            return 0;
        if (res.outcome != COMMIT_CONFLICT)
            break;
        record_free(out);
    }
    record_free(out);
    return -1;
}
