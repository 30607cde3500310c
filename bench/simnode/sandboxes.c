/* Owns the sandboxes of the simulated nodes and answers the master's commands. Invariant: generations are
 * refused as a real node refuses them, and whatever changes is in the next report. */
#include "bench/simnode/simnode.h"

#include "lib/base/clock.h"
#include "lib/base/ids.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS (1 << 17)

static struct sim_sandbox *buckets[BUCKETS];

static unsigned bucket(const char *id)
{
    uint32_t h = 2166136261u;
    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 16777619u;
    return h % BUCKETS;
}

struct sim_sandbox *sim_find(const char *id)
{
    struct sim_sandbox *s = buckets[bucket(id)];
    while (s && strcmp(s->spec->sandbox_id, id) != 0)
        s = s->hash_next;
    return s;
}

static void changed(struct sim_sandbox *s)
{
    if (s->is_changed)
        return;
    s->is_changed = true;
    s->changed = s->node->changed;
    s->node->changed = s;
}

static bool holds_memory(const struct sim_sandbox *s)
{
    return s->state == CUBE__V1__SANDBOX_STATE__RUNNING;
}

static void set_state(struct sim_sandbox *s, Cube__V1__SandboxState state)
{
    uint64_t memory = s->spec->limits ? s->spec->limits->memory_mib : 0;
    bool before = holds_memory(s);
    s->state = state;
    if (before && !holds_memory(s)) {
        s->node->memory_taken_mib -= memory;
        s->node->count--;
    } else if (!before && holds_memory(s)) {
        s->node->memory_taken_mib += memory;
        s->node->count++;
    }
    changed(s);
}

static Cube__V1__SandboxSpec *spec_copy(const Cube__V1__SandboxSpec *from)
{
    size_t n = cube__v1__sandbox_spec__get_packed_size(from);
    uint8_t *packed = malloc(n ? n : 1);
    if (!packed)
        abort();
    cube__v1__sandbox_spec__pack(from, packed);
    Cube__V1__SandboxSpec *to = cube__v1__sandbox_spec__unpack(NULL, n, packed);
    free(packed);
    return to;
}

static struct sim_sandbox *add(struct sim_node *n, const Cube__V1__SandboxSpec *spec)
{
    struct sim_sandbox *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->node = n;
    s->spec = spec_copy(spec);
    unsigned b = bucket(spec->sandbox_id);
    s->hash_next = buckets[b];
    buckets[b] = s;
    s->next = n->sandboxes;
    s->link = &n->sandboxes;
    if (s->next)
        s->next->link = &s->next;
    n->sandboxes = s;
    return s;
}

static void drop(struct sim_sandbox *s)
{
    struct sim_sandbox **p = &buckets[bucket(s->spec->sandbox_id)];
    while (*p != s)
        p = &(*p)->hash_next;
    *p = s->hash_next;
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    for (p = &s->node->changed; *p;)
        if (*p == s)
            *p = s->changed;
        else
            p = &(*p)->changed;
    cube__v1__sandbox_spec__free_unpacked(s->spec, NULL);
    free(s);
}

/* ---- calls, answered at once or after the delay of their operation ---- */

struct pending {
    struct loop_timer timer;
    struct rpc_call *call;
    struct sim_node *node;
    ProtobufCMessage *in;
    void (*run)(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *in);
};

static void on_due(struct loop_timer *t)
{
    struct pending *p = H2O_STRUCT_FROM_MEMBER(struct pending, timer, t);
    p->run(p->node, p->call, p->in);
    protobuf_c_message_free_unpacked(p->in, NULL);
    free(p);
}

static void fail(struct rpc_call *c, enum err_code code, const char *what)
{
    struct err e = {0};
    err_set(&e, code, "%s", what);
    rpc_fail(c, &e);
}

static void handle(struct sim_node *n, enum sim_op op, struct rpc_call *c, const ProtobufCMessage *in,
                   void (*run)(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *in))
{
    const struct sim_fault *f = &n->sim->faults[op];
    uint8_t dice;
    random_bytes(&dice, 1);
    if (f->refuse != ERR_OK && dice * 100 < f->percent * 256) {
        fail(c, f->refuse, "the simulated node refuses");
        return;
    }
    if (f->delay_ms == 0) {
        run(n, c, in);
        return;
    }
    struct pending *p = calloc(1, sizeof *p);
    size_t size = protobuf_c_message_get_packed_size(in);
    uint8_t *packed = malloc(size + 1);
    if (!p || !packed)
        abort();
    protobuf_c_message_pack(in, packed);
    *p = (struct pending){.call = c,
                          .node = n,
                          .run = run,
                          .in = protobuf_c_message_unpack(in->descriptor, NULL, size, packed)};
    free(packed);
    p->timer.fire = on_due;
    loop_timer_start(n->sim->loop, &p->timer, f->delay_ms);
}

static bool stale(struct rpc_call *c, const struct sim_sandbox *s, uint64_t gen)
{
    if (!s || gen > s->gen)
        return false;
    struct err e = {0};
    err_set(&e, ERR_STALE_GENERATION, "sandbox %s has a newer generation: gen=%" PRIu64, s->spec->sandbox_id,
            s->gen);
    rpc_fail(c, &e);
    return true;
}

