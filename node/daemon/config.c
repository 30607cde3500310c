/* Owns the keys of the section "node". Invariant: what it returns is complete: no other module
 * knows a default. */
#include "node/daemon/node.h"

#include "lib/net/config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AT(name) offsetof(struct node_config, name)

static const struct config_key keys[] = {
    {"id", CONFIG_STR, AT(id), "", 0, 0, "name of this node in the cluster; empty = the host's name"},
    {"listen", CONFIG_STR, AT(listen), "127.0.0.1:3040", 0, 0, "address of the gRPC service"},
    {"advertise", CONFIG_STR, AT(advertise), "", 0, 0,
     "address under which masters reach the service; empty = listen"},
    {"admin_listen", CONFIG_STR, AT(admin_listen), "127.0.0.1:3140", 0, 0,
     "address of /metrics, /healthz, /readyz; empty = none"},
    {"master", CONFIG_STR, AT(master), "127.0.0.1:3010", 0, 0, "addresses of masters, separated by commas"},
    {"relay_address", CONFIG_STR, AT(relay_address), "127.0.0.1:3041", 0, 0,
     "where this node's relay is reached by proxies"},
    {"labels", CONFIG_STR, AT(labels), "", 0, 0, "k=v pairs for the scheduler, separated by commas"},
    {"state_dir", CONFIG_STR, AT(state_dir), NULL, 0, 0, "state that outlives a restart of the host"},
    {"run_dir", CONFIG_STR, AT(run_dir), NULL, 0, 0, "sockets and tickets; on a tmpfs"},
    {"key_dir", CONFIG_STR, AT(key_dir), NULL, 0, 0, "keys of roles"},
    {"store_dir", CONFIG_STR, AT(store_dir), "${state_dir}/store", 0, 0, "templates and snapshots"},
    {"jailer_socket", CONFIG_STR, AT(jailer_socket), "${run_dir}/jailer.sock", 0, 0, "cube-jailer's socket"},
    {"uplink", CONFIG_STR, AT(uplink), "auto", 0, 0,
     "interface to the world; auto = the default route's; none = sandboxes have no network"},
    {"service_net", CONFIG_STR, AT(service_net), "169.254.64.0", 0, 0,
     "a /18 in which sandboxes ask this node's services; unique per node of a host"},
    {"opened_ranges", CONFIG_STR, AT(opened_ranges), "", 0, 0,
     "otherwise denied ranges that sandboxes may reach, quoted: '\"10.1.0.0/16\",\"10.2.0.0/16\"'"},
    {"net_ports", CONFIG_STR, AT(net_ports), "auto", 0, 0,
     "ports of the uplink's address that this node translates with (\"40000-56383\"); auto = 40000-56383, or "
     "a "
     "smaller free range when another node of this host has them"},
    {"max_sessions", CONFIG_INT, AT(max_sessions), "2500", 0, 1 << 20,
     "open connections of one sandbox to the world; 0 = no limit"},
    {"max_new_sessions", CONFIG_INT, AT(max_new_sessions), "500", 0, 1 << 20,
     "new connections per second of one sandbox; 0 = no limit"},
    {"net_up_bytes", CONFIG_SIZE, AT(net_up_bytes), "0", 0, 0,
     "bytes per second out of one sandbox; 0 = no limit"},
    {"net_down_bytes", CONFIG_SIZE, AT(net_down_bytes), "0", 0, 0,
     "bytes per second into one sandbox; 0 = no limit"},
    {"disk_bytes", CONFIG_SIZE, AT(disk_bytes), "0", 0, 0,
     "bytes per second that one sandbox reads and writes of its disk; 0 = no limit"},
    {"disk_ops", CONFIG_INT, AT(disk_ops), "0", 0, 1 << 30,
     "requests per second of one sandbox to its disk; 0 = no limit"},
    {"log_level", CONFIG_STR, AT(log_level), NULL, 0, 0, "debug, info, warn or error"},
    {"relay_gid", CONFIG_INT, AT(relay_gid), "59003", -1, 1 << 30,
     "group of the relay, which may use the ingress sockets; -1 = leave the group"},
    {"vmm_pool", CONFIG_INT, AT(vmm_pool), "4", 0, 256, "VM processes kept ready"},
    {"ready_pool", CONFIG_INT, AT(ready_pool), "0", 0, 256, "restored sandboxes kept ready per template"},
    {"ready_ttl_ms", CONFIG_MS, AT(ready_ttl_ms), "60s", 1000, 86400000,
     "how long a ready sandbox is kept when nobody asks for its template"},
    {"snapshots", CONFIG_BOOL, AT(snapshots), "true", 0, 0,
     "make and use memory snapshots of templates; false = every sandbox boots"},
    {"max_sandboxes", CONFIG_INT, AT(max_sandboxes), "1000", 1, 100000, "sandboxes on this node, at most"},
    {"memory_mib", CONFIG_INT, AT(memory_mib), "0", 0, 1 << 30,
     "memory for sandboxes; 0 = what the host has, less the reserve"},
    {"memory_reserve_mib", CONFIG_INT, AT(memory_reserve_mib), "512", 0, 1 << 30,
     "memory that stays available; below it creates are refused"},
    {"disk_reserve_mib", CONFIG_INT, AT(disk_reserve_mib), "512", 0, 1 << 30,
     "disk space that stays free; below it creates are refused"},
    {"deadline_grace_ms", CONFIG_MS, AT(deadline_grace_ms), "60s", 0, 86400000,
     "the node acts itself when a deadline is overdue by this much …"},
    {"master_grace_ms", CONFIG_MS, AT(master_grace_ms), "60s", 0, 86400000,
     "… and no master was heard of for this long"},
    {"tombstone_ms", CONFIG_MS, AT(tombstone_ms), "1h", 10000, 604800000,
     "how long an ended sandbox is remembered, with its events …"},
    {"tombstones", CONFIG_INT, AT(tombstones), "20000", 100, 10000000,
     "… and how many at most; beyond it the one that ended first is forgotten"},
    {"report_ms", CONFIG_MS, AT(report_ms), "2s", 100, 600000,
     "time between reports when the master does not say"},
    {"metrics_ms", CONFIG_MS, AT(metrics_ms), "5s", 1000, 3600000,
     "time between samples of a busy or young sandbox"},
    {"boot_timeout_ms", CONFIG_MS, AT(boot_timeout_ms), "60s", 1000, 600000,
     "a guest that boots must answer within this time"},
    {"restore_timeout_ms", CONFIG_MS, AT(restore_timeout_ms), "15s", 1000, 600000,
     "a restored guest must answer within this time"},
    {0},
};

