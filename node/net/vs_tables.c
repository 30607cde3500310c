/* Owns the tables that rules are kept in. Putting a table into the map of maps waits for an RCU grace period,
 * tens of milliseconds on a busy host, so tables are made ahead of need and used again. Invariants: a table
 * is changed only while no slot names it and no packet can still be reading it; each is pinned as
 * policy-<id>, for the next process (finding a map by its number would need CAP_SYS_ADMIN). */
#include "lib/base/cleanup.h"
#include "node/net/cubevs.skel.h"
#include "node/net/vs_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SPARE_WANTED 16
#define MADE_AT_ONCE 4         /* each waits for a grace period */
#define REST_S 2               /* the programs read a table for microseconds */
#define REUSE_ENTRIES_MAX 4096 /* emptying a larger one would take longer than making another */
#define TABLE_ENTRIES (1 << 18)

static int64_t now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static void pin_path(const struct vs *v, uint32_t id, char out[300])
{
    snprintf(out, 300, "%s/policy-%u", v->pin_dir, id);
}

static struct vs_table *table_at(struct vs *v, uint32_t id)
{
    if (id == 0 || id > VS_MAX_SANDBOXES)
        return NULL;
    if (id > v->n_tables) {
        struct vs_table *t = realloc(v->tables, id * sizeof *t);
        if (!t)
            return NULL;
        memset(t + v->n_tables, 0, (id - v->n_tables) * sizeof *t);
        v->tables = t;
        v->n_tables = id;
    }
    return &v->tables[id - 1];
}

/* Makes one table under the first free number; the caller's is the descriptor. */
static int table_make(struct vs *v, uint32_t *id, int *out, struct err *e)
{
    char path[300];
    LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_NO_PREALLOC);
    _cleanup_close_ int fd = bpf_map_create(BPF_MAP_TYPE_LPM_TRIE, "vs_policy", sizeof(struct vs_policy_key),
                                            1, TABLE_ENTRIES, &opts);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "making a table of network rules");
    for (uint32_t n = 1; n <= VS_MAX_SANDBOXES; n++) {
        struct vs_table *t = table_at(v, n);
        if (!t)
            return err_set(e, ERR_INTERNAL, "out of memory");
        if (t->state != VS_TABLE_NONE)
            continue;
        pin_path(v, n, path);
        unlink(path);
        if (bpf_map_update_elem(bpf_map__fd(v->skel->maps.vs_policies), &n, &fd, BPF_ANY) < 0 ||
            bpf_obj_pin(fd, path) < 0)
            return err_sys(e, ERR_INTERNAL, "making a table of network rules");
        *id = n;
        *out = fd_steal(&fd);
        return 0;
    }
    return err_set(e, ERR_CAPACITY, "this node has no more tables of network rules");
}

int vs_table_take(struct vs *v, uint32_t *id, int *fd, struct err *e)
{
    char path[300];
    for (uint32_t i = 1; i <= v->n_tables; i++) {
        if (v->tables[i - 1].state != VS_TABLE_SPARE)
            continue;
        pin_path(v, i, path);
        *fd = bpf_obj_get(path);
        if (*fd < 0)
            return err_sys(e, ERR_INTERNAL, "opening %s", path);
        *id = i;
        v->tables[i - 1].state = VS_TABLE_USED;
        return 0;
    }
    if (table_make(v, id, fd, e) < 0)
        return -1;
    v->tables[*id - 1].state = VS_TABLE_USED;
    return 0;
}

void vs_table_filled(struct vs *v, uint32_t id, uint32_t entries)
{
    v->tables[id - 1].entries = entries;
}

void vs_table_rest(struct vs *v, uint32_t id)
{
    struct vs_table *t = table_at(v, id);
    if (!t)
        return;
    t->state = VS_TABLE_RESTING;
    t->since_s = now_s();
}

static bool empty(int fd)
{
    struct vs_policy_key key;
    while (bpf_map_get_next_key(fd, NULL, &key) == 0)
        if (bpf_map_delete_elem(fd, &key) < 0)
            return false;
    return errno == ENOENT;
}

static void drop_table(struct vs *v, uint32_t id)
{
    char path[300];
    pin_path(v, id, path);
    unlink(path);
    bpf_map_delete_elem(bpf_map__fd(v->skel->maps.vs_policies), &id);
    v->tables[id - 1] = (struct vs_table){0};
}

void vs_tables_tend(struct vs *v)
{
    uint32_t spare = 0, id;
    char path[300];
    for (uint32_t i = 1; i <= v->n_tables; i++) {
        struct vs_table *t = &v->tables[i - 1];
        spare += t->state == VS_TABLE_SPARE;
        if (t->state != VS_TABLE_RESTING || now_s() - t->since_s < REST_S)
            continue;
        pin_path(v, i, path);
        _cleanup_close_ int fd = bpf_obj_get(path);
        if (fd < 0 || t->entries > REUSE_ENTRIES_MAX || !empty(fd)) {
            drop_table(v, i);
            continue;
        }
        t->state = VS_TABLE_SPARE;
        t->entries = 0;
        spare++;
    }
    for (uint32_t made = 0; spare < SPARE_WANTED && made < MADE_AT_ONCE; spare++, made++) {
        int fd;
        if (table_make(v, &id, &fd, NULL) < 0)
            return;
        close(fd);
        v->tables[id - 1].state = VS_TABLE_SPARE;
    }
}

/* What a former process made: used when a slot's rules name it, else to be emptied first. */
static int find_tables(struct vs *v, struct err *e)
{
    _cleanup_closedir_ DIR *d = opendir(v->pin_dir);
    if (!d)
        return err_sys(e, ERR_INTERNAL, "reading %s", v->pin_dir);
    for (struct dirent *x; (x = readdir(d));) {
        unsigned id;
        if (sscanf(x->d_name, "policy-%u", &id) == 1 && table_at(v, id)) {
            vs_table_rest(v, id);
            v->tables[id - 1].entries = UINT32_MAX;
        }
    }
    for (uint32_t slot = 0; slot < VS_MAX_SANDBOXES; slot++) {
        uint32_t id = (uint32_t)v->rules[slot].word;
        struct vs_table *t = id ? table_at(v, id) : NULL;
        if (t)
            t->state = VS_TABLE_USED;
    }
    return 0;
}

int vs_tables_open(struct vs *v, struct err *e)
{
    void *p = mmap(NULL, VS_MAX_SANDBOXES * sizeof *v->rules, PROT_READ | PROT_WRITE, MAP_SHARED,
                   bpf_map__fd(v->skel->maps.vs_rules), 0);
    if (p == MAP_FAILED)
        return err_sys(e, ERR_INTERNAL, "mapping the rules of slots");
    v->rules = p;
    return find_tables(v, e);
}

void vs_tables_close(struct vs *v)
{
    if (v->rules)
        munmap(v->rules, VS_MAX_SANDBOXES * sizeof *v->rules);
    free(v->tables);
}
