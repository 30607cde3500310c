/* Owns the methods of the Sandboxes service for snapshots, forks, rollback and network policy: messages in,
 * messages out. */
#include "lib/net/fiber.h"
#include "master/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_MAX 100
#define FORKS_MAX 100

static void reply_record(struct request *r, struct record *rec)
{
    struct record_tokens tokens;
    Cube__V1__Sandbox msg;
    Cube__Master__V1__SandboxReply reply = CUBE__MASTER__V1__SANDBOX_REPLY__INIT;
    token_envd(&r->m->seed, rec->id, tokens.envd);
    token_traffic(&r->m->seed, rec->id, tokens.traffic);
    record_message(rec, &tokens, &msg);
    reply.sandbox = &msg;
    request_reply(r, &reply.base);
    record_free(rec);
}

/* "<name>:<tag>" when named, else "<id>:default"; usable as templateID of a create (contracts/e2b.md §1.4).
 */
struct named {
    Cube__Master__V1__SnapshotReply reply;
    char id[TEMPLATE_ID_MAX + 16];
    char *names[1];
};

static void snapshot_message(const Cube__Master__V1__Template *t, struct named *n)
{
    cube__master__v1__snapshot_reply__init(&n->reply);
    const char *base = t->n_aliases ? t->aliases[0] : t->template_id;
    snprintf(n->id, sizeof n->id, "%s%s", base, strchr(base, ':') ? "" : ":default");
    n->reply.snapshot_id = n->id;
    if (t->n_aliases) {
        n->names[0] = n->id;
        n->reply.names = n->names;
        n->reply.n_names = 1;
    }
}

