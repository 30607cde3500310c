/* The sweeper: a program that the node runs every few seconds (BPF_PROG_TEST_RUN of type syscall), so that a
 * session's end and the sandbox's count of sessions change together inside the kernel. */
#pragma once

/* In and out of one run. */
struct vs_sweep {
    __u32 now_s;
    __u32 tap;     /* end every session of this TAP, whatever its age; 0 = only the old ones */
    __u32 removed; /* out */
    __u32 left;    /* out */
};

static __always_inline __u32 session_ttl(__u8 proto, __u8 state)
{
    if (proto == IPPROTO_UDP)
        return state ? VS_TTL_UDP : VS_TTL_UDP_NEW;
    if (proto == IPPROTO_ICMP)
        return VS_TTL_ICMP;
    switch (state) {
    case VS_ESTABLISHED:
        return VS_TTL_TCP_ESTABLISHED;
    case VS_FIN_OUT:
    case VS_FIN_IN:
        return VS_TTL_TCP_HALF_CLOSED;
    case VS_TIME_WAIT:
        return VS_TTL_TCP_TIME_WAIT;
    case VS_RESET:
        return VS_TTL_TCP_RESET;
    default:
        return VS_TTL_TCP_SYN;
    }
}

static long sweep_one(void *map, struct vs_forward_key *key, struct vs_session *s, struct vs_sweep *arg)
{
    __s32 age = (__s32)(arg->now_s - s->last_s);
    bool ends = arg->tap ? key->tap == arg->tap : age > (__s32)session_ttl(key->proto, s->state);
    if (!ends) {
        arg->left++;
        return 0;
    }
    struct vs_reverse_key rk = {.remote_ip = key->remote_ip,
                                .remote_port = key->remote_port,
                                .nat_port = s->nat_port,
                                .proto = key->proto};
    struct vs_forward_key fk = *key;
    if (bpf_map_delete_elem(&vs_forward, &fk))
        return 0;
    bpf_map_delete_elem(&vs_reverse, &rk);
    arg->removed++;
    struct vs_sandbox *sb = bpf_map_lookup_elem(&vs_sandboxes, &fk.tap);
    if (sb)
        __sync_fetch_and_add(&sb->sessions, -1);
    return 0;
}

/* In and out of one run of list_sessions. */
struct vs_list_sessions {
    __u32 tap;
    __u32 n; /* out */
};

/* Not pinned: each process has an answer of its own. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, VS_LISTED_MAX);
    __type(key, __u32);
    __type(value, struct vs_listed);
} vs_listing SEC(".maps");

static long list_one(void *map, struct vs_forward_key *key, struct vs_session *s,
                     struct vs_list_sessions *arg)
{
    if (key->tap != arg->tap)
        return 0;
    struct vs_listed *out = bpf_map_lookup_elem(&vs_listing, &arg->n);
    if (!out)
        return 1;
    out->key = *key;
    out->session = *s;
    arg->n++;
    return 0;
}
