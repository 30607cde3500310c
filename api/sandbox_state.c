/* Owns what changes a sandbox: kill, connect, resume, pause, timeouts, network, fork, snapshot, rollback.
 * Invariant: every change is the master's; what is checked here is only the shape of the request. */
#include "api/create.h"
#include "api/handlers.h"
#include "api/network.h"
#include "api/present.h"
#include "api/server.h"

#include <stdlib.h>
#include <string.h>

#define REFRESH_MIN_S 15
#define REFRESH_MAX_S 3600
#define FORK_MAX 100
#define DEFAULT_SHORT_S 15 /* legacy resume and fork */
#define DEFAULT_CONNECT_S 300

/* ---- kill ---- */

static void on_killed(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__KillReply *r = (const Cube__Master__V1__KillReply *)m;
    if (r->killed)
        call_send_empty(c, 204);
    else
        call_error(c, ERR_NOT_FOUND, "sandbox '%s' not found", (const char *)c->state);
}

void handle_sandbox_kill(struct call *c)
{
    Cube__Master__V1__KillRequest in = CUBE__MASTER__V1__KILL_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    c->state = in.sandbox_id;
    in.team_id = c->caller.team_id;
    in.reason = "deleted by API";
    call_master(c, MASTER_SANDBOXES "Kill", &in.base, &cube__master__v1__kill_reply__descriptor, 0, on_killed,
                NULL);
}

/* ---- connect and resume ---- */

static void on_resumed(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ResumeReply *r = (const Cube__Master__V1__ResumeReply *)m;
    struct jsonw w = call_json(c);
    present_sandbox(&w, r->sandbox, c->w->api->domain);
    call_send_json(c, r->resumed ? 201 : 200);
}

static int take_timeout(struct call *c, int64_t fallback_s, bool required, int64_t *out_ms, struct err *e)
{
    int64_t s = fallback_s;
    bool present;
    if (body_int(c->body, "", "timeout", INT32_MIN, INT32_MAX, &s, &present, e) < 0)
        return -1;
    if (!present && required)
        return err_set(e, ERR_INVALID, "validation error: property 'timeout' is missing");
    int64_t max = c->caller.max_timeout_ms;
    if (present && timeout_check(s, max, e) < 0)
        return -1;
    *out_ms = max > 0 && s * 1000 > max ? max : s * 1000;
    return 0;
}

static void resume(struct call *c, int64_t fallback_s, bool timeout_required, bool legacy)
{
    static const char *const known[] = {"timeout", "memory", NULL}, *const known_legacy[] = {"timeout",
                                                                                             "autoPause",
                                                                                             "memory", NULL};
    struct err e = {0};
    bool memory = true, auto_pause = false, has_auto_pause = false;
    Cube__Master__V1__ResumeRequest in = CUBE__MASTER__V1__RESUME_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (take_timeout(c, fallback_s, timeout_required, &in.timeout_ms, &e) < 0 ||
        body_bool(c->body, "", "memory", &memory, NULL, &e) < 0 ||
        (legacy && body_bool(c->body, "", "autoPause", &auto_pause, &has_auto_pause, &e) < 0)) {
        call_fail(c, &e);
        return;
    }
    /* A sandbox keeps the policy it was created with (issue 7); an old client that repeats the default asks
     * for nothing. */
    if (auto_pause) {
        call_error(c, ERR_INVALID,
                   "'autoPause' cannot be changed by a resume; set it when the sandbox is created");
        return;
    }
    body_unknown(c->body, "", legacy ? known_legacy : known, &c->unknown);
    in.team_id = c->caller.team_id;
    in.extend_only = true;
    in.must_be_paused = legacy;
    in.reboot = !memory;
    in.reason = legacy ? "resumed by API" : "connected by API";
    call_master(c, MASTER_SANDBOXES "Resume", &in.base, &cube__master__v1__resume_reply__descriptor, 0,
                on_resumed, NULL);
}

void handle_sandbox_connect_v2(struct call *c)
{
    resume(c, DEFAULT_CONNECT_S, false, false);
}

void handle_sandbox_connect_v1(struct call *c)
{
    resume(c, DEFAULT_CONNECT_S, true, false);
}

void handle_sandbox_resume(struct call *c)
{
    resume(c, DEFAULT_SHORT_S, false, true);
}

/* ---- pause ---- */

