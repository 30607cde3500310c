/* Shared by the files of node/net only. */
#pragma once

#include "node/net/vs.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/types.h>
#include <linux/bpf.h>

#include "node/net/vs_abi.h"

#include <stdbool.h>

struct cubevs;

/* One table of rules: an LPM trie that vs_policies holds under `id`. */
struct vs_table {
    enum { VS_TABLE_NONE, VS_TABLE_SPARE, VS_TABLE_USED, VS_TABLE_RESTING } state; /* index: id - 1 */
    int64_t since_s;                                                               /* resting: since when */
    uint32_t entries;
};

struct vs {
    char pin_dir[200];
    struct cubevs *skel;
    struct vs_config config;
    struct vs_rules_word *rules; /* shared with the programs, by slot */
    struct vs_table *tables;     /* owned */
    uint32_t n_tables;
};

int vs_sweep_tap(struct vs *v, unsigned tap_ifindex, uint32_t *removed, uint32_t *left, struct err *e);
void vs_forget_policy(struct vs *v, uint32_t slot);
void vs_expire_names(struct vs *v);
int vs_config_write(struct vs *v, struct err *e);

/* vs_tables.c: the pool of tables. */
int vs_tables_open(struct vs *v, struct err *e);
void vs_tables_close(struct vs *v);
/** An empty table to fill: its id and a descriptor of the caller's. From the pool; when that is empty one is
 * made, which waits for a grace period. */
int vs_table_take(struct vs *v, uint32_t *id, int *fd, struct err *e);
void vs_table_filled(struct vs *v, uint32_t id, uint32_t entries);
/** No slot's rules name it any longer; it is emptied by vs_tables_tend some seconds later, when no packet can
 * be reading it. */
void vs_table_rest(struct vs *v, uint32_t id);
/** Empties what has rested, and fills the pool. */
void vs_tables_tend(struct vs *v);
