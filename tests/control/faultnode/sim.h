/* Nodes for fault tests (bench/simnode has those for load): the node's gRPC service and its report stream
 * without any VM behind, for tests of the control plane and for benchmarks. What a node does wrong in life
 * (refuse, be late, forget, lie, fall silent) can be ordered over a control socket. */
#pragma once

#include "lib/base/ids.h"
#include "lib/net/fiber.h"
#include "lib/net/rpc.h"
#include "proto/master.pb-c.h"
#include "proto/node.pb-c.h"

#define SIM_BUCKETS 4096

struct sim_sandbox {
    char id[SANDBOX_ID_LEN + 1];
    Cube__V1__SandboxSpec *spec;
    uint64_t gen;
    Cube__V1__SandboxState state;
    int64_t started_ms, end_ms, last_activity_ms;
    char reason[64], snapshot[64], awake[16];
    bool changed, filesystem_only, healthy;
    uint64_t rss_mib;
    uint32_t oom_kills;
    struct sim_sandbox *next;
};

struct sim_node {
    struct sim *sim;
    char id[64], address[64];
    struct rpc_server *server;
    struct rpc_client *master;
    struct rpc_out *report;
    size_t master_at;
    struct sim_sandbox *buckets[SIM_BUCKETS];
    size_t count;
    enum err_code refuse_start, refuse_pause, refuse_restore;
    int64_t start_ms, pause_ms, kill_ms, snapshot_ms, list_ms; /* delays */
    uint64_t older; /* it answers for a generation that is older by so many */
    bool silent, pressure, unfit, registered, full_due;
    uint64_t memory_mib;
    uint32_t cpu_milli, max_sandboxes;
    uint64_t starts, kills, pauses, restores, lists;
    char dropped[16][64]; /* the last snapshots that it was told to delete */
    size_t drops;
    int64_t next_full_ms;
};

struct sim {
    struct loop *loop;
    struct rpc_creds *creds;
    char *masters[16];
    size_t master_count;
    char *templates[64];
    size_t template_count;
    const char *labels; /* "k=v" for all, or NULL */
    struct sim_node *nodes;
    size_t n;
    int64_t report_ms;
};

struct sim_sandbox *sim_find(struct sim_node *n, const char *id);
struct sim_sandbox *sim_add(struct sim_node *n, const char *id);
void sim_remove(struct sim_node *n, struct sim_sandbox *s);

extern const struct rpc_method sim_methods[];
void sim_report_start(struct sim_node *n);
int sim_control_start(struct sim *s, const char *path, struct err *e);
/** A NodeSandbox that points into `s`. */
void sim_message(struct sim_sandbox *s, Cube__Master__V1__NodeSandbox *out);
