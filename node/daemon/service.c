/* Owns the gRPC methods of the node. Invariant: each command runs in its own fiber on its own copy of the
 * request and ends its call exactly once, also when the caller has gone: a command that was begun is
 * finished. */
#include "node/daemon/network.h"
#include "node/daemon/network_watch.h"
#include "node/daemon/service.h"

#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "node/daemon/eventlog.h"
#include "node/daemon/master_link.h"
#include "node/daemon/report.h"
#include "node/daemon/samples.h"
#include "node/daemon/sandbox.h"

#include <string.h>

#define CALLERS (RPC_ROLE_MASTER | RPC_ROLE_ADMIN)
#define FRESH_MS 1500    /* a metric point this young need not be asked for again */
#define ADOPTION_MS 5000 /* what a command waits for it */

/* Commands that came before the node knew its sandboxes, in their order. Each is on its fiber's stack. */
static struct early {
    struct fiber_event ready;
    struct early *next;
} * early_first, **early_last = &early_first;

/* Whether the node knows its sandboxes. Before that a kill would bury one that runs, and a resume would be
 * told that there is no pause. */
static bool wait_for_adoption(struct node *n)
{
    if (n->ready)
        return true;
    struct early me = {0};
    *early_last = &me;
    early_last = &me.next;
    if (fiber_event_wait(&me.ready, ADOPTION_MS))
        return true;
    struct early **at = &early_first;
    while (*at != &me)
        at = &(*at)->next;
    *at = me.next;
    if (early_last == &me.next)
        early_last = at;
    return false;
}

void service_ready(struct node *n)
{
    n->ready = true;
    struct early *e = early_first;
    early_first = NULL;
    early_last = &early_first;
    for (struct early *next; e; e = next) {
        next = e->next; /* its fiber may return */
        fiber_event_set(&e->ready);
    }
}

struct command {
    struct node *node;
    struct rpc_call *call;
    ProtobufCMessage *in;
    void (*run)(struct command *c);
};

static void run_command(void *arg)
{
    struct command *c = arg;
    c->node->last_master_ms = clock_boot_ms();
    if (wait_for_adoption(c->node))
        c->run(c);
    else
        rpc_fail(c->call, &(struct err){.code = ERR_UNAVAILABLE,
                                        .msg = "this node is still taking over its sandboxes"});
    protobuf_c_message_free_unpacked(c->in, NULL);
    free(c);
}

static void begin(struct rpc_call *call, const ProtobufCMessage *in, struct node *n,
                  void (*run)(struct command *c))
{
    size_t size = protobuf_c_message_get_packed_size(in);
    uint8_t *data = malloc(size ? size : 1);
    struct command *c = calloc(1, sizeof *c);
    if (!data || !c)
        abort();
    protobuf_c_message_pack(in, data);
    *c = (struct command){.node = n,
                          .call = call,
                          .run = run,
                          .in = protobuf_c_message_unpack(in->descriptor, NULL, size, data)};
    free(data);
    if (!c->in)
        abort();
    fiber_spawn(run_command, c);
}

