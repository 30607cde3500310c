/* The pinned maps, shared by the three programs. */
#pragma once

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct vs_config);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_config SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, struct vs_sandbox);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_sandboxes SEC(".maps");

/* What every packet reads or writes by slot is an array: its look-up is inlined. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct vs_rules_word);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_rules SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __type(key, __u32);
    __type(value, struct vs_buckets);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_buckets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __type(key, __u32);
    __type(value, struct vs_counters);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, struct vs_drops);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_drops SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, VS_MAX_SESSIONS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct vs_forward_key);
    __type(value, struct vs_session);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_forward SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, VS_MAX_SESSIONS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct vs_reverse_key);
    __type(value, struct vs_reverse_value);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_reverse SEC(".maps");

struct vs_policy_trie {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 1 << 17);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(key_size, sizeof(struct vs_policy_key)); /* by size: clang 14 leaves the type of an inner map's key
                                                       undefined in BTF */
    __uint(value_size, 1);
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
    __array(values, struct vs_policy_trie);
} vs_policies SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 4096);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct vs_range_key);
    __type(value, __u8);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_ranges SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 18);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct vs_name_key);
    __type(value, __u64);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_names SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 256 * 1024);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_samples SEC(".maps");

/* So that a flood fills no buffer. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __type(key, __u32);
    __type(value, struct vs_sampled);
} vs_sampled SEC(".maps");
