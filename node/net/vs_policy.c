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
#define RANGES_MAX 2048

struct range {
    struct vs_cidr c;
    uint8_t opened;
};

static struct vs_range_key range_key(const struct vs_cidr *c)
{
    struct vs_range_key key = {.prefixlen = c->bits};
    memcpy(key.ip, &c->ip, 4);
    return key;
}

static const struct range *range_find(const struct range *r, size_t n, const struct vs_range_key *key)
{
    for (size_t i = n; i-- > 0;) { /* the last word counts: an exception of the operator for a whole range */
        struct vs_range_key own = range_key(&r[i].c);
        if (memcmp(&own, key, sizeof own) == 0)
            return &r[i];
    }
    return NULL;
}

/* Takes out what is not wanted any longer. */
static int remove_ranges(struct vs *v, const struct range *wanted, size_t n, bool *changed, struct err *e)
{
    struct vs_range_key key, gone[RANGES_MAX], *previous = NULL;
    size_t n_gone = 0;
    uint8_t value;
    while (bpf_map__get_next_key(v->skel->maps.vs_ranges, previous, &key, sizeof key) == 0) {
        previous = &key;
        const struct range *r = range_find(wanted, n, &key);
        bool same =
            bpf_map__lookup_elem(v->skel->maps.vs_ranges, &key, sizeof key, &value, sizeof value, 0) == 0 &&
            r && r->opened == value;
        if (!same && n_gone < RANGES_MAX)
            gone[n_gone++] = key;
    }
    for (size_t i = 0; i < n_gone; i++) {
        const struct range *r = range_find(wanted, n, &gone[i]);
        *changed = true;
        if (r ? bpf_map__update_elem(v->skel->maps.vs_ranges, &gone[i], sizeof gone[i], &r->opened, 1,
                                     BPF_ANY) < 0
              : bpf_map__delete_elem(v->skel->maps.vs_ranges, &gone[i], sizeof gone[i], 0) < 0)
            return err_sys(e, ERR_INTERNAL, "changing a denied range");
    }
    return 0;
}

static int add_ranges(struct vs *v, const struct range *wanted, size_t n, uint8_t opened, bool *changed,
                      struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        struct vs_range_key key = range_key(&wanted[i].c);
        if (wanted[i].opened != opened || range_find(wanted, n, &key) != &wanted[i])
            continue;
        if (bpf_map__update_elem(v->skel->maps.vs_ranges, &key, sizeof key, &opened, 1, BPF_NOEXIST) == 0)
            *changed = true;
        else if (errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "writing a denied range");
    }
    return 0;
}

/* Only what differs is touched, so that a restart with the same ranges changes nothing for any session.
 * Denials are added before exceptions are. */
int vs_set_ranges(struct vs *v, const struct vs_cidr *denied, size_t n_denied, const struct vs_cidr *opened,
                  size_t n_opened, struct err *e)
{
    size_t n = 0, max = vs_always_denied_count + 1 + n_denied + n_opened;
    bool changed = false;
    if (max > RANGES_MAX)
        return err_set(e, ERR_TOO_LARGE, "at most %d denied and opened ranges", RANGES_MAX);
    _cleanup_free_ struct range *wanted = calloc(max, sizeof *wanted);
    if (!wanted)
        return err_set(e, ERR_INTERNAL, "out of memory");
    for (size_t i = 0; i < vs_always_denied_count; i++)
        if (vs_cidr_parse(vs_always_denied[i], &wanted[n++].c, e) < 0)
            return -1;
    wanted[n++].c = (struct vs_cidr){.ip = v->config.uplink_ip, .bits = 32};
    for (size_t i = 0; i < n_denied; i++)
        wanted[n++].c = denied[i];
    for (size_t i = 0; i < n_opened; i++)
        wanted[n++] = (struct range){opened[i], 1};
    if (add_ranges(v, wanted, n, 0, &changed, e) < 0 || remove_ranges(v, wanted, n, &changed, e) < 0 ||
        add_ranges(v, wanted, n, 1, &changed, e) < 0)
        return -1;
    if (!changed)
        return 0;
    v->config.epoch++;
    return vs_config_write(v, e);
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

/* One store makes it so: the programs read policy and epoch together. */
static void publish(struct vs *v, uint32_t slot, uint32_t policy, uint32_t names)
{
    struct vs_rules_word *w = &v->rules[slot];
    uint32_t before = (uint32_t)w->word;
    uint64_t word = ((w->word >> 32) + 1) << 32 | policy;
    __atomic_store_n(&w->names, names, __ATOMIC_RELEASE);
    __atomic_store_n(&w->word, word, __ATOMIC_RELEASE);
    if (before)
        vs_table_rest(v, before);
}

int vs_set_policy(struct vs *v, uint32_t slot, const struct vs_cidr *allow, size_t n_allow,
                  const struct vs_cidr *deny, size_t n_deny, uint32_t names, struct err *e)
{
    uint32_t id;
    if (slot >= VS_MAX_SANDBOXES)
        return err_set(e, ERR_INVALID, "network slot %u is out of range", slot);
    if (n_allow > POLICY_MAX || n_deny > POLICY_MAX)
        return err_set(e, ERR_TOO_LARGE, "a network policy holds at most %d entries per list", POLICY_MAX);
    if (n_allow == 0 && n_deny == 0) {
        publish(v, slot, 0, names);
        return 0;
    }
    _cleanup_close_ int fd = -1;
    if (vs_table_take(v, &id, &fd, e) < 0)
        return err_wrap(e, "the network policy of slot %u", slot);
    vs_table_filled(v, id, (uint32_t)(n_allow + n_deny));
    if (fill(fd, VS_LIST_ALLOW, allow, n_allow, e) < 0 || fill(fd, VS_LIST_DENY, deny, n_deny, e) < 0) {
        vs_table_rest(v, id);
        return -1;
    }
    publish(v, slot, id, names);
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

int vs_forget_name(struct vs *v, uint32_t slot, uint32_t ip)
{
    struct vs_name_key key = {.slot = slot, .ip = ip};
    return bpf_map__delete_elem(v->skel->maps.vs_names, &key, sizeof key, 0);
}

/* Deletes names by `slot`, or, with VS_MAX_SANDBOXES, those whose time is over. */
static void delete_names(struct vs *v, uint32_t slot)
{
    struct vs_name_key key, next;
    uint64_t now = monotonic_s(), until;
    bool more = bpf_map__get_next_key(v->skel->maps.vs_names, NULL, &next, sizeof next) == 0;
    while (more) {
        key = next;
        more = bpf_map__get_next_key(v->skel->maps.vs_names, &key, &next, sizeof next) == 0;
        bool old =
            slot == VS_MAX_SANDBOXES &&
            bpf_map__lookup_elem(v->skel->maps.vs_names, &key, sizeof key, &until, sizeof until, 0) == 0 &&
            until <= now;
        if (old || key.slot == slot)
            bpf_map__delete_elem(v->skel->maps.vs_names, &key, sizeof key, 0);
    }
}

void vs_forget_names(struct vs *v, uint32_t slot)
{
    delete_names(v, slot);
}

void vs_expire_names(struct vs *v)
{
    delete_names(v, VS_MAX_SANDBOXES);
}

void vs_forget_policy(struct vs *v, uint32_t slot)
{
    vs_set_policy(v, slot, NULL, 0, NULL, 0, 0, NULL);
    delete_names(v, slot);
}
