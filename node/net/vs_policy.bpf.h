/* Which remote addresses a sandbox may reach, and at which rate. Order of decision: always-denied ranges,
 * then the sandbox's allow list and the names that DNS handed out, then its deny list, then yes. */
#pragma once

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

static __always_inline bool policy_denied(__u32 slot, __u32 ip)
{
    void *trie = bpf_map_lookup_elem(&vs_policies, &slot);
    if (!trie)
        return false;
    struct vs_policy_key key = {.prefixlen = 40, .list = VS_LIST_ALLOW};
    __builtin_memcpy(key.ip, &ip, 4);
    if (bpf_map_lookup_elem(trie, &key) || name_allowed(slot, ip))
        return false;
    key.list = VS_LIST_DENY;
    return bpf_map_lookup_elem(trie, &key) != NULL;
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
