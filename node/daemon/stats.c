/* Owns the metrics of the node. Invariant: each operation is counted once, where it ends. */
#include "node/daemon/stats.h"

#include "lib/net/metrics.h"
#include "node/daemon/master_link.h"
#include "node/daemon/pool.h"
#include "node/daemon/ready.h"
#include "node/daemon/sandbox.h"

#define COUNTER(text, tags, what)                                                                            \
    {                                                                                                        \
        .name = text, .labels = tags, .help = what, .kind = METRIC_COUNTER                                   \
    }
#define GAUGE(text, what)                                                                                    \
    {                                                                                                        \
        .name = text, .help = what, .kind = METRIC_GAUGE                                                     \
    }
#define TIME(text, tags, what)                                                                               \
    {                                                                                                        \
        .name = text, .labels = tags, .help = what, .kind = METRIC_HISTOGRAM                                 \
    }

enum {
    CREATED,
    CREATE_FAILED,
    RESUMED,
    RESUME_FAILED,
    KILLED,
    PAUSED,
    PAUSE_FAILED,
    SNAPSHOTS,
    SNAPSHOT_FAILED,
    LOST,
    CREATE_TIME,
    CREATE_POOL_TIME,
    RESUME_TIME,
    VMM_TIME,
    INIT_TIME,
    FROZEN_TIME,
    DURABLE_TIME,
    SANDBOXES,
    POOL,
    READY,
    LINKED,
    COUNT
};

static struct metric m[COUNT] = {
    [CREATED] = COUNTER("cube_node_starts_total", "kind=\"create\",ok=\"true\"", "starts of sandboxes"),
    [CREATE_FAILED] =
        COUNTER("cube_node_starts_total", "kind=\"create\",ok=\"false\"", "starts of sandboxes"),
    [RESUMED] = COUNTER("cube_node_starts_total", "kind=\"resume\",ok=\"true\"", "starts of sandboxes"),
    [RESUME_FAILED] =
        COUNTER("cube_node_starts_total", "kind=\"resume\",ok=\"false\"", "starts of sandboxes"),
    [KILLED] = COUNTER("cube_node_kills_total", NULL, "sandboxes that were killed"),
    [PAUSED] = COUNTER("cube_node_pauses_total", "ok=\"true\"", "pauses"),
    [PAUSE_FAILED] = COUNTER("cube_node_pauses_total", "ok=\"false\"", "pauses"),
    [SNAPSHOTS] = COUNTER("cube_node_snapshots_total", "ok=\"true\"", "snapshots of running sandboxes"),
    [SNAPSHOT_FAILED] =
        COUNTER("cube_node_snapshots_total", "ok=\"false\"", "snapshots of running sandboxes"),
    [LOST] = COUNTER("cube_node_vm_ends_total", NULL, "VMs that ended without being asked to"),
    [CREATE_TIME] =
        TIME("cube_node_start_seconds", "kind=\"create\",pool=\"false\"", "time of a successful start"),
    [CREATE_POOL_TIME] =
        TIME("cube_node_start_seconds", "kind=\"create\",pool=\"true\"", "time of a successful start"),
    [RESUME_TIME] =
        TIME("cube_node_start_seconds", "kind=\"resume\",pool=\"any\"", "time of a successful start"),
    [VMM_TIME] = TIME("cube_node_vmm_seconds", NULL, "the VMM's part of a successful start"),
    [INIT_TIME] =
        TIME("cube_node_init_seconds", NULL, "the guest's part of a successful start: its identity is set"),
    [FROZEN_TIME] = TIME("cube_node_pause_frozen_seconds", NULL, "from the freeze until memory was written"),
    [DURABLE_TIME] =
        TIME("cube_node_pause_durable_seconds", NULL, "from the freeze until the pause was durable"),
    [SANDBOXES] = GAUGE("cube_node_sandboxes", "sandboxes with a VM"),
    [POOL] = GAUGE("cube_node_pool_vmms", "VM processes that are ready for a guest"),
    [READY] = GAUGE("cube_node_pool_ready", "restored sandboxes without an identity"),
    [LINKED] = GAUGE("cube_node_master_link", "1 while a report stream to a master is open"),
};

void stats_register(void)
{
    for (unsigned i = 0; i < COUNT; i++)
        metric_register(&m[i]);
}

void stats_start(bool restore, bool from_pool, bool ok, int64_t us)
{
    metric_add(&m[restore ? (ok ? RESUMED : RESUME_FAILED) : (ok ? CREATED : CREATE_FAILED)], 1);
    if (ok)
        metric_observe_us(&m[restore ? RESUME_TIME : from_pool ? CREATE_POOL_TIME : CREATE_TIME], us);
}

void stats_start_parts(int64_t vmm_us, int64_t init_us)
{
    metric_observe_us(&m[VMM_TIME], vmm_us);
    metric_observe_us(&m[INIT_TIME], init_us);
}

void stats_kill(void)
{
    metric_add(&m[KILLED], 1);
}

void stats_pause(bool ok, int64_t frozen_us, int64_t durable_us)
{
    metric_add(&m[ok ? PAUSED : PAUSE_FAILED], 1);
    if (!ok)
        return;
    metric_observe_us(&m[FROZEN_TIME], frozen_us);
    metric_observe_us(&m[DURABLE_TIME], durable_us);
}

void stats_snapshot(bool ok)
{
    metric_add(&m[ok ? SNAPSHOTS : SNAPSHOT_FAILED], 1);
}

void stats_lost(void)
{
    metric_add(&m[LOST], 1);
}

void stats_gauges(struct node *n)
{
    metric_set(&m[SANDBOXES], sandbox_live_count(n));
    metric_set(&m[POOL], n->pool ? pool_size(n->pool) : 0);
    metric_set(&m[READY], n->ready_pool ? ready_size(n->ready_pool) : 0);
    metric_set(&m[LINKED], master_link_up(n->link));
}