static void run_start(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *m)
{
    const Cube__Node__V1__StartRequest *q = (const Cube__Node__V1__StartRequest *)m;
    struct sim_sandbox *s = sim_find(q->spec->sandbox_id);
    if (stale(c, s, q->gen))
        return;
    uint64_t memory = q->spec->limits ? q->spec->limits->memory_mib : 0;
    if (n->count >= n->sim->max_sandboxes || n->memory_taken_mib + memory > n->sim->memory_mib) {
        fail(c, ERR_CAPACITY, "the simulated node is full");
        return;
    }
    if (!s)
        s = add(n, q->spec);
    s->gen = q->gen;
    s->started_ms = clock_realtime_ms();
    s->end_ms = s->started_ms + q->remaining_ms;
    s->reason[0] = '\0';
    set_state(s, CUBE__V1__SANDBOX_STATE__RUNNING);
    n->sim->started++;
    Cube__Node__V1__StartReply r = CUBE__NODE__V1__START_REPLY__INIT;
    Cube__Node__V1__Receipt receipt = CUBE__NODE__V1__RECEIPT__INIT;
    receipt.clock_set = receipt.random_reseeded = receipt.identity_set = receipt.network_set =
        receipt.tokens_set = true;
    r.gen = q->gen;
    r.started_ms = s->started_ms;
    r.envd_version = (char *)n->sim->envd_version;
    r.isolation = (char *)n->sim->kvm_kind;
    r.receipt = &receipt;
    rpc_reply(c, &r.base);
}

static void start(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    handle(service, SIM_START, c, in, run_start);
}

static void restore(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    handle(service, SIM_RESTORE, c, in, run_start);
}

/* The sandbox that a command of this generation is for, or NULL after the call failed. */
static struct sim_sandbox *target(struct rpc_call *c, const char *id, uint64_t gen)
{
    struct sim_sandbox *s = sim_find(id);
    if (!s) {
        fail(c, ERR_NOT_FOUND, "the simulated node has no such sandbox");
        return NULL;
    }
    return gen && gen < s->gen && stale(c, s, gen) ? NULL : s;
}

static void run_pause(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *m)
{
    const Cube__Node__V1__PauseRequest *q = (const Cube__Node__V1__PauseRequest *)m;
    struct sim_sandbox *s = target(c, q->sandbox_id, q->gen);
    if (!s)
        return;
    if (s->state != CUBE__V1__SANDBOX_STATE__RUNNING && s->state != CUBE__V1__SANDBOX_STATE__PAUSED) {
        fail(c, ERR_CONFLICT, "the sandbox does not run");
        return;
    }
    if (s->state == CUBE__V1__SANDBOX_STATE__RUNNING) {
        s->end_ms = clock_realtime_ms();
        s->filesystem_only = q->filesystem_only;
        snprintf(s->snapshot_id, sizeof s->snapshot_id, "%s", q->snapshot_id);
        set_state(s, CUBE__V1__SANDBOX_STATE__PAUSED);
    }
    Cube__Node__V1__PauseReply r = CUBE__NODE__V1__PAUSE_REPLY__INIT;
    r.snapshot_id = s->snapshot_id;
    rpc_reply(c, &r.base);
}

static void pause_sandbox(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    handle(service, SIM_PAUSE, c, in, run_pause);
}

static void run_kill(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *m)
{
    const Cube__Node__V1__KillRequest *q = (const Cube__Node__V1__KillRequest *)m;
    struct sim_sandbox *s = sim_find(q->sandbox_id);
    if (s && q->gen && q->gen < s->gen && stale(c, s, q->gen))
        return;
    Cube__Node__V1__KillReply r = CUBE__NODE__V1__KILL_REPLY__INIT;
    r.existed = s != NULL;
    if (s) {
        set_state(s, CUBE__V1__SANDBOX_STATE__KILLED);
        drop(s);
        n->sim->killed++;
    }
    rpc_reply(c, &r.base);
}

static void kill_sandbox(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    handle(service, SIM_KILL, c, in, run_kill);
}

static void run_update(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *m)
{
    const Cube__Node__V1__UpdateRequest *q = (const Cube__Node__V1__UpdateRequest *)m;
    struct sim_sandbox *s = target(c, q->sandbox_id, q->gen);
    if (!s)
        return;
    if (q->remaining_ms >= 0)
        s->end_ms = clock_realtime_ms() + q->remaining_ms;
    changed(s);
    Cube__Node__V1__UpdateReply r = CUBE__NODE__V1__UPDATE_REPLY__INIT;
    r.gen = s->gen;
    rpc_reply(c, &r.base);
}

static void update(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    handle(service, SIM_UPDATE, c, in, run_update);
}

static void run_snapshot(struct sim_node *n, struct rpc_call *c, const ProtobufCMessage *m)
{
    const Cube__Node__V1__SnapshotRequest *q = (const Cube__Node__V1__SnapshotRequest *)m;
    if (!target(c, q->sandbox_id, q->gen))
        return;
    Cube__Node__V1__SnapshotReply r = CUBE__NODE__V1__SNAPSHOT_REPLY__INIT;
    r.snapshot_id = q->snapshot_id;
    rpc_reply(c, &r.base);
}

