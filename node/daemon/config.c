/* Owns the keys of the section "node". Invariant: every path that depends on another key is filled here, once. */
#include "node/daemon/node.h"

#include "lib/net/config.h"
#include "lib/net/crypto.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KEY(name, type, fallback, help) {#name, CONFIG_##type, offsetof(struct node_config, name), fallback, 0, 0, help}
#define NUM(name, type, fallback, min, max, help)                                                            \
    {#name, CONFIG_##type, offsetof(struct node_config, name), fallback, min, max, help}

static const struct config_key keys[] = {
    KEY(id, STR, "", "name of this node in the cluster; empty = the host's name"),
    KEY(listen, STR, "127.0.0.1:3040", "address of the gRPC service"),
    KEY(advertise, STR, "", "address under which masters reach the service; empty = listen"),
    KEY(admin_listen, STR, "127.0.0.1:3140", "address of /metrics, /healthz, /readyz; empty = none"),
    KEY(master, STR, "127.0.0.1:3010", "addresses of masters, separated by commas"),
    KEY(relay_address, STR, "127.0.0.1:3041", "where this node's relay is reached by proxies"),
    KEY(labels, STR, "", "k=v pairs for the scheduler, separated by commas"),
    KEY(state_dir, STR, "/var/lib/cube", "state that outlives a restart of the host"),
    KEY(run_dir, STR, "/run/cube", "sockets and tickets; on a tmpfs"),
    KEY(key_dir, STR, "", "keys of roles; empty = <state_dir>/keys"),
    KEY(store_dir, STR, "", "templates and snapshots; empty = <state_dir>/store"),
    KEY(jailer_socket, STR, "", "cube-jailer's socket; empty = <run_dir>/jailer.sock"),
    KEY(log_level, STR, "info", "debug, info, warn or error"),
    NUM(relay_gid, INT, "59003", -1, 1 << 30, "group of the relay, which may use the ingress sockets; -1 = leave the group"),
    NUM(vmm_pool, INT, "4", 0, 256, "VM processes kept ready"),
    NUM(ready_pool, INT, "0", 0, 256, "restored sandboxes kept ready per template"),
    NUM(ready_ttl_ms, MS, "60s", 1000, 86400000, "how long a ready sandbox is kept when nobody asks for its template"),
    KEY(snapshots, BOOL, "true", "make and use memory snapshots of templates; false = every sandbox boots"),
    NUM(max_sandboxes, INT, "1000", 1, 100000, "sandboxes on this node, at most"),
    NUM(memory_mib, INT, "0", 0, 1 << 30, "memory for sandboxes; 0 = what the host has, less the reserve"),
    NUM(memory_reserve_mib, INT, "512", 0, 1 << 30, "memory that stays available; below it creates are refused"),
    NUM(disk_reserve_mib, INT, "512", 0, 1 << 30, "disk space that stays free; below it creates are refused"),
    NUM(deadline_grace_ms, MS, "60s", 0, 86400000, "the node acts itself when a deadline is overdue by this much …"),
    NUM(master_grace_ms, MS, "60s", 0, 86400000, "… and no master was heard of for this long"),
    NUM(tombstone_ms, MS, "1h", 10000, 604800000, "how long an ended sandbox is remembered"),
    NUM(report_ms, MS, "2s", 100, 600000, "time between reports when the master does not say"),
    NUM(metrics_ms, MS, "5s", 1000, 3600000, "time between samples of a busy or young sandbox"),
    NUM(boot_timeout_ms, MS, "60s", 1000, 600000, "a guest that boots must answer within this time"),
    NUM(restore_timeout_ms, MS, "15s", 1000, 600000, "a restored guest must answer within this time"),
    {0},
};

void node_config_usage(void)
{
    config_usage("node", keys);
}

static char *or_join(char *given, const char *dir, const char *name)
{
    if (*given)
        return given;
    char *path;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        abort();
    return path;
}

static bool valid_node_id(const char *id)
{
    size_t n = strlen(id);
    return n > 0 && n <= 63 && strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == n;
}

int node_config_load(const char *path, struct node_config *out, struct err *e)
{
    if (config_load(path, "node", keys, out, e) < 0)
        return -1;
    static char host[64];
    if (!*out->id) {
        gethostname(host, sizeof host - 1);
        out->id = host;
    }
    if (!valid_node_id(out->id))
        return err_set(e, ERR_INVALID, "node.id '%s' is no name of at most 63 letters, digits, dots and dashes", out->id);
    if (!*out->advertise)
        out->advertise = out->listen;
    out->key_dir = or_join(out->key_dir, out->state_dir, "keys");
    out->store_dir = or_join(out->store_dir, out->state_dir, "store");
    out->jailer_socket = or_join(out->jailer_socket, out->run_dir, "jailer.sock");
    return 0;
}