static void start_or_restore(struct command *c, bool restore)
{
    struct err e = {0};
    struct sandbox *sb = NULL;
    Cube__Node__V1__Receipt receipt = CUBE__NODE__V1__RECEIPT__INIT;
    if (sandbox_start(c->node, (Cube__Node__V1__StartRequest *)c->in, restore, &receipt, &sb, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    Cube__Node__V1__StartReply reply = CUBE__NODE__V1__START_REPLY__INIT;
    reply.gen = sb->gen;
    reply.started_ms = sb->started_ms;
    reply.envd_version = sb->envd_version;
    reply.isolation = sb->isolation;
    reply.receipt = &receipt;
    rpc_reply(c->call, &reply.base);
}

static void run_start(struct command *c)
{
    start_or_restore(c, false);
}

static void run_restore(struct command *c)
{
    start_or_restore(c, true);
}

static void run_kill(struct command *c)
{
    const Cube__Node__V1__KillRequest *in = (Cube__Node__V1__KillRequest *)c->in;
    struct err e = {0};
    Cube__Node__V1__KillReply reply = CUBE__NODE__V1__KILL_REPLY__INIT;
    bool existed = false;
    if (!id_sandbox_valid(in->sandbox_id, strlen(in->sandbox_id)))
        err_set(&e, ERR_INVALID, "the command names no valid sandbox ID");
    else if (sandbox_kill(c->node, in->sandbox_id, in->gen, in->reason, &existed, &e) == 0)
        e.code = ERR_OK;
    if (e.code) {
        rpc_fail(c->call, &e);
        return;
    }
    struct sandbox *sb = sandbox_find(c->node, in->sandbox_id);
    if (sb)
        sb->settled = true;
    reply.existed = existed;
    rpc_reply(c->call, &reply.base);
}

static void run_pause(struct command *c)
{
    struct err e = {0};
    char id[64];
    Cube__Node__V1__PauseReply reply = CUBE__NODE__V1__PAUSE_REPLY__INIT;
    if (sandbox_pause(c->node, (Cube__Node__V1__PauseRequest *)c->in, &reply, id, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    reply.snapshot_id = id;
    rpc_reply(c->call, &reply.base);
}

static void run_snapshot(struct command *c)
{
    struct err e = {0};
    char id[64];
    Cube__Node__V1__SnapshotReply reply = CUBE__NODE__V1__SNAPSHOT_REPLY__INIT;
    if (sandbox_snapshot(c->node, (Cube__Node__V1__SnapshotRequest *)c->in, id, &reply.frozen_us, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    reply.snapshot_id = id;
    rpc_reply(c->call, &reply.base);
}

static void run_delete_snapshot(struct command *c)
{
    const Cube__Node__V1__DeleteSnapshotRequest *in = (Cube__Node__V1__DeleteSnapshotRequest *)c->in;
    struct err e = {0};
    Cube__Node__V1__KillReply reply = CUBE__NODE__V1__KILL_REPLY__INIT;
    bool existed = false;
    if (snapshot_delete(c->node, in->snapshot_id, &existed, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    reply.existed = existed;
    rpc_reply(c->call, &reply.base);
}

/* The running sandbox that a command means, with the right generation. */
static struct sandbox *find_for(struct node *n, const char *id, uint64_t gen, struct err *e)
{
    struct sandbox *sb = sandbox_find(n, id);
    if (!sb || sandbox_is_over(sb)) {
        err_set(e, ERR_NOT_FOUND, "no sandbox %s on this node", id);
        return NULL;
    }
    if (gen && gen != sb->gen) {
        sandbox_stale(sb, gen, e);
        return NULL;
    }
    return sb;
}

/* Rules that cannot be set leave the old ones, in the programs and in what the node remembers. */
static int set_network(struct node *n, struct sandbox *sb, const Cube__Node__V1__UpdateRequest *in,
                       struct err *e)
{
    Cube__V1__SandboxSpec *spec = sb->spec;
    char *old = spec->network_json;
    bool denied = spec->deny_internet;
    /* protobuf-c shares one empty string for what is absent */
    spec->network_json = *in->network_json ? strdup(in->network_json) : (char *)protobuf_c_empty_string;
    if (!spec->network_json)
        abort();
    spec->deny_internet = in->deny_internet;
    int rc = network_update(n, sb, e);
    char *gone = rc < 0 ? spec->network_json : old;
    if (rc < 0) {
        spec->network_json = old;
        spec->deny_internet = denied;
    }
    if (gone && *gone)
        free(gone);
    return rc;
}

static void run_update(struct command *c)
{
    const Cube__Node__V1__UpdateRequest *in = (Cube__Node__V1__UpdateRequest *)c->in;
    struct err e = {0};
    struct sandbox *sb = find_for(c->node, in->sandbox_id, in->gen, &e);
    if (!sb) {
        rpc_fail(c->call, &e);
        return;
    }
    if (in->has_network && set_network(c->node, sb, in, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    if (sb->state == SB_STATE(RUNNING))
        sandbox_set_deadline(sb, in->remaining_ms);
    if (in->has_auto_pause) {
        sb->spec->auto_pause = in->auto_pause;
        sb->spec->auto_pause_memory = in->auto_pause_memory;
    }
    if (sandbox_save(sb, false, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    sb->changed = true; /* goes out with the next report */
    Cube__Node__V1__UpdateReply reply = CUBE__NODE__V1__UPDATE_REPLY__INIT;
    reply.gen = sb->gen;
    rpc_reply(c->call, &reply.base);
}

static void run_list(struct command *c)
{
    Cube__Node__V1__ListReply reply = CUBE__NODE__V1__LIST_REPLY__INIT;
    report_sandboxes(c->node, false, &reply.n_sandboxes, &reply.sandboxes);
    rpc_reply(c->call, &reply.base);
    report_sandboxes_free(reply.n_sandboxes, reply.sandboxes);
}

static void run_read_log(struct command *c)
{
    const Cube__Master__V1__ReadLogRequest *in = (Cube__Master__V1__ReadLogRequest *)c->in;
    struct err e = {0};
    struct sandbox *sb =
        sandbox_find(c->node, in->sandbox_id); /* also of one that is over, as long as it is known */
    Cube__Master__V1__ReadLogReply reply;
    if (!sb)
        err_set(&e, ERR_NOT_FOUND, "no sandbox %s on this node", in->sandbox_id);
    if (!sb || eventlog_read(sb->log, in, &reply, &e) < 0) {
        rpc_fail(c->call, &e);
        return;
    }
    rpc_reply(c->call, &reply.base);
    eventlog_reply_free(&reply);
}

static void run_metrics(struct command *c)
{
    const Cube__Master__V1__MetricsRequest *in = (Cube__Master__V1__MetricsRequest *)c->in;
    Cube__Master__V1__MetricsReply reply = CUBE__MASTER__V1__METRICS_REPLY__INIT;
    int64_t now = clock_realtime_ms();
    bool latest = !in->start_ms && !in->end_ms && in->n_sandbox_ids > 1;
    /* First ask the guests, which lets other fibers run; then collect, which lends what they could free. */
    for (size_t i = 0; i < in->n_sandbox_ids; i++) {
        struct sandbox *sb = sandbox_find(c->node, in->sandbox_ids[i]);
        if (sb && (!in->end_ms || in->end_ms >= now - FRESH_MS) && samples_age_ms(sb) > FRESH_MS)
            samples_take(sb, NULL);
    }
    for (size_t i = 0; i < in->n_sandbox_ids; i++) {
        struct sandbox *sb = sandbox_find(c->node, in->sandbox_ids[i]);
        if (sb)
            samples_fill(sb, in->start_ms, in->end_ms, latest, &reply);
    }
    rpc_reply(c->call, &reply.base);
    free(reply.points);
}

static void run_network(struct command *c)
{
    const Cube__Master__V1__NetworkRequest *in = (Cube__Master__V1__NetworkRequest *)c->in;
    Cube__Master__V1__NetworkReply reply = CUBE__MASTER__V1__NETWORK_REPLY__INIT;
    struct err e = {0};
    struct sandbox *sb = find_for(c->node, in->sandbox_id, 0, &e);
    if (!sb) {
        rpc_fail(c->call, &e);
        return;
    }
    network_reply(sb, &reply);
    rpc_reply(c->call, &reply.base);
    network_reply_free(&reply);
}

#define METHOD(name)                                                                                         \
    static void on_##name(struct rpc_call *call, const ProtobufCMessage *in, void *service)                  \
    {                                                                                                        \
        begin(call, in, service, run_##name);                                                                \
    }
METHOD(start)
METHOD(restore)
METHOD(kill)
METHOD(pause)
METHOD(snapshot)
METHOD(delete_snapshot)
METHOD(update)
METHOD(list)
METHOD(read_log)
METHOD(metrics)
METHOD(network)

#define NODE(name) &cube__node__v1__##name##__descriptor
#define MASTER(name) &cube__master__v1__##name##__descriptor
#define PATH(name) "/cube.node.v1.Sandboxes/" name
static const struct rpc_method methods[] = {
    {.path = PATH("Start"),
     .in = NODE(start_request),
     .out = NODE(start_reply),
     .roles = CALLERS,
     .start = on_start},
    {.path = PATH("Restore"),
     .in = NODE(start_request),
     .out = NODE(start_reply),
     .roles = CALLERS,
     .start = on_restore},
    {.path = PATH("Pause"),
     .in = NODE(pause_request),
     .out = NODE(pause_reply),
     .roles = CALLERS,
     .start = on_pause},
    {.path = PATH("Kill"),
     .in = NODE(kill_request),
     .out = NODE(kill_reply),
     .roles = CALLERS,
     .start = on_kill},
    {.path = PATH("Update"),
     .in = NODE(update_request),
     .out = NODE(update_reply),
     .roles = CALLERS,
     .start = on_update},
    {.path = PATH("Snapshot"),
     .in = NODE(snapshot_request),
     .out = NODE(snapshot_reply),
     .roles = CALLERS,
     .start = on_snapshot},
    {.path = PATH("DeleteSnapshot"),
     .in = NODE(delete_snapshot_request),
     .out = NODE(kill_reply),
     .roles = CALLERS,
     .start = on_delete_snapshot},
    {.path = PATH("List"),
     .in = NODE(list_request),
     .out = NODE(list_reply),
     .roles = CALLERS,
     .start = on_list},
    {.path = PATH("ReadLog"),
     .in = MASTER(read_log_request),
     .out = MASTER(read_log_reply),
     .roles = CALLERS,
     .start = on_read_log},
    {.path = PATH("Network"),
     .in = MASTER(network_request),
     .out = MASTER(network_reply),
     .roles = CALLERS,
     .start = on_network},
    {.path = PATH("Metrics"),
     .in = MASTER(metrics_request),
     .out = MASTER(metrics_reply),
     .roles = CALLERS,
     .start = on_metrics},
    {0},
};

void service_add(struct rpc_server *server, struct node *n)
{
    rpc_server_add(server, methods, n);
}
