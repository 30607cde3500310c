/* Owns the configuration keys of cube-lifecycle. */
#include "lib/net/config_cluster.h"

#include "lifecycle/lifecycle.h"

#include <stddef.h>

#define AT(member) offsetof(struct lifecycle_config, member)

const struct config_key lifecycle_config_keys[] = {
    {"listen", CONFIG_STR, AT(listen), "127.0.0.1:3030", 0, 0, "address of the gRPC service Wake"},
    {"admin_listen", CONFIG_STR, AT(admin_listen), "127.0.0.1:3130", 0, 0,
     "address of /metrics, /healthz and /readyz"},
    {"advertise", CONFIG_STR, AT(advertise), "", 0, 0,
     "address under which proxies reach the service; empty = listen"},
    CONFIG_CLUSTER_ROWS(AT),
    {"master", CONFIG_STR, AT(master), "discover", 0, 0,
     "addresses of masters, or \"discover\" to find them in Redis"},
    {"tick", CONFIG_MS, AT(tick_ms), "50ms", 5, 10000, "how often deadlines are looked for"},
    {"claim_ttl", CONFIG_MS, AT(claim_ttl_ms), "3s", 1000, 60000,
     "how long a dead instance keeps its share of the deadlines"},
    {"due_batch", CONFIG_INT, AT(due_batch), "64", 1, 10000, "deadlines taken at once per shard"},
    {"pauses_at_once", CONFIG_INT, AT(pauses_at_once), "32", 1, 10000, "pauses in flight"},
    {"wakes_at_once", CONFIG_INT, AT(wakes_at_once), "256", 1, 100000, "wakes in flight; more wait in order"},
    {0},
};

int lifecycle_config_check(const struct lifecycle_config *c, struct err *e)
{
    return config_cell_check("lifecycle", c->cell, e);
}