static void snapshot(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    handle(service, SIM_SNAPSHOT, c, in, run_snapshot);
}

static void delete_snapshot(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    Cube__Node__V1__KillReply r = CUBE__NODE__V1__KILL_REPLY__INIT;
    r.existed = true;
    rpc_reply(c, &r.base);
}

/* One line that tells when the sandbox started; enough to see that a log comes through. */
static void read_log(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    const Cube__Master__V1__ReadLogRequest *q = (const Cube__Master__V1__ReadLogRequest *)in;
    const struct sim_sandbox *s = target(c, q->sandbox_id, 0);
    if (!s)
        return;
    Cube__Master__V1__ReadLogReply r = CUBE__MASTER__V1__READ_LOG_REPLY__INIT;
    Cube__Master__V1__LogEntry entry = CUBE__MASTER__V1__LOG_ENTRY__INIT, *entries[] = {&entry};
    Cube__V1__Pair field = CUBE__V1__PAIR__INIT, *fields[] = {&field};
    field.key = "logger";
    field.value = "simnode";
    entry.ts_ms = s->started_ms;
    entry.level = "info";
    entry.message = "sandbox started";
    entry.n_fields = 1;
    entry.fields = fields;
    r.entries = entries;
    r.n_entries = s->started_ms >= q->cursor_ms || q->backward;
    rpc_reply(c, &r.base);
}

static void metrics(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    const Cube__Master__V1__MetricsRequest *q = (const Cube__Master__V1__MetricsRequest *)in;
    Cube__Master__V1__MetricsReply r = CUBE__MASTER__V1__METRICS_REPLY__INIT;
    Cube__Master__V1__MetricPoint points[100], *refs[100];
    for (size_t i = 0; i < q->n_sandbox_ids && r.n_points < 100; i++) {
        const struct sim_sandbox *s = sim_find(q->sandbox_ids[i]);
        if (!s || s->state != CUBE__V1__SANDBOX_STATE__RUNNING)
            continue;
        Cube__Master__V1__MetricPoint *p = &points[r.n_points];
        cube__master__v1__metric_point__init(p);
        p->sandbox_id = s->spec->sandbox_id;
        p->ts_ms = clock_realtime_ms();
        p->cpu_count = s->spec->limits ? s->spec->limits->vcpus : 1;
        p->cpu_used_pct = 12.5;
        p->mem_total = (uint64_t)(s->spec->limits ? s->spec->limits->memory_mib : 512) << 20;
        p->mem_used = p->mem_total / 4;
        refs[r.n_points++] = p;
    }
    r.points = refs;
    rpc_reply(c, &r.base);
}

void sim_die(const char *id, const char *reason)
{
    struct sim_sandbox *s = sim_find(id);
    if (!s)
        return;
    snprintf(s->reason, sizeof s->reason, "%s", reason);
    set_state(s, CUBE__V1__SANDBOX_STATE__FAILED);
    sim_report_soon(s->node);
}

#define NODE "/cube.node.v1.Sandboxes/"
static const struct rpc_method methods[] = {
    {NODE "Start", &cube__node__v1__start_request__descriptor, &cube__node__v1__start_reply__descriptor,
     RPC_ROLE_MASTER, false, start},
    {NODE "Restore", &cube__node__v1__start_request__descriptor, &cube__node__v1__start_reply__descriptor,
     RPC_ROLE_MASTER, false, restore},
    {NODE "Pause", &cube__node__v1__pause_request__descriptor, &cube__node__v1__pause_reply__descriptor,
     RPC_ROLE_MASTER, false, pause_sandbox},
    {NODE "Kill", &cube__node__v1__kill_request__descriptor, &cube__node__v1__kill_reply__descriptor,
     RPC_ROLE_MASTER, false, kill_sandbox},
    {NODE "Update", &cube__node__v1__update_request__descriptor, &cube__node__v1__update_reply__descriptor,
     RPC_ROLE_MASTER, false, update},
    {NODE "Snapshot", &cube__node__v1__snapshot_request__descriptor,
     &cube__node__v1__snapshot_reply__descriptor, RPC_ROLE_MASTER, false, snapshot},
    {NODE "DeleteSnapshot", &cube__node__v1__delete_snapshot_request__descriptor,
     &cube__node__v1__kill_reply__descriptor, RPC_ROLE_MASTER, false, delete_snapshot},
    {NODE "ReadLog", &cube__master__v1__read_log_request__descriptor,
     &cube__master__v1__read_log_reply__descriptor, RPC_ROLE_MASTER, false, read_log},
    {NODE "Metrics", &cube__master__v1__metrics_request__descriptor,
     &cube__master__v1__metrics_reply__descriptor, RPC_ROLE_MASTER, false, metrics},
    {0},
};

void sim_serve(struct sim_node *n)
{
    rpc_server_add(n->server, methods, n);
}
