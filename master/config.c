/* Owns the configuration keys of cube-master. */
#include "lib/net/config_cluster.h"

#include "master/master.h"

#include <stddef.h>

#define AT(member) offsetof(struct master_config, member)

const struct config_key master_config_keys[] = {
    {"listen", CONFIG_STR, AT(listen), "127.0.0.1:3010", 0, 0, "address of the gRPC services"},
    {"admin_listen", CONFIG_STR, AT(admin_listen), "127.0.0.1:3110", 0, 0,
     "address of /metrics, /healthz and /readyz"},
    {"advertise", CONFIG_STR, AT(advertise), "", 0, 0,
     "address under which others reach the services; empty = listen"},
    CONFIG_CLUSTER_ROWS(AT),
    {"seed_file", CONFIG_STR, AT(seed_file), NULL, 0, 0, "secret seed"},
    {"journal", CONFIG_STR, AT(journal), "${state_dir}/store/catalog.journal", 0, 0,
     "journal of the catalog"},
    {"journal_growth_kib", CONFIG_INT, AT(journal_growth_kib), "1024", 1, 1 << 20,
     "it is rewritten without what was deleted when it has grown by so much, and to twice its size at least"},
    {"report_interval", CONFIG_MS, AT(report_ms), "1s", 100, 60000, "how often nodes report"},
    {"node_stale", CONFIG_MS, AT(node_stale_ms), "10s", 500, 600000,
     "a node without reports for so long gets no sandboxes"},
    {"node_lost", CONFIG_MS, AT(node_lost_ms), "60s", 1000, 3600000,
     "after so long its sandboxes are lost until it returns"},
    {"recover_timeout", CONFIG_MS, AT(recover_ms), "30s", 100, 600000,
     "after a loss of data, how long to wait for known nodes"},
    {"adopt_grace", CONFIG_MS, AT(adopt_grace_ms), "10m", 1000, 86400000,
     "how long a node may hold a sandbox of a team that the catalog does not know"},
    {"node_timeout", CONFIG_MS, AT(node_timeout_ms), "45s", 100, 600000, "for a start or restore on a node"},
    {"overcommit_memory", CONFIG_INT, AT(overcommit_memory), "400", 100, 10000,
     "hard ratio of the guests' memory limits to the node's memory, in percent"},
    {"overcommit_cpu", CONFIG_INT, AT(overcommit_cpu), "800", 100, 100000,
     "ratio of vCPUs to the node's CPUs, in percent"},
    {"initial_memory", CONFIG_INT, AT(initial_memory_pct), "25", 1, 100,
     "share of its limit that a new sandbox is taken to use, in percent, until its node reports"},
    {"weight_template", CONFIG_INT, AT(weights.template_local), "40", 0, 1000,
     "points for a node that holds the template"},
    {"weight_warm", CONFIG_INT, AT(weights.warm), "20", 0, 1000, "points for a ready sandbox of it"},
    {"weight_room", CONFIG_INT, AT(weights.room), "60", 0, 1000,
     "points for an empty node, falling with its free room"},
    {"weight_spread", CONFIG_INT, AT(weights.spread), "30", 0, 1000,
     "points lost by many sandboxes of the same team"},
    {"sample", CONFIG_INT, AT(weights.sample), "48", 0, 100000,
     "how many fitting nodes are compared; 0 = all"},
    {0},
};

int master_config_check(const struct master_config *c, struct err *e)
{
    return config_cell_check("master", c->cell, e);
}
