/* Owns the configuration keys of cube-master. */
#include "lib/net/config.h"

#include "master/master.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct master_config, member)

static const struct config_key keys[] = {
    {"listen", CONFIG_STR, AT(listen), "127.0.0.1:3010", 0, 0, "address of the gRPC services"},
    {"admin_listen", CONFIG_STR, AT(admin_listen), "127.0.0.1:3110", 0, 0, "address of /metrics, /healthz and /readyz"},
    {"redis", CONFIG_STR, AT(redis), "127.0.0.1:6379", 0, 0, "host:port, unix:/path or sentinel:NAME@host:port,…"},
    {"redis_user", CONFIG_STR, AT(redis_user), "", 0, 0, "ACL user of Redis"},
    {"redis_password_file", CONFIG_STR, AT(redis_password_file), "", 0, 0, "file with the password of Redis"},
    {"state_dir", CONFIG_STR, AT(state_dir), "/var/lib/cube", 0, 0, "durable state"},
    {"key_dir", CONFIG_STR, AT(key_dir), "", 0, 0, "role keys; default <state_dir>/keys"},
    {"seed_file", CONFIG_STR, AT(seed_file), "", 0, 0, "secret seed; default <key_dir>/seed"},
    {"journal", CONFIG_STR, AT(journal), "", 0, 0, "journal of the catalog; default <state_dir>/store/catalog.journal"},
    {"ca", CONFIG_STR, AT(ca), "", 0, 0, "CA of the cluster (PEM); with cert and key mTLS is used"},
    {"cert", CONFIG_STR, AT(cert), "", 0, 0, "certificate (PEM)"},
    {"key", CONFIG_STR, AT(key), "", 0, 0, "its key (PEM)"},
    {"log_level", CONFIG_STR, AT(log_level), "info", 0, 0, "debug, info, warn or error"},
    {"cell", CONFIG_STR, AT(cell), "0", 0, 0, "character of this cell: one of 0-9a-z"},
    {"report_interval", CONFIG_MS, AT(report_ms), "1s", 100, 60000, "how often nodes report"},
    {"node_stale", CONFIG_MS, AT(node_stale_ms), "10s", 500, 600000, "a node without reports for so long gets no sandboxes"},
    {"node_lost", CONFIG_MS, AT(node_lost_ms), "60s", 1000, 3600000, "after so long its sandboxes are lost until it returns"},
    {"recover_timeout", CONFIG_MS, AT(recover_ms), "30s", 100, 600000, "after a loss of data, how long to wait for known nodes"},
    {"node_timeout", CONFIG_MS, AT(node_timeout_ms), "45s", 100, 600000, "for a start or restore on a node"},
    {"overcommit_memory", CONFIG_INT, AT(overcommit_memory), "400", 100, 10000,
     "hard ratio of the guests' memory limits to the node's memory, in percent"},
    {"overcommit_cpu", CONFIG_INT, AT(overcommit_cpu), "800", 100, 100000, "ratio of vCPUs to the node's CPUs, in percent"},
    {"initial_memory", CONFIG_INT, AT(initial_memory_pct), "25", 1, 100,
     "share of its limit that a new sandbox is taken to use, in percent, until its node reports"},
    {"weight_template", CONFIG_INT, AT(weights.template_local), "40", 0, 1000, "points for a node that holds the template"},
    {"weight_warm", CONFIG_INT, AT(weights.warm), "20", 0, 1000, "points for a ready sandbox of it"},
    {"weight_room", CONFIG_INT, AT(weights.room), "60", 0, 1000, "points for an empty node, falling with its free room"},
    {"weight_spread", CONFIG_INT, AT(weights.spread), "30", 0, 1000, "points lost by many sandboxes of the same team"},
    {"sample", CONFIG_INT, AT(weights.sample), "48", 0, 100000, "how many fitting nodes are compared; 0 = all"},
    {0},
};

int master_config_load(const char *path, struct master_config *out, struct err *e)
{
    if (config_load(path, "master", keys, out, e) < 0)
        return -1;
    static char key_dir[512], seed[512], journal[512];
    if (!*out->key_dir) {
        snprintf(key_dir, sizeof key_dir, "%s/keys", out->state_dir);
        out->key_dir = key_dir;
    }
    if (!*out->seed_file) {
        snprintf(seed, sizeof seed, "%s/seed", out->key_dir);
        out->seed_file = seed;
    }
    if (!*out->journal) {
        snprintf(journal, sizeof journal, "%s/store/catalog.journal", out->state_dir);
        out->journal = journal;
    }
    if (strlen(out->cell) != 1 || !strchr("0123456789abcdefghijklmnopqrstuvwxyz", *out->cell))
        return err_set(e, ERR_INVALID, "master.cell must be one of 0-9a-z, not \"%s\"", out->cell);
    return 0;
}

void master_config_usage(void)
{
    config_usage("master", keys);
}
