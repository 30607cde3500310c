/* Simulated nodes: everything that a master sees of a node, without a VM. For tests and benchmarks of the
 * control plane. */
#pragma once

#include "lib/net/rpc.h"
#include "proto/node.pb-c.h"

#include <stdint.h>

#define SIM_MASTERS 8

/** Operations that can be slowed down or refused. */
enum sim_op { SIM_START, SIM_RESTORE, SIM_PAUSE, SIM_KILL, SIM_UPDATE, SIM_SNAPSHOT, SIM_OPS };

struct sim_fault {
    int64_t delay_ms;
    enum err_code refuse; /* ERR_OK = none */
    int percent;          /* of the calls that `refuse` hits */
};

struct sim_sandbox {
    struct sim_sandbox *hash_next;    /* of the same bucket */
    struct sim_sandbox *next, **link; /* of the same node */
    struct sim_sandbox *changed;      /* waits for the next report */
    bool is_changed;
    struct sim_node *node;
    Cube__V1__SandboxSpec *spec;
    uint64_t gen;
    Cube__V1__SandboxState state;
    int64_t end_ms, started_ms;
    bool filesystem_only;
    char reason[64], snapshot_id[64];
};

struct sim_node {
    struct sim *sim;
    char id[64], address[64];
    struct rpc_server *server;
    struct rpc_client *client;
    struct rpc_out *stream;
    unsigned master;
    bool silent; /* holds its reports back, as a node does that lost its way to the masters */
    bool full_due;
    int64_t last_full_ms;
    struct loop_timer timer;
    struct sim_sandbox *sandboxes, *changed;
    uint64_t memory_taken_mib;
    uint32_t count;
};

struct sim {
    struct loop *loop;
    struct rpc_creds *creds;
    const char *masters[SIM_MASTERS];
    unsigned nmasters;
    const char *prefix, *host, *relay, *envd_version, *kvm_kind;
    char *templates[32];
    size_t ntemplates;
    uint32_t cpu_milli, max_sandboxes;
    uint64_t memory_mib;
    int64_t report_ms;
    struct sim_fault faults[SIM_OPS];
    struct sim_node *nodes;
    unsigned nnodes;
    uint64_t started, killed;
};

/** Sandboxes, by ID, over all nodes of the process (sandboxes.c). */
struct sim_sandbox *sim_find(const char *id);
void sim_serve(struct sim_node *n);
/** The VM of a sandbox ends by itself, as when it crashed. */
void sim_die(const char *id, const char *reason);

/** The link to a master (link.c): registers, opens the report stream, keeps both. */
void sim_link(struct sim_node *n);
void sim_report_soon(struct sim_node *n);

/** Reads control lines from stdin (control.c): "delay OP MS", "refuse OP CODE PERCENT", "die ID", "silence
 * NODE", "speak NODE", "count". */
int sim_control(struct sim *s, struct err *e);
