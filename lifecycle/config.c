/* Owns the configuration keys of cube-lifecycle. */
#include "lib/net/config.h"

#include "lifecycle/lifecycle.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct lifecycle_config, member)

static const struct config_key keys[] = {
    {"listen", CONFIG_STR, AT(listen), "127.0.0.1:3030", 0, 0, "address of the gRPC service Wake"},
    {"admin_listen", CONFIG_STR, AT(admin_listen), "127.0.0.1:3130", 0, 0, "address of /metrics, /healthz and /readyz"},
    {"master", CONFIG_STR, AT(master), "discover", 0, 0, "addresses of masters, or \"discover\" to find them in Redis"},
    {"redis", CONFIG_STR, AT(redis), "127.0.0.1:6379", 0, 0, "host:port, unix:/path or sentinel:NAME@host:port,…"},
    {"redis_user", CONFIG_STR, AT(redis_user), "", 0, 0, "ACL user of Redis"},
    {"redis_password_file", CONFIG_STR, AT(redis_password_file), "", 0, 0, "file with the password of Redis"},
    {"state_dir", CONFIG_STR, AT(state_dir), "/var/lib/cube", 0, 0, "durable state"},
    {"key_dir", CONFIG_STR, AT(key_dir), "", 0, 0, "role keys; default <state_dir>/keys"},
    {"ca", CONFIG_STR, AT(ca), "", 0, 0, "CA of the cluster (PEM); with cert and key mTLS is used"},
    {"cert", CONFIG_STR, AT(cert), "", 0, 0, "certificate (PEM)"},
    {"key", CONFIG_STR, AT(key), "", 0, 0, "its key (PEM)"},
    {"log_level", CONFIG_STR, AT(log_level), "info", 0, 0, "debug, info, warn or error"},
    {"cell", CONFIG_STR, AT(cell), "0", 0, 0, "character of this cell: one of 0-9a-z"},
    {"tick", CONFIG_MS, AT(tick_ms), "50ms", 5, 10000, "how often deadlines are looked for"},
    {"claim_ttl", CONFIG_MS, AT(claim_ttl_ms), "3s", 1000, 60000, "how long a dead instance keeps its share of the deadlines"},
    {"due_batch", CONFIG_INT, AT(due_batch), "256", 1, 10000, "deadlines taken at once per shard"},
    {"pauses_at_once", CONFIG_INT, AT(pauses_at_once), "32", 1, 10000, "pauses in flight"},
    {"wakes_at_once", CONFIG_INT, AT(wakes_at_once), "256", 1, 100000, "wakes in flight; more wait in order"},
    {0},
};

int lifecycle_config_load(const char *path, struct lifecycle_config *out, struct err *e)
{
    static char key_dir[512];
    if (config_load(path, "lifecycle", keys, out, e) < 0)
        return -1;
    if (!*out->key_dir) {
        snprintf(key_dir, sizeof key_dir, "%s/keys", out->state_dir);
        out->key_dir = key_dir;
    }
    if (strlen(out->cell) != 1 || !strchr("0123456789abcdefghijklmnopqrstuvwxyz", *out->cell))
        return err_set(e, ERR_INVALID, "lifecycle.cell must be one of 0-9a-z, not \"%s\"", out->cell);
    return 0;
}

void lifecycle_config_usage(void)
{
    config_usage("lifecycle", keys);
}
