/* Which remote addresses a sandbox may reach, and at which rate. Order of decision: always-denied ranges,
 * then the sandbox's allow list and the names that DNS handed out, then its deny list, then yes. A session is
 * checked when it opens and again after its sandbox's rules, or the ranges, have changed; in between its
 * packets cost no look-up of either. */
#pragma once

enum { VS_CHECK_OPEN, VS_CHECK_BY_NAME, VS_CHECK_RANGE, VS_CHECK_POLICY };

static __always_inline bool range_denied(__u32 ip)
{
    struct vs_range_key key = {.prefixlen = 32};
    __builtin_memcpy(key.ip, &ip, 4);
    __u8 *opened = bpf_map_lookup_elem(&vs_ranges, &key);
    return opened && !*opened;
}

static __always_inline bool name_allowed(__u32 slot, __u32 ip)
{
    struct vs_name_key key = {.slot = slot, .ip = ip};
    __u64 *until_s = bpf_map_lookup_elem(&vs_names, &key);
    return until_s && *until_s > bpf_ktime_get_ns() / 1000000000ull;
}

/* The rules of a slot as one packet sees them. */
struct rules {
    __u32 policy, epoch, names;
};

static __always_inline struct rules rules_of(const struct vs_config *cfg, __u32 slot)
{
    struct vs_rules_word *w = bpf_map_lookup_elem(&vs_rules, &slot);
    if (!w)
        return (struct rules){0};
    __u64 word = *(volatile __u64 *)&w->word;
    return (struct rules){.policy = (__u32)word,
                          .epoch = (__u32)(word >> 32) + cfg->epoch,
                          .names = *(volatile __u32 *)&w->names};
}

static __always_inline bool policy_lists(void *trie, __u8 list, __u32 ip)
{
    struct vs_policy_key key = {.prefixlen = 40, .list = list};
    __builtin_memcpy(key.ip, &ip, 4);
    return bpf_map_lookup_elem(trie, &key) != NULL;
}

/* Whether an address is open under these rules. `kept` = a session exists that was let in by a name of the
 * same set: it outlives the answer's time. */
static __noinline int rules_check(__u32 slot, __u32 ip, __u32 policy, bool kept)
{
    if (range_denied(ip))
        return VS_CHECK_RANGE;
    void *trie = policy ? bpf_map_lookup_elem(&vs_policies, &policy) : NULL;
    if (!policy || (trie && policy_lists(trie, VS_LIST_ALLOW, ip)))
        return VS_CHECK_OPEN;
    if (!trie)
        return VS_CHECK_POLICY; /* rules without their table: never more than they say */
    if (!policy_lists(trie, VS_LIST_DENY, ip))
        return VS_CHECK_OPEN;
    return kept || name_allowed(slot, ip) ? VS_CHECK_BY_NAME : VS_CHECK_POLICY;
}

/* Token bucket in bytes; the caller's packet passes when its bytes are there. */
static __always_inline bool bucket_take(__u32 slot, bool up, __u32 bytes)
{
    struct vs_buckets *b = bpf_map_lookup_elem(&vs_buckets, &slot);
    if (!b)
        return true;
    struct vs_bucket *k = up ? &b->up : &b->down;
    if (k->rate == 0)
        return true;
    __u64 now = bpf_ktime_get_ns();
    bool pass = false;
    bpf_spin_lock(&b->lock);
    __u64 waited = now > k->last_ns ? now - k->last_ns : 0;
    if (waited > 1000000000ull)
        waited = 1000000000ull; /* a second fills the bucket's share; keeps the product below 2^64 for rates
                                   under 18 GB/s */
    __s64 tokens = k->tokens + (__s64)(waited * k->rate / 1000000000ull);
    if (now > k->last_ns)
        k->last_ns = now;
    if (tokens > (__s64)k->burst)
        tokens = (__s64)k->burst;
    if (tokens >= (__s64)bytes) {
        tokens -= bytes;
        pass = true;
    }
    k->tokens = tokens;
    bpf_spin_unlock(&b->lock);
    return pass;
}
