/* Owns what sandboxes may reach: ranges, policies, names, rates. Invariant: a policy is built whole in a map
 * of its own and enters the programs' sight by one update of the outer map, so that no packet meets half of
 * it. */
#include "node/net/vs.h"
#include "lib/base/cleanup.h"
#include "node/net/cubevs.skel.h"
#include "node/net/vs_internal.h"
#include "node/net/vs_ranges.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLICY_MAX 100000 /* entries of one list */
#define BURST_MS 100      /* a bucket holds this much of its rate, at least one GSO packet */
#define BURST_MIN 65536

static int put_range(struct vs *v, const struct vs_cidr *c, uint8_t opened, struct err *e)
{
    struct vs_range_key key = {.prefixlen = c->bits};
    memcpy(key.ip, &c->ip, 4);
    if (bpf_map__update_elem(v->skel->maps.vs_ranges, &key, sizeof key, &opened, sizeof opened, BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "writing a denied range");
    return 0;
}

/* Denied ranges are only added here, and an old exception is closed before anything else: at no moment is
 * more open than the operator asked for. */
int vs_set_ranges(struct vs *v, const struct vs_cidr *denied, size_t n_denied, const struct vs_cidr *opened,
                  size_t n_opened, struct err *e)
{
    struct vs_range_key key, *previous = NULL;
    struct vs_cidr stale[256];
    size_t n = 0;
    uint8_t value;
    while (n < 256 && bpf_map__get_next_key(v->skel->maps.vs_ranges, previous, &key, sizeof key) == 0) {
        previous = &key;
        if (bpf_map__lookup_elem(v->skel->maps.vs_ranges, &key, sizeof key, &value, sizeof value, 0) < 0 ||
            !value)
            continue;
        stale[n].bits = (uint8_t)key.prefixlen;
        memcpy(&stale[n++].ip, key.ip, 4);
    }
    for (size_t i = 0; i < n; i++) {
        struct vs_range_key k = {.prefixlen = stale[i].bits};
        memcpy(k.ip, &stale[i].ip, 4);
        bpf_map__delete_elem(v->skel->maps.vs_ranges, &k, sizeof k, 0);
    }
    struct vs_cidr c;
    for (size_t i = 0; i < vs_always_denied_count; i++)
        if (vs_cidr_parse(vs_always_denied[i], &c, e) < 0 || put_range(v, &c, 0, e) < 0)
            return -1;
    c = (struct vs_cidr){.ip = v->config.uplink_ip, .bits = 32};
    if (put_range(v, &c, 0, e) < 0)
        return -1;
    for (size_t i = 0; i < n_denied; i++)
        if (put_range(v, &denied[i], 0, e) < 0)
            return -1;
    for (size_t i = 0; i < n_opened; i++)
        if (put_range(v, &opened[i], 1, e) < 0)
            return -1;
    return 0;
}

static int fill(int fd, uint8_t list, const struct vs_cidr *c, size_t n, struct err *e)
{
    uint8_t one = 1;
    for (size_t i = 0; i < n; i++) {
        struct vs_policy_key key = {.prefixlen = 8u + c[i].bits, .list = list};
        memcpy(key.ip, &c[i].ip, 4);
        if (bpf_map_update_elem(fd, &key, &one, BPF_ANY) < 0)
            return err_sys(e, ERR_INTERNAL, "writing entry %zu of a network policy", i);
    }
    return 0;
}

int vs_set_policy(struct vs *v, uint32_t slot, const struct vs_cidr *allow, size_t n_allow,
                  const struct vs_cidr *deny, size_t n_deny, struct err *e)
{
    if (n_allow > POLICY_MAX || n_deny > POLICY_MAX)
        return err_set(e, ERR_TOO_LARGE, "a network policy holds at most %d entries per list", POLICY_MAX);
    /* Changing a map of maps waits for an RCU grace period (about 10 ms): a sandbox without rules never pays
     * for one. */
    uint32_t inner;
    bool has_policy = bpf_map_lookup_elem(bpf_map__fd(v->skel->maps.vs_policies), &slot, &inner) == 0;
    if (n_allow == 0 && n_deny == 0) {
        if (has_policy && bpf_map_delete_elem(bpf_map__fd(v->skel->maps.vs_policies), &slot) < 0)
            return err_sys(e, ERR_INTERNAL, "clearing the network policy of slot %u", slot);
        return 0;
    }
    /* The inner map's size is part of what the outer one checks, so all have the same; it costs nothing until
     * it is filled. */
    LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_NO_PREALLOC);
    _cleanup_close_ int fd =
        bpf_map_create(BPF_MAP_TYPE_LPM_TRIE, "vs_policy", sizeof(struct vs_policy_key), 1, 1 << 18, &opts);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "making the network policy of slot %u", slot);
    if (fill(fd, VS_LIST_ALLOW, allow, n_allow, e) < 0 || fill(fd, VS_LIST_DENY, deny, n_deny, e) < 0)
        return -1;
    if (bpf_map_update_elem(bpf_map__fd(v->skel->maps.vs_policies), &slot, &fd, BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "setting the network policy of slot %u", slot);
    return 0;
}

static uint64_t monotonic_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec;
}

int vs_allow_name(struct vs *v, uint32_t slot, uint32_t ip, uint32_t ttl_s, struct err *e)
{
    struct vs_name_key key = {.slot = slot, .ip = ip};
    uint64_t until = monotonic_s() + ttl_s;
    if (bpf_map__update_elem(v->skel->maps.vs_names, &key, sizeof key, &until, sizeof until, BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "opening an address for slot %u", slot);
    return 0;
}

static void fill_bucket(struct vs_bucket *b, uint64_t rate)
{
    uint64_t burst = rate * BURST_MS / 1000;
    *b = (struct vs_bucket){.rate = rate, .burst = burst < BURST_MIN ? BURST_MIN : burst};
    b->tokens = (int64_t)b->burst;
}

int vs_set_rate(struct vs *v, uint32_t slot, uint64_t up_bytes_per_s, uint64_t down_bytes_per_s,
                struct err *e)
{
    struct vs_buckets b = {0};
    fill_bucket(&b.up, up_bytes_per_s);
    fill_bucket(&b.down, down_bytes_per_s);
    if (bpf_map__update_elem(v->skel->maps.vs_buckets, &slot, sizeof slot, &b, sizeof b, BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "setting the rate of slot %u", slot);
    return 0;
}

void vs_forget_policy(struct vs *v, uint32_t slot)
{
    vs_set_policy(v, slot, NULL, 0, NULL, 0, NULL);
    struct vs_name_key key, next;
    bool more = bpf_map__get_next_key(v->skel->maps.vs_names, NULL, &next, sizeof next) == 0;
    while (more) {
        key = next;
        more = bpf_map__get_next_key(v->skel->maps.vs_names, &key, &next, sizeof next) == 0;
        if (key.slot == slot)
            bpf_map__delete_elem(v->skel->maps.vs_names, &key, sizeof key, 0);
    }
}