void node_config_usage(void)
{
    printf("NAME\n    cube-node - the node daemon: templates, storage, VM processes\n\n"
           "SYNOPSIS\n    cube-node [--config FILE] [--user UID:GID]\n"
           "    cube-node template import --root FILE --kernel FILE --tools FILE --name NAME [OPTIONS]\n"
           "    cube-node template ls | rm ID\n\n"
           "DESCRIPTION\n    Runs sandboxes for the masters of a cluster. It may be killed and restarted at "
           "any time: VM processes go on and\n"
           "    are taken over again. Started as root with --user it gives its directories to that user and "
           "becomes it.\n\n"
           "OPTIONS\n    --config FILE    cube.yaml\n    --user UID:GID   who to become\n    --help, "
           "--version\n\n");
    config_usage("node", keys);
}

static bool valid_node_id(const char *id)
{
    size_t n = strlen(id);
    return n > 0 && n <= 63 &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == n;
}

static int labels_check(const char *text, struct err *e)
{
    unsigned n = 0;
    for (const char *p = text; *(p += strspn(p, ", ")); p += strcspn(p, ", ")) {
        size_t word = strcspn(p, ", "), key = strcspn(p, "=, ");
        if (key == 0 || p[key] != '=' || word > NODE_LABEL_BYTES)
            return err_set(e, ERR_INVALID, "node.labels: '%.*s' is no pair key=value of at most %d bytes",
                           (int)(word < 64 ? word : 64), p, NODE_LABEL_BYTES);
        if (++n > NODE_LABELS)
            return err_set(e, ERR_INVALID, "node.labels: more than %d pairs", NODE_LABELS);
    }
    return 0;
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
        return err_set(e, ERR_INVALID,
                       "node.id '%s' is no name of at most 63 letters, digits, dots and dashes", out->id);
    if (labels_check(out->labels, e) < 0)
        return -1;
    if (!*out->advertise)
        out->advertise = out->listen;
    return 0;
}
