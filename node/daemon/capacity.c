/* Owns the view of the host's resources. Invariant: a start is admitted only when the memory that clones of
 * this node have been seen to need is available besides the reserve, however much the masters think is free.
 */
#include "node/daemon/capacity.h"

#include "lib/base/cleanup.h"
#include "node/daemon/pool.h"
#include "node/daemon/sandbox.h"

#include <fcntl.h>
#include <string.h>

#define START_MIB 32 /* the least that a master reserves for a sandbox (DESIGN.md §4) */

struct memory {
    uint64_t total_mib, available_mib;
};

static struct memory memory_read(void)
{
    struct memory m = {0};
    char text[512];
    _cleanup_close_ int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return m;
    text[n] = 0;
    unsigned long long kib;
    const char *p = strstr(text, "MemTotal:");
    if (p && sscanf(p, "MemTotal: %llu", &kib) == 1)
        m.total_mib = kib >> 10;
    p = strstr(text, "MemAvailable:");
    if (p && sscanf(p, "MemAvailable: %llu", &kib) == 1)
        m.available_mib = kib >> 10;
    return m;
}

struct tally {
    unsigned live, starting;
    uint64_t used_mib;
    uint32_t cpu_milli;
};

static void count(struct sandbox *sb, void *data)
{
    struct tally *t = data;
    if (!sandbox_is_live(sb))
        return;
    t->live++;
    t->starting += sb->state == SB_STATE(CREATING) || sb->state == SB_STATE(RESUMING);
    t->used_mib += sb->rss_mib > START_MIB ? sb->rss_mib : START_MIB;
    t->cpu_milli += sb->cpu_milli;
}

bool capacity_pressure(struct node *n)
{
    return memory_read().available_mib < (uint64_t)n->cfg.memory_reserve_mib;
}

int capacity_admit(struct node *n, const struct sandbox *sb, struct err *e)
{
    if (!n->ready || n->stopping)
        return err_set(e, ERR_UNAVAILABLE, "node %s is %s", n->cfg.id,
                       n->stopping ? "stopping" : "still starting");
    struct tally t = {0};
    sandbox_each(n, count, &t);
    if (t.live >= (uint64_t)n->cfg.max_sandboxes && !(sb && sandbox_is_live(sb)))
        return err_set(e, ERR_CAPACITY, "node %s already holds %u sandboxes, its limit (node.max_sandboxes)",
                       n->cfg.id, t.live);
    struct memory m = memory_read();
    uint64_t need = (uint64_t)n->cfg.memory_reserve_mib + (t.starting + 1) * START_MIB;
    if (m.available_mib < need)
        return err_set(e, ERR_CAPACITY, "memory of node %s: %llu MiB available, %llu needed with the reserve",
                       n->cfg.id, (unsigned long long)m.available_mib, (unsigned long long)need);
    uint64_t free_bytes, total;
    if (store_space(&n->store, &free_bytes, &total, e) < 0)
        return -1;
    if (free_bytes >> 20 < (uint64_t)n->cfg.disk_reserve_mib)
        return err_set(e, ERR_STORAGE_FULL, "disk of node %s: %llu MiB free, the reserve is %lld", n->cfg.id,
                       (unsigned long long)(free_bytes >> 20), (long long)n->cfg.disk_reserve_mib);
    return 0;
}

void capacity_fill(struct node *n, Cube__Master__V1__Capacity *out)
{
    struct tally t = {0};
    sandbox_each(n, count, &t);
    struct memory m = memory_read();
    uint64_t free_bytes = 0, total = 0;
    store_space(&n->store, &free_bytes, &total, NULL);
    cube__master__v1__capacity__init(out);
    out->cpu_milli = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) * 1000;
    uint64_t reserve = (uint64_t)n->cfg.memory_reserve_mib;
    out->memory_mib = n->cfg.memory_mib > 0   ? (uint64_t)n->cfg.memory_mib
                      : m.total_mib > reserve ? m.total_mib - reserve
                                              : 0;
    out->disk_mib = total >> 20;
    out->max_sandboxes = (uint32_t)n->cfg.max_sandboxes;
    out->memory_used_mib = t.used_mib;
    out->sandboxes = t.live;
    out->warm = n->pool ? pool_size(n->pool) : 0;
    out->cpu_used_milli = t.cpu_milli;
}
