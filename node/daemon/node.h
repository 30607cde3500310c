/* What the modules of cube-node share: configuration, and the one `struct node` of the process. */
#pragma once

#include "lib/base/err.h"
#include "lib/net/loop.h"
#include "node/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct node_config {
    char *id, *listen, *admin_listen, *master, *relay_address, *store_dir, *state_dir, *run_dir, *key_dir,
        *log_level;
    char *jailer_socket, *labels, *advertise;
    char *uplink, *service_net, *opened_ranges, *net_ports;
    int64_t max_sessions, max_new_sessions, net_up_bytes, net_down_bytes, disk_bytes, disk_ops;
    int64_t relay_gid;
    int64_t vmm_pool, ready_pool, ready_ttl_ms;
    int64_t max_sandboxes, memory_mib, memory_reserve_mib, disk_reserve_mib;
    int64_t deadline_grace_ms, master_grace_ms, tombstone_ms;
    int64_t tombstones, report_ms, metrics_ms, boot_timeout_ms, restore_timeout_ms;
    bool snapshots;
};

struct node {
    struct node_config cfg;
    struct loop *loop;
    struct store store;
    int sandboxes_fd, vms_fd; /* <state>/sandboxes, <store>/vm */
    int warm_fd, sb_fd;       /* <run>/warm, <run>/sb */
    char boot_id[37];
    struct node_class class; /* kvm_kind is "" until the first VMM said it */
    struct jailer *jailer;
    struct pool *pool;
    struct ready_pool *ready_pool;
    struct sandboxes *sandboxes;
    struct templates *templates;
    struct master_link *link;
    char tap_prefix[8];
    int64_t last_master_ms; /* CLOCK_BOOTTIME of the last sign of a master */
    unsigned starting;      /* starts under way; pools are filled again behind them */
    bool ready;             /* adoption is done; commands are served (service_ready) */
    bool stopping;
};

#define NODE_LABELS 8        /* as many as the scheduler keeps of a node (master/scheduler.h) */
#define NODE_LABEL_BYTES 255 /* of one pair */

/** Loads the section "node" and fills what depends on other keys. */
int node_config_load(const char *path, struct node_config *out, struct err *e);
void node_config_usage(void); /* prints the whole --help */

/** Opens and makes the directories of the node; when `uid` is not negative they are given to it first. */
int node_open(struct node *n, struct err *e);

/** Gives the node's directories to a user and becomes it, keeping only the network capabilities and the
 * relay's group. */
int node_become(const struct node_config *cfg, const char *user /* "UID:GID" */, struct err *e);
