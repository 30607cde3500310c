/* Owns what a simulated node does when a master commands it. Invariant: generations are kept as a real node
 * keeps them: a start must be newer than anything that the node knows of the sandbox. */
#include "tests/control/faultnode/sim.h"
#include "lib/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sim_sandbox **bucket(struct sim_node *n, const char *id)
{
    uint32_t h = 2166136261u;
    for (; *id; id++)
        h = (h ^ (uint8_t)*id) * 16777619u;
    return &n->buckets[h % SIM_BUCKETS];
}

struct sim_sandbox *sim_find(struct sim_node *n, const char *id)
{
    for (struct sim_sandbox *s = *bucket(n, id); s; s = s->next)
        if (strcmp(s->id, id) == 0)
            return s;
    return NULL;
}

struct sim_sandbox *sim_add(struct sim_node *n, const char *id)
{
    struct sim_sandbox *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    snprintf(s->id, sizeof s->id, "%s", id);
    s->healthy = true;
    s->next = *bucket(n, id);
    *bucket(n, id) = s;
    n->count++;
    return s;
}

void sim_remove(struct sim_node *n, struct sim_sandbox *s)
{
    for (struct sim_sandbox **at = bucket(n, s->id); *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    n->count--;
    if (s->spec)
        cube__v1__sandbox_spec__free_unpacked(s->spec, NULL);
    free(s);
}

void sim_message(struct sim_sandbox *s, Cube__Master__V1__NodeSandbox *out)
{
    cube__master__v1__node_sandbox__init(out);
    out->spec = s->spec;
    out->gen = s->gen;
    out->state = s->state;
    out->end_ms = s->end_ms;
    out->reason = s->reason;
    out->started_ms = s->started_ms;
    out->snapshot_id = s->snapshot;
    out->healthy = s->healthy;
    out->envd_version = "0.6.13";
    out->isolation = "pvm";
    out->last_activity_ms = s->last_activity_ms;
    out->awake = s->awake;
    out->memory_rss_mib = s->rss_mib;
    out->guest_oom_kills = s->oom_kills;
    out->last_answer_ms = s->healthy ? clock_realtime_ms() : 1;
    out->filesystem_only = s->filesystem_only;
}

/* A call that has to wait: the simulated work takes its time in a fiber. */
struct job {
    struct sim_node *n;
    struct rpc_call *call;
    ProtobufCMessage *in;
    void (*run)(struct job *j);
};

static void on_job_closed(struct rpc_call *c, void *data)
{
    (void)c;
    ((struct job *)data)->call = NULL;
}

static void job_fiber(void *arg)
{
    struct job *j = arg;
    while (j->n->silent && j->call)
        fiber_sleep(50); /* a cut-off node answers nothing */
    if (j->call)
        j->run(j);
    protobuf_c_message_free_unpacked(j->in, NULL);
    free(j);
}

static void job_spawn(struct rpc_call *c, const ProtobufCMessage *in, void *service,
                      void (*run)(struct job *j))
{
    struct job *j = calloc(1, sizeof *j);
    size_t len = protobuf_c_message_get_packed_size(in);
    uint8_t *bytes = malloc(len + 1);
    if (!j || !bytes)
        abort();
    protobuf_c_message_pack(in, bytes);
    j->in = protobuf_c_message_unpack(in->descriptor, NULL, len, bytes);
    free(bytes);
    j->n = service;
    j->call = c;
    j->run = run;
    rpc_on_closed(c, on_job_closed, j);
    fiber_spawn(job_fiber, j);
}

static void job_reply(struct job *j, const ProtobufCMessage *out)
{
    if (j->call)
        rpc_reply(j->call, out);
    j->call = NULL;
}

static void job_fail(struct job *j, enum err_code code, const char *text)
{
    struct err e = {0};
    err_set(&e, code, "%s", text);
    if (j->call)
        rpc_fail(j->call, &e);
    j->call = NULL;
}

/* Looks again and again, so that a test that has seen what it waited for can end the delay. */
static void sim_delay(const int64_t *ms)
{
    for (int64_t start = clock_mono_us(); clock_mono_us() - start < *ms * 1000;)
        fiber_sleep(10);
}

static void start_common(struct job *j, bool restore)
{
    Cube__Node__V1__StartRequest *q = (Cube__Node__V1__StartRequest *)j->in;
    struct sim_node *n = j->n;
    enum err_code refuse = restore ? n->refuse_restore : n->refuse_start;
    sim_delay(&n->start_ms);
    struct sim_sandbox *s = sim_find(n, q->spec->sandbox_id);
    if (refuse) {
        job_fail(j, refuse, "the simulated node refuses");
        return;
    }
    if (s && s->gen >= q->gen) {
        char text[64];
        snprintf(text, sizeof text, "the node knows gen=%" PRIu64, s->gen);
        job_fail(j, ERR_STALE_GENERATION, text);
        return;
    }
    bool rollback = restore && *q->snapshot_id && s && s->state == CUBE__V1__SANDBOX_STATE__RUNNING;
    if (restore && !rollback && (!s || s->state != CUBE__V1__SANDBOX_STATE__PAUSED)) {
        job_fail(j, ERR_NOT_FOUND, "no such paused sandbox");
        return;
    }
    if (q->ticket.len != 32 || (q->spec->secure && strlen(q->envd_token) != 64)) {
        job_fail(j, ERR_INVALID, "ticket or token is missing");
        return;
    }
    if (!s)
        s = sim_add(n, q->spec->sandbox_id);
    if (s->spec)
        cube__v1__sandbox_spec__free_unpacked(s->spec, NULL);
    s->spec = q->spec;
    q->spec = NULL;
    s->gen = q->gen;
    s->state = CUBE__V1__SANDBOX_STATE__RUNNING;
    s->started_ms = s->last_activity_ms = clock_realtime_ms();
    s->end_ms = s->started_ms + q->remaining_ms;
    s->reason[0] = 0;
    s->changed = true;
    s->rss_mib = 48;
    if (restore)
        n->restores++;
    else
        n->starts++;
    Cube__Node__V1__StartReply r = CUBE__NODE__V1__START_REPLY__INIT;
    r.gen = s->gen - n->older;
    r.started_ms = s->started_ms;
    r.envd_version = "0.6.13";
    r.isolation = "pvm";
    job_reply(j, &r.base);
}

static void run_start(struct job *j)
{
    start_common(j, false);
}

static void run_restore(struct job *j)
{
    start_common(j, true);
}

static void run_pause(struct job *j)
{
    Cube__Node__V1__PauseRequest *q = (Cube__Node__V1__PauseRequest *)j->in;
    struct sim_node *n = j->n;
    bool was = sim_find(n, q->sandbox_id) != NULL;
    sim_delay(&n->pause_ms);
    struct sim_sandbox *s = sim_find(n, q->sandbox_id);
    if (n->refuse_pause) {
        job_fail(j, n->refuse_pause, "the simulated node refuses");
    } else if (!s) {
        job_fail(j, was ? ERR_UNAVAILABLE : ERR_NOT_FOUND, was ? "the VMM has gone away" : "no such sandbox");
    } else if (s->gen != q->gen) {
        job_fail(j, ERR_STALE_GENERATION, "another generation");
    } else {
        s->state = CUBE__V1__SANDBOX_STATE__PAUSED;
        s->filesystem_only = q->filesystem_only;
        s->changed = true;
        snprintf(s->snapshot, sizeof s->snapshot, "%s", q->snapshot_id);
        n->pauses++;
        Cube__Node__V1__PauseReply r = CUBE__NODE__V1__PAUSE_REPLY__INIT;
        r.snapshot_id = s->snapshot;
        r.frozen_us = 1000;
        job_reply(j, &r.base);
    }
}

static void run_kill(struct job *j)
{
    Cube__Node__V1__KillRequest *q = (Cube__Node__V1__KillRequest *)j->in;
    struct sim_node *n = j->n;
    sim_delay(&n->kill_ms);
    struct sim_sandbox *s = sim_find(n, q->sandbox_id);
    Cube__Node__V1__KillReply r = CUBE__NODE__V1__KILL_REPLY__INIT;
    if (s && q->gen && s->gen > q->gen) {
        job_fail(j, ERR_STALE_GENERATION, "a newer generation lives here");
        return;
    }
    if (s) {
        r.existed = true;
        n->kills++;
        sim_remove(n, s);
    }
    job_reply(j, &r.base);
}

static void run_update(struct job *j)
{
    Cube__Node__V1__UpdateRequest *q = (Cube__Node__V1__UpdateRequest *)j->in;
    struct sim_sandbox *s = sim_find(j->n, q->sandbox_id);
    Cube__Node__V1__UpdateReply r = CUBE__NODE__V1__UPDATE_REPLY__INIT;
    if (!s) {
        job_fail(j, ERR_NOT_FOUND, "no such sandbox");
        return;
    }
    if (q->remaining_ms >= 0)
        s->end_ms = clock_realtime_ms() + q->remaining_ms;
    r.gen = s->gen;
    job_reply(j, &r.base);
}

static void run_snapshot(struct job *j)
{
    Cube__Node__V1__SnapshotRequest *q = (Cube__Node__V1__SnapshotRequest *)j->in;
    struct sim_sandbox *s = sim_find(j->n, q->sandbox_id);
    Cube__Node__V1__SnapshotReply r = CUBE__NODE__V1__SNAPSHOT_REPLY__INIT;
    if (!s || s->gen != q->gen) {
        job_fail(j, ERR_NOT_FOUND, "no such sandbox");
        return;
    }
    sim_delay(&j->n->snapshot_ms);
    s = sim_find(j->n, q->sandbox_id);
    if (!s || s->state != CUBE__V1__SANDBOX_STATE__RUNNING) {
        job_fail(j, ERR_UNAVAILABLE, "the VMM has gone away");
        return;
    }
    r.snapshot_id = q->snapshot_id;
    job_reply(j, &r.base);
}

static void run_drop_snapshot(struct job *j)
{
    Cube__Node__V1__KillReply r = CUBE__NODE__V1__KILL_REPLY__INIT;
    snprintf(j->n->dropped[j->n->drops++ % 16], sizeof j->n->dropped[0], "%s",
             ((Cube__Node__V1__DeleteSnapshotRequest *)j->in)->snapshot_id);
    r.existed = true;
    job_reply(j, &r.base);
}

static void run_list(struct job *j)
{
    struct sim_node *n = j->n;
    Cube__Node__V1__ListReply r = CUBE__NODE__V1__LIST_REPLY__INIT;
    n->lists++;
    sim_delay(&n->list_ms);
    Cube__Master__V1__NodeSandbox *all = calloc(n->count + 1, sizeof *all);
    r.sandboxes = calloc(n->count + 1, sizeof *r.sandboxes);
    if (!all || !r.sandboxes)
        abort();
    for (size_t b = 0; b < SIM_BUCKETS; b++)
        for (struct sim_sandbox *s = n->buckets[b]; s; s = s->next) {
            sim_message(s, &all[r.n_sandboxes]);
            r.sandboxes[r.n_sandboxes] = &all[r.n_sandboxes];
            r.n_sandboxes++;
        }
    job_reply(j, &r.base);
    free(r.sandboxes);
    free(all);
}

static void run_log(struct job *j)
{
    Cube__Master__V1__LogEntry line = CUBE__MASTER__V1__LOG_ENTRY__INIT, *lines[] = {&line};
    Cube__Master__V1__ReadLogReply r = CUBE__MASTER__V1__READ_LOG_REPLY__INIT;
    line.ts_ms = clock_realtime_ms();
    line.level = "info";
    line.message = "a simulated line";
    r.entries = lines;
    r.n_entries = 1;
    job_reply(j, &r.base);
}

static void run_metrics(struct job *j)
{
    Cube__Master__V1__MetricsRequest *q = (Cube__Master__V1__MetricsRequest *)j->in;
    Cube__Master__V1__MetricsReply r = CUBE__MASTER__V1__METRICS_REPLY__INIT;
    Cube__Master__V1__MetricPoint *points = calloc(q->n_sandbox_ids + 1, sizeof *points);
    r.points = calloc(q->n_sandbox_ids + 1, sizeof *r.points);
    if (!points || !r.points)
        abort();
    for (size_t i = 0; i < q->n_sandbox_ids; i++) {
        cube__master__v1__metric_point__init(&points[i]);
        points[i].sandbox_id = q->sandbox_ids[i];
        points[i].ts_ms = clock_realtime_ms();
        points[i].cpu_count = 1;
        r.points[r.n_points++] = &points[i];
    }
    job_reply(j, &r.base);
    free(r.points);
    free(points);
}

#define METHOD(name, in_type, out_type, fn)                                                                  \
    {                                                                                                        \
        .path = "/cube.node.v1.Sandboxes/" name, .in = &in_type##__descriptor,                               \
        .out = &out_type##__descriptor, .roles = RPC_ROLE_MASTER | RPC_ROLE_ADMIN, .start = start_##fn       \
    }
#define START(fn)                                                                                            \
    static void start_##fn(struct rpc_call *c, const ProtobufCMessage *in, void *service)                    \
    {                                                                                                        \
        job_spawn(c, in, service, fn);                                                                       \
    }

START(run_start)
START(run_restore)
START(run_pause)
START(run_kill)
START(run_update)
START(run_snapshot)
START(run_drop_snapshot)
START(run_list)
START(run_log)
START(run_metrics)

const struct rpc_method sim_methods[] = {
    METHOD("Start", cube__node__v1__start_request, cube__node__v1__start_reply, run_start),
    METHOD("Restore", cube__node__v1__start_request, cube__node__v1__start_reply, run_restore),
    METHOD("Pause", cube__node__v1__pause_request, cube__node__v1__pause_reply, run_pause),
    METHOD("Kill", cube__node__v1__kill_request, cube__node__v1__kill_reply, run_kill),
    METHOD("Update", cube__node__v1__update_request, cube__node__v1__update_reply, run_update),
    METHOD("Snapshot", cube__node__v1__snapshot_request, cube__node__v1__snapshot_reply, run_snapshot),
    METHOD("DeleteSnapshot", cube__node__v1__delete_snapshot_request, cube__node__v1__kill_reply,
           run_drop_snapshot),
    METHOD("List", cube__node__v1__list_request, cube__node__v1__list_reply, run_list),
    METHOD("ReadLog", cube__master__v1__read_log_request, cube__master__v1__read_log_reply, run_log),
    METHOD("Metrics", cube__master__v1__metrics_request, cube__master__v1__metrics_reply, run_metrics),
    {0},
};
