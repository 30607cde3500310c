/* Owns the configuration keys of cube-lifecycle. */
#include "lib/net/config.h"

#include "lifecycle/lifecycle.h"

#include <stddef.h>
#include <string.h>

#define AT(member) offsetof(struct lifecycle_config, member)

const struct config_key lifecycle_config_keys[] = {
    {"listen", CONFIG_STR, AT(listen), "127.0.0.1:3030", 0, 0, "address of the gRPC service Wake"},
    {"admin_listen", CONFIG_STR, AT(admin_listen), "127.0.0.1:3130", 0, 0,
     "address of /metrics, /healthz and /readyz"},
    {"master", CONFIG_STR, AT(master), "discover", 0, 0,
     "addresses of masters, or \"discover\" to find them in Redis"},
    {"redis", CONFIG_STR, AT(redis), NULL, 0, 0, "host:port, unix:/path or sentinel:NAME@host:port,…"},
    {"redis_user", CONFIG_STR, AT(redis_user), NULL, 0, 0, "ACL user of Redis"},
    {"redis_password_file", CONFIG_STR, AT(redis_password_file), NULL, 0, 0,
     "file with the password of Redis"},
    {"state_dir", CONFIG_STR, AT(state_dir), NULL, 0, 0, "durable state"},
    {"key_dir", CONFIG_STR, AT(key_dir), NULL, 0, 0, "role keys"},
    {"ca", CONFIG_STR, AT(ca), NULL, 0, 0, "CA of the cluster (PEM); with cert and key mTLS is used"},
    {"cert", CONFIG_STR, AT(cert), NULL, 0, 0, "certificate (PEM)"},
    {"key", CONFIG_STR, AT(key), NULL, 0, 0, "its key (PEM)"},
    {"cell", CONFIG_STR, AT(cell), NULL, 0, 0, "character of this cell: one of 0-9a-z"},
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
    if (strlen(c->cell) != 1 || !strchr("0123456789abcdefghijklmnopqrstuvwxyz", *c->cell))
        return err_set(e, ERR_INVALID, "lifecycle.cell must be one of 0-9a-z, not \"%s\"", c->cell);
    return 0;
}