static void on_pause_failed(struct call *c, const struct err *e)
{
    bool strict = json_is_true(json_object_get(c->body, "requireHealthyGuest"));
    /* The SDKs read any 409 as "paused already"; a strict pause that was refused for another reason must not
     * look like that (contracts/e2b.md §9.2). */
    if (strict && e->code == ERR_CONFLICT && !strstr(e->msg, "already paused")) {
        call_fail_as(c, 503, e);
        return;
    }
    call_fail(c, e);
}

void handle_sandbox_pause(struct call *c)
{
    static const char *const known[] = {"memory", "requireHealthyGuest", NULL};
    struct err e = {0};
    bool memory = true, strict = false;
    Cube__Master__V1__PauseRequest in = CUBE__MASTER__V1__PAUSE_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (body_bool(c->body, "", "memory", &memory, NULL, &e) < 0 ||
        body_bool(c->body, "", "requireHealthyGuest", &strict, NULL, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    in.team_id = c->caller.team_id;
    in.filesystem_only = !memory;
    in.require_healthy = strict;
    in.reason = "paused by API";
    call_master(c, MASTER_SANDBOXES "Pause", &in.base, &cube__master__v1__sandbox_reply__descriptor, 0,
                reply_empty, on_pause_failed);
}

/* ---- deadlines ---- */

static void set_deadline(struct call *c, char *id, int64_t timeout_s, bool extend_only)
{
    Cube__Master__V1__SetDeadlineRequest in = CUBE__MASTER__V1__SET_DEADLINE_REQUEST__INIT;
    in.sandbox_id = id;
    in.team_id = c->caller.team_id;
    in.timeout_ms = timeout_s * 1000;
    in.extend_only = extend_only;
    call_master(c, MASTER_SANDBOXES "SetDeadline", &in.base, &cube__master__v1__sandbox_reply__descriptor, 0,
                reply_empty, NULL);
}

void handle_sandbox_timeout(struct call *c)
{
    static const char *const known[] = {"timeout", NULL};
    struct err e = {0};
    int64_t s = 0;
    bool present;
    char *id = (char *)path_sandbox_id(c);
    if (!id)
        return;
    if (body_int(c->body, "", "timeout", 0, INT32_MAX, &s, &present, &e) == 0) {
        if (!present)
            err_set(&e, ERR_INVALID, "validation error: property 'timeout' is missing");
        else if (s > 0) /* 0 ends the sandbox at once (contracts/e2b.md §7) */
            timeout_check(s, c->caller.max_timeout_ms, &e);
    }
    if (e.code) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    set_deadline(c, id, s, false);
}

void handle_sandbox_refresh(struct call *c)
{
    static const char *const known[] = {"duration", NULL};
    struct err e = {0};
    int64_t s = REFRESH_MIN_S;
    char *id = (char *)path_sandbox_id(c);
    if (!id)
        return;
    if (body_int(c->body, "", "duration", 0, REFRESH_MAX_S, &s, NULL, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    set_deadline(c, id, s < REFRESH_MIN_S ? REFRESH_MIN_S : s, true);
}

/* ---- network ---- */

void handle_sandbox_network(struct call *c)
{
    struct err e = {0};
    bool internet = true;
    struct network parsed;
    Cube__Master__V1__UpdateNetworkRequest in = CUBE__MASTER__V1__UPDATE_NETWORK_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (body_bool(c->body, "", "allow_internet_access", &internet, NULL, &e) < 0 ||
        network_parse(c->body, "", true, true, &network_supported, &parsed, &c->unknown, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    char *text = network_text(c->body, true);
    if (!text) {
        call_error(c, ERR_INTERNAL, "reading the network options: out of memory");
        return;
    }
    in.team_id = c->caller.team_id;
    in.network_json = text;
    in.deny_internet = !internet || parsed.deny_internet;
    call_master(c, MASTER_SANDBOXES "UpdateNetwork", &in.base, &cube__master__v1__sandbox_reply__descriptor,
                0, reply_empty, NULL);
    free(text);
}

/* ---- fork ---- */

static void on_forked(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ForkReply *r = (const Cube__Master__V1__ForkReply *)m;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_forks; i++) {
        const Cube__Master__V1__ForkOne *f = r->forks[i];
        jsonw_obj(&w);
        if (f->sandbox) {
            jsonw_key(&w, "sandbox");
            present_sandbox(&w, f->sandbox, c->w->api->domain);
        } else {
            jsonw_key(&w, "error");
            jsonw_obj(&w);
            jsonw_kint(&w, "code", err_code_http(err_code_parse(f->error_code)));
            jsonw_kstr(&w, "message", f->error);
            jsonw_obj_end(&w);
        }
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    call_send_json(c, 201);
}

void handle_sandbox_fork(struct call *c)
{
    static const char *const known[] = {"count", "timeout", NULL};
    struct err e = {0};
    int64_t count = 1;
    Cube__Master__V1__ForkRequest in = CUBE__MASTER__V1__FORK_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (body_int(c->body, "", "count", 1, FORK_MAX, &count, NULL, &e) < 0 ||
        take_timeout(c, DEFAULT_SHORT_S, false, &in.timeout_ms, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    in.team_id = c->caller.team_id;
    in.count = (uint32_t)count;
    call_master(c, MASTER_SANDBOXES "Fork", &in.base, &cube__master__v1__fork_reply__descriptor,
                UPSTREAM_CREATE, on_forked, NULL);
}

/* ---- snapshots ---- */

static void on_snapshot(struct call *c, const ProtobufCMessage *m)
{
    struct jsonw w = call_json(c);
    present_snapshot(&w, (const Cube__Master__V1__SnapshotReply *)m);
    call_send_json(c, 201);
}

void handle_sandbox_snapshot(struct call *c)
{
    static const char *const known[] = {"name", "memory", NULL};
    struct err e = {0};
    bool memory = true;
    const char *name = NULL;
    char ref[TEMPLATE_REF_MAX + 1] = "";
    Cube__Master__V1__SnapshotRequest in = CUBE__MASTER__V1__SNAPSHOT_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (body_str(c->body, "", "name", 1024, &name, &e) < 0 ||
        body_bool(c->body, "", "memory", &memory, NULL, &e) < 0 ||
        (name && template_ref_parse(name, ref, &e) < 0)) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    in.team_id = c->caller.team_id;
    in.name = ref;
    in.filesystem_only = !memory;
    call_master(c, MASTER_SANDBOXES "Snapshot", &in.base, &cube__master__v1__snapshot_reply__descriptor, 0,
                on_snapshot, NULL);
}

static void on_snapshots(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListSnapshotsReply *r = (const Cube__Master__V1__ListSnapshotsReply *)m;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_snapshots; i++)
        present_snapshot(&w, r->snapshots[i]);
    jsonw_arr_end(&w);
    if (r->next_cursor && *r->next_cursor)
        call_add_header(c, "x-next-token", r->next_cursor);
    call_send_json(c, 200);
}

void handle_snapshot_list(struct call *c)
{
    struct err e = {0};
    int64_t limit;
    char id[24] = "", ref[TEMPLATE_REF_MAX + 1] = "";
    const char *sandbox = query_get(&c->query, "sandboxID"), *name = query_get(&c->query, "name");
    const char *cursor = query_get(&c->query, "nextToken");
    Cube__Master__V1__ListSnapshotsRequest in = CUBE__MASTER__V1__LIST_SNAPSHOTS_REQUEST__INIT;
    if ((sandbox && *sandbox && sandbox_id_parse(sandbox, id, &e) < 0) ||
        (name && *name && template_ref_parse(name, ref, &e) < 0) ||
        query_int(&c->query, "limit", 1, 100, 100, &limit, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    in.team_id = c->caller.team_id;
    in.sandbox_id = id;
    in.name = ref;
    in.limit = (uint32_t)limit;
    in.cursor = (char *)(cursor ? cursor : "");
    call_master(c, MASTER_SANDBOXES "ListSnapshots", &in.base,
                &cube__master__v1__list_snapshots_reply__descriptor, UPSTREAM_READ, on_snapshots, NULL);
}

static void on_rolled_back(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__SandboxReply *r = (const Cube__Master__V1__SandboxReply *)m;
    struct jsonw w = call_json(c);
    present_sandbox(&w, r->sandbox, c->w->api->domain);
    call_send_json(c, 200);
}

void handle_cube_rollback(struct call *c)
{
    static const char *const known[] = {"snapshotID", NULL};
    struct err e = {0};
    const char *name = NULL;
    char ref[TEMPLATE_REF_MAX + 1];
    Cube__Master__V1__RollbackRequest in = CUBE__MASTER__V1__ROLLBACK_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (body_str(c->body, "", "snapshotID", 1024, &name, &e) == 0 && !name)
        err_set(&e, ERR_INVALID, "validation error: property 'snapshotID' is missing");
    if (e.code || template_ref_parse(name, ref, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    in.team_id = c->caller.team_id;
    in.snapshot_id = ref;
    call_master(c, MASTER_SANDBOXES "Rollback", &in.base, &cube__master__v1__sandbox_reply__descriptor, 0,
                on_rolled_back, NULL);
}
