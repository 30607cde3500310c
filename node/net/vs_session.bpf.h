/* Sessions: found, opened and moved on by both programs. One session is a forward entry, which holds the
 * state, and a reverse entry, which leads to it; the reverse entry is inserted first with BPF_NOEXIST, and
 * its success is what makes the port ours. */
#pragma once

/* The coarse clock (a tick's precision) costs a fraction of the exact one, and seconds need no more. */
static __always_inline __u32 now_seconds(void)
{
    return (__u32)(bpf_ktime_get_coarse_ns() / 1000000000ull);
}

/* The next state of a TCP session for a segment; `out` = from the guest. RFC 9293 §3.3.2, seen from the
 * middle. */
static __always_inline __u8 tcp_next(__u8 state, __u8 flags, bool out)
{
    if (flags & TCP_RST)
        return VS_RESET;
    switch (state) {
    case VS_SYN_SENT:
        return !out && (flags & TCP_SYN) && (flags & TCP_ACK) ? VS_SYN_RECEIVED : state;
    case VS_SYN_RECEIVED:
        if (flags & TCP_FIN)
            return out ? VS_FIN_OUT : VS_FIN_IN;
        return out && (flags & TCP_ACK) && !(flags & TCP_SYN) ? VS_ESTABLISHED : state;
    case VS_ESTABLISHED:
        return flags & TCP_FIN ? (out ? VS_FIN_OUT : VS_FIN_IN) : state;
    case VS_FIN_OUT:
        return !out && (flags & TCP_FIN) ? VS_TIME_WAIT : state;
    case VS_FIN_IN:
        return out && (flags & TCP_FIN) ? VS_TIME_WAIT : state;
    default:
        return state;
    }
}

static __always_inline void session_touch(struct vs_session *s, const struct packet *p, bool out)
{
    __u32 now = now_seconds();
    if (s->last_s != now)
        s->last_s = now;
    if (p->proto == IPPROTO_TCP) {
        __u8 next = tcp_next(s->state, p->tcp_flags, out);
        if (next != s->state)
            s->state = next;
    } else if (!out && s->state == 0) {
        s->state = 1;
    }
}

/* A SYN on a session that has ended opens it anew (the guest reuses its port). */
static __always_inline bool session_reopens(const struct vs_session *s, const struct packet *p)
{
    return p->proto == IPPROTO_TCP && (p->tcp_flags & TCP_SYN) && !(p->tcp_flags & TCP_ACK) &&
           (s->state == VS_TIME_WAIT || s->state == VS_RESET);
}

/* New sessions per second: a window of one second, counted without a lock; two CPUs may let through one more.
 */
static __always_inline bool session_rate_passed(struct vs_sandbox *sb)
{
    if (sb->max_new_per_s == 0)
        return true;
    __u64 now = bpf_ktime_get_ns();
    if (now - sb->window_ns > 1000000000ull) {
        sb->window_ns = now;
        sb->window_new = 0;
    }
    return __sync_fetch_and_add(&sb->window_new, 1) < sb->max_new_per_s;
}

static __always_inline __u32 hash32(__u32 x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

struct port_search {
    struct vs_reverse_key key;
    struct vs_reverse_value value;
    __u32 start, first, count;
    __s32 result; /* 0 found, else the last error */
};

static long try_port(__u32 i, void *arg)
{
    struct port_search *s = arg;
    __u32 port = s->first + (s->start + i) % (s->count ? s->count : 1);
    s->key.nat_port = bpf_htons((__u16)port);
    s->result = bpf_map_update_elem(&vs_reverse, &s->key, &s->value, BPF_NOEXIST);
    return s->result != -17; /* EEXIST: the next one */
}

static __always_inline enum vs_drop session_open(const struct vs_config *cfg, __u32 tap,
                                                 struct vs_sandbox *sb, const struct packet *p,
                                                 const struct vs_forward_key *fk, struct vs_session *out)
{
    if (!session_rate_passed(sb))
        return VS_DROP_SESSION_RATE;
    if (sb->max_sessions && sb->sessions >= (__s64)sb->max_sessions)
        return VS_DROP_LIMIT;
    struct port_search s = {
        .key = {.remote_ip = p->dst, .remote_port = p->dport, .proto = p->proto},
        .value = {.tap = tap, .guest_port = p->sport},
        .start =
            hash32(fk->remote_ip ^ hash32(((__u32)p->sport << 16) ^ p->dport ^ tap ^ bpf_get_prandom_u32())),
        .first = cfg->port_first,
        .count = cfg->port_count,
        .result = -17,
    };
    bpf_loop(VS_PORT_TRIES, try_port, &s, 0);
    if (s.result == -17)
        return VS_DROP_NO_PORT;
    if (s.result)
        return VS_DROP_TABLE_FULL;
    out->last_s = now_seconds();
    out->slot = sb->slot;
    out->nat_port = s.key.nat_port;
    out->state = p->proto == IPPROTO_TCP ? VS_SYN_SENT : 0;
    if (bpf_map_update_elem(&vs_forward, fk, out, BPF_NOEXIST)) {
        bpf_map_delete_elem(&vs_reverse, &s.key);
        return VS_DROP_TABLE_FULL;
    }
    __sync_fetch_and_add(&sb->sessions, 1);
    return VS_DROP_NONE;
}