static void serve_snapshot(struct request *r)
{
    Cube__Master__V1__Template *t = NULL;
    struct err e = {0};
    if (op_snapshot(r->m, (Cube__Master__V1__SnapshotRequest *)r->in, false, r->trace, &t, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    struct named n;
    snapshot_message(t, &n);
    request_reply(r, &n.reply.base);
    cube__master__v1__template__free_unpacked(t, NULL);
}

static bool wanted(const Cube__Master__V1__ListSnapshotsRequest *q, const Cube__Master__V1__Template *t)
{
    if (*q->sandbox_id && strcmp(q->sandbox_id, t->source_sandbox) != 0)
        return false;
    if (!*q->name)
        return true;
    for (size_t i = 0; i < t->n_aliases; i++) {
        const char *slash = strchr(t->aliases[i], '/'), *bare = slash ? slash + 1 : t->aliases[i];
        size_t n = strcspn(bare, ":");
        if (strcmp(q->name, t->aliases[i]) == 0 || strcmp(q->name, bare) == 0 ||
            (strlen(q->name) == n && strncmp(q->name, bare, n) == 0))
            return true;
    }
    return false;
}

static void serve_list_snapshots(struct request *r)
{
    Cube__Master__V1__ListSnapshotsRequest *q = (Cube__Master__V1__ListSnapshotsRequest *)r->in;
    struct catalog_list l = {.snapshots = true};
    struct err e = {0};
    size_t limit = q->limit && q->limit < PAGE_MAX ? q->limit : PAGE_MAX, n = 0;
    if (!*q->team_id)
        err_set(&e, ERR_INVALID, "the list names no team");
    else if (*q->cursor && strspn(q->cursor, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(q->cursor))
        err_set(&e, ERR_INVALID, "Invalid next token");
    if (e.code || catalog_list(r->m, q->team_id, &l, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__ListSnapshotsReply reply = CUBE__MASTER__V1__LIST_SNAPSHOTS_REPLY__INIT;
    struct named *all = calloc(limit, sizeof *all);
    reply.snapshots = calloc(limit, sizeof *reply.snapshots);
    if (!all || !reply.snapshots)
        abort();
    bool on = !*q->cursor;
    char *last = NULL;
    for (size_t i = 0; i < l.n; i++) {
        if (!on) { /* the cursor names the last one of the page before */
            on = strcmp(l.v[i]->template_id, q->cursor) == 0;
            continue;
        }
        if (!wanted(q, l.v[i]))
            continue;
        if (n == limit) {
            reply.next_cursor = last;
            break;
        }
        snapshot_message(l.v[i], &all[n]);
        reply.snapshots[n] = &all[n].reply;
        last = l.v[i]->template_id;
        n++;
    }
    reply.n_snapshots = n;
    request_reply(r, &reply.base);
    free(all);
    free(reply.snapshots);
    catalog_list_free(&l);
}

/* ---- fork ---- */

struct fork {
    struct fork_all *all;
    struct record rec;
    struct record_tokens tokens;
    struct err e;
    bool ok;
};

struct fork_all {
    struct request *r;
    struct record *source;
    const char *snapshot;
    int64_t timeout_ms;
    size_t left;
    struct fiber_event done;
};

static void fork_fiber(void *arg)
{
    struct fork *f = arg;
    struct fork_all *all = f->all;
    Cube__Master__V1__CreateRequest q = CUBE__MASTER__V1__CREATE_REQUEST__INIT;
    q.spec = (Cube__V1__SandboxSpec *)message_dup(&all->source->spec->base);
    if (q.spec) {
        char *old = q.spec->template_id;
        q.spec->template_id = strdup(all->snapshot);
        if (old != protobuf_c_empty_string)
            free(old);
        q.spec->timeout_ms = all->timeout_ms;
        f->ok = op_create(all->r->m, &q, all->r->trace, &f->rec, &f->e) == 0;
        cube__v1__sandbox_spec__free_unpacked(q.spec, NULL);
    } else {
        err_set(&f->e, ERR_UNAVAILABLE, "out of memory");
    }
    if (--all->left == 0)
        fiber_event_set(&all->done);
}

static void fork_reply(struct request *r, struct fork *forks, size_t n)
{
    Cube__Master__V1__ForkReply reply = CUBE__MASTER__V1__FORK_REPLY__INIT;
    Cube__Master__V1__ForkOne *ones = calloc(n, sizeof *ones);
    Cube__V1__Sandbox *msgs = calloc(n, sizeof *msgs);
    reply.forks = calloc(n, sizeof *reply.forks);
    if (!ones || !msgs || !reply.forks)
        abort();
    for (size_t i = 0; i < n; i++) {
        cube__master__v1__fork_one__init(&ones[i]);
        if (forks[i].ok) {
            token_envd(&r->m->seed, forks[i].rec.id, forks[i].tokens.envd);
            token_traffic(&r->m->seed, forks[i].rec.id, forks[i].tokens.traffic);
            record_message(&forks[i].rec, &forks[i].tokens, &msgs[i]);
            ones[i].sandbox = &msgs[i];
        } else {
            ones[i].error_code = (char *)err_code_name(forks[i].e.code);
            ones[i].error = forks[i].e.msg;
        }
        reply.forks[i] = &ones[i];
    }
    reply.n_forks = n;
    request_reply(r, &reply.base);
    free(ones);
    free(msgs);
    free(reply.forks);
}

static void serve_fork(struct request *r)
{
    Cube__Master__V1__ForkRequest *q = (Cube__Master__V1__ForkRequest *)r->in;
    size_t n = q->count ? q->count : 1;
    _cleanup_record_ struct record source = {0};
    Cube__Master__V1__Template *t = NULL;
    Cube__Master__V1__SnapshotRequest snap = CUBE__MASTER__V1__SNAPSHOT_REQUEST__INIT;
    struct err e = {0};
    snap.sandbox_id = q->sandbox_id;
    snap.team_id = q->team_id;
    if (n > FORKS_MAX)
        err_set(&e, ERR_INVALID, "a fork makes 1 to %d sandboxes", FORKS_MAX);
    if (e.code || op_load(r->m, q->sandbox_id, q->team_id, &source, &e) < 0 ||
        op_snapshot(r->m, &snap, true, r->trace, &t, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    struct fork_all all = {
        .r = r, .source = &source, .snapshot = t->template_id, .timeout_ms = q->timeout_ms, .left = n};
    struct fork *forks = calloc(n, sizeof *forks);
    if (!forks)
        abort();
    for (size_t i = 0; i < n; i++) {
        forks[i].all = &all;
        fiber_spawn(fork_fiber, &forks[i]);
    }
    fiber_event_wait(&all.done, -1);
    forks_done(r->m, t->template_id);
    fork_reply(r, forks, n);
    for (size_t i = 0; i < n; i++)
        record_free(&forks[i].rec);
    free(forks);
    cube__master__v1__template__free_unpacked(t, NULL);
}

static void serve_rollback(struct request *r)
{
    struct record rec;
    struct err e = {0};
    if (op_rollback(r->m, (Cube__Master__V1__RollbackRequest *)r->in, r->trace, &rec, &e) < 0)
        request_fail(r, &e);
    else
        reply_record(r, &rec);
}

static void serve_network(struct request *r)
{
    struct record rec;
    struct err e = {0};
    if (op_network(r->m, (Cube__Master__V1__UpdateNetworkRequest *)r->in, &rec, &e) < 0)
        request_fail(r, &e);
    else
        reply_record(r, &rec);
}

REQUEST_START(serve_snapshot)
REQUEST_START(serve_list_snapshots)
REQUEST_START(serve_fork)
REQUEST_START(serve_rollback)
REQUEST_START(serve_network)

#define METHOD(name, in_type, out_type, fn)                                                                  \
    {                                                                                                        \
        .path = "/cube.master.v1.Sandboxes/" name, .in = &cube__master__v1__##in_type##__descriptor,         \
        .out = &cube__master__v1__##out_type##__descriptor, .roles = RPC_ROLE_API | RPC_ROLE_ADMIN,          \
        .start = start_##fn                                                                                  \
    }

const struct rpc_method snapshots_methods[] = {
    METHOD("Snapshot", snapshot_request, snapshot_reply, serve_snapshot),
    METHOD("ListSnapshots", list_snapshots_request, list_snapshots_reply, serve_list_snapshots),
    METHOD("Fork", fork_request, fork_reply, serve_fork),
    METHOD("Rollback", rollback_request, sandbox_reply, serve_rollback),
    METHOD("UpdateNetwork", update_network_request, sandbox_reply, serve_network),
    {0},
};
