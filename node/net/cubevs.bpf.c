/* CubeVS: what leaves a sandbox, what comes back to it, and what the node's own services answer it. Three TC
 * programs: from_cube   ingress of each TAP: anti-spoof, ARP, denied ranges, policy, rate, session, source
 * NAT, out through the uplink from_world  ingress of the uplink: the reverse of a session, into the TAP;
 * everything else is the node's own business from_host   ingress of the far end of the service pair: answers
 * of the node's services, into the TAP Invariants: nothing from a guest reaches the node's stack except
 * questions to the gateway's DNS; nothing reaches a guest except answers of a session that it opened; a full
 * table refuses what is new and keeps what is there. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "node/net/vs_abi.h"
#include "node/net/vs_maps.bpf.h"
#include "node/net/vs_packet.bpf.h"
#include "node/net/vs_policy.bpf.h"
#include "node/net/vs_session.bpf.h"
#include "node/net/vs_sweep.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SEGMENTS_MAX 1024 /* of one large packet: cutting it up is the host's work, at the guest's word */
#define AF_INET 2         /* <sys/socket.h> would bring in libc's headers for another target */
#ifndef SAMPLE_EVERY_NS   /* a test builds another version of the programs by it */
#define SAMPLE_EVERY_NS 50000000ull /* per sandbox */
#endif

static __always_inline int drop(__u32 slot, enum vs_drop reason, const struct packet *p)
{
    struct vs_drops *d = bpf_map_lookup_elem(&vs_drops, &slot);
    if (d && reason < VS_DROP_REASONS)
        d->count[reason]++;
    __u64 now = bpf_ktime_get_ns();
    struct vs_sampled *last = bpf_map_lookup_elem(&vs_sampled, &slot), fresh = {.ns = now};
    __u32 missed = last ? last->missed : 0;
    if (last && now - last->ns < SAMPLE_EVERY_NS) {
        last->missed++;
        return TC_ACT_SHOT;
    }
    bpf_map_update_elem(&vs_sampled, &slot, &fresh, BPF_ANY);
    struct vs_sample *s = bpf_ringbuf_reserve(&vs_samples, sizeof *s, 0);
    if (s) {
        *s = (struct vs_sample){.ns = now, .slot = slot, .reason = reason, .missed = missed};
        if (p) {
            s->remote_ip = p->dst;
            s->remote_port = p->dport;
            s->proto = p->proto;
        }
        bpf_ringbuf_submit(s, 0);
    }
    return TC_ACT_SHOT;
}

static __always_inline void count(__u32 slot, bool up, __u32 bytes, __u32 packets)
{
    struct vs_counters *c = bpf_map_lookup_elem(&vs_counters, &slot);
    if (!c)
        return;
    if (up) {
        c->up_packets += packets;
        c->up_bytes += bytes;
    } else {
        c->down_packets += packets;
        c->down_bytes += bytes;
    }
}

static __always_inline __u32 packets_of(const struct __sk_buff *skb)
{
    if (skb->gso_segs || !skb->gso_size)
        return skb->gso_segs ? skb->gso_segs : 1;
    return (skb->len + skb->gso_size - 1) / skb->gso_size; /* of a TAP: the segments were not counted yet */
}

/* RFC 826 request as a guest sends it: Ethernet, IPv4. */
struct arp_ipv4 {
    __be16 hardware, protocol;
    __u8 hardware_len, protocol_len;
    __be16 op;
    __u8 sender_mac[6];
    __u8 sender_ip[4];
    __u8 target_mac[6];
    __u8 target_ip[4];
} __attribute__((packed));

/* Turns the guest's question for the gateway into its answer and sends it back; every other ARP packet is
 * dropped. */
static __always_inline int answer_arp(struct __sk_buff *skb, __u32 slot)
{
    static const __u8 gateway_mac[6] = VS_GATEWAY_MAC;
    static const __u8 guest_mac[6] = VS_GUEST_MAC;
    if (bpf_skb_pull_data(skb, sizeof(struct ethhdr) + sizeof(struct arp_ipv4)) < 0)
        return drop(slot, VS_DROP_ARP, NULL);
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct ethhdr *eth = data;
    struct arp_ipv4 *arp = data + sizeof *eth;
    if ((void *)(arp + 1) > end)
        return drop(slot, VS_DROP_ARP, NULL);
    __u32 gateway = bpf_htonl(VS_GATEWAY_IP), guest = bpf_htonl(VS_GUEST_IP);
    if (arp->hardware != bpf_htons(1) || arp->protocol != bpf_htons(ETH_P_IP) || arp->hardware_len != 6 ||
        arp->protocol_len != 4 || arp->op != bpf_htons(1) || ip_of(arp->target_ip) != gateway ||
        ip_of(arp->sender_ip) != guest || !mac_equal(arp->sender_mac, guest_mac))
        return drop(slot, VS_DROP_ARP, NULL);
    __builtin_memcpy(eth->h_dest, guest_mac, 6);
    __builtin_memcpy(eth->h_source, gateway_mac, 6);
    arp->op = bpf_htons(2);
    __builtin_memcpy(arp->target_mac, guest_mac, 6);
    __builtin_memcpy(arp->target_ip, &guest, 4);
    __builtin_memcpy(arp->sender_mac, gateway_mac, 6);
    __builtin_memcpy(arp->sender_ip, &gateway, 4);
    return bpf_redirect(skb->ifindex, 0);
}

/* A DNS question to the gateway goes to the node's own service, from an address that names the sandbox. */
static __always_inline int to_service(struct __sk_buff *skb, const struct vs_config *cfg, __u32 slot,
                                      const struct packet *p)
{
    static const __u8 far_mac[6] = VS_GATEWAY_MAC;
    if (!cfg->service_ifindex || (p->proto != IPPROTO_UDP && p->proto != IPPROTO_TCP) ||
        p->dport != bpf_htons(VS_DNS_PORT))
        return drop(slot, VS_DROP_RANGE, p);
    if (!bucket_take(slot, true, p->len))
        return drop(slot, VS_DROP_RATE, p);
    rewrite_ip(skb, p->proto, OFF_IP_SRC, p->src, bpf_htonl(cfg->service_net + slot));
    rewrite_ip(skb, p->proto, OFF_IP_DST, p->dst, cfg->service_ip);
    if (!rewrite_macs(skb, cfg->service_mac, far_mac))
        return TC_ACT_SHOT;
    count(slot, true, p->len, packets_of(skb));
    return bpf_redirect(cfg->service_ifindex, 0);
}

/* Finds or opens the session of a guest's packet, and checks its destination when the rules were not asked
 * yet. */
static __always_inline enum vs_drop outbound_session(const struct vs_config *cfg, __u32 tap,
                                                     struct vs_sandbox *sb, const struct packet *p,
                                                     __u16 *nat_port)
{
    struct vs_forward_key fk = {
        .tap = tap, .remote_ip = p->dst, .remote_port = p->dport, .guest_port = p->sport, .proto = p->proto};
    struct rules r = rules_of(cfg, sb->slot);
    /* Also on an open session: an error message under the identifier of an echo would quote what it likes,
     * such as a connection of another sandbox. */
    if (p->proto == IPPROTO_ICMP && p->icmp_type != ICMP_ECHO)
        return VS_DROP_PROTOCOL;
    struct vs_session *s = bpf_map_lookup_elem(&vs_forward, &fk);
    if (!s || s->epoch != r.epoch || session_reopens(s, p)) {
        bool kept = s && s->by_name && s->names == r.names && !session_reopens(s, p);
        int check = rules_check(sb->slot, p->dst, r.policy, kept);
        if (check == VS_CHECK_RANGE)
            return VS_DROP_RANGE;
        if (check == VS_CHECK_POLICY)
            return VS_DROP_POLICY;
        if (s) {
            s->by_name = check == VS_CHECK_BY_NAME;
            s->names = r.names;
            s->epoch = r.epoch;
        } else {
            if (p->proto == IPPROTO_TCP &&
                (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) != TCP_SYN)
                return VS_DROP_NO_SESSION;
            struct vs_session fresh = {
                .by_name = check == VS_CHECK_BY_NAME, .epoch = r.epoch, .names = r.names};
            if (!bucket_take(sb->slot, true, p->len))
                return VS_DROP_RATE;
            enum vs_drop why = session_open(cfg, tap, sb, p, &fk, &fresh);
            *nat_port = fresh.nat_port;
            return why;
        }
    }
    if (!bucket_take(sb->slot, true, p->len))
        return VS_DROP_RATE;
    if (session_reopens(s, p))
        s->state = VS_SYN_SENT;
    session_touch(s, p, true);
    *nat_port = s->nat_port;
    return VS_DROP_NONE;
}

/* Whether an answer still passes: after a change of rules what comes in is checked as what goes out. */
static __always_inline bool inbound_open(const struct vs_config *cfg, struct vs_session *s,
                                         const struct packet *p)
{
    struct rules r = rules_of(cfg, s->slot);
    if (s->epoch == r.epoch)
        return true;
    int check = rules_check(s->slot, p->src, r.policy, s->by_name && s->names == r.names);
    if (check == VS_CHECK_RANGE || check == VS_CHECK_POLICY)
        return false;
    s->by_name = check == VS_CHECK_BY_NAME;
    s->names = r.names;
    s->epoch = r.epoch;
    return true;
}

SEC("tc")
int from_cube(struct __sk_buff *skb)
{
    static const __u8 guest_mac[6] = VS_GUEST_MAC;
    __u32 zero = 0, tap = skb->ifindex;
    struct vs_config *cfg = bpf_map_lookup_elem(&vs_config, &zero);
    struct vs_sandbox *sb = bpf_map_lookup_elem(&vs_sandboxes, &tap);
    if (!cfg || !sb || !(sb->flags & VS_LIVE))
        return TC_ACT_SHOT;
    __u32 slot = sb->slot;

    if (!packet_has(skb, sizeof(struct ethhdr)))
        return drop(slot, VS_DROP_MALFORMED, NULL);
    struct ethhdr *eth = (void *)(long)skb->data;
    if ((void *)(eth + 1) > (void *)(long)skb->data_end)
        return drop(slot, VS_DROP_MALFORMED, NULL);
    if (!mac_equal(eth->h_source, guest_mac))
        return drop(slot, VS_DROP_SPOOF_MAC, NULL);
    __u16 type = eth->h_proto;
    if (skb->vlan_present)
        return drop(slot, VS_DROP_NOT_IPV4, NULL);
    if (type == bpf_htons(ETH_P_ARP))
        return answer_arp(skb, slot);
    if (type == bpf_htons(ETH_P_IPV6))
        return drop(slot, VS_DROP_IPV6, NULL);
    if (type != bpf_htons(ETH_P_IP))
        return drop(slot, VS_DROP_NOT_IPV4, NULL);

    struct packet p = {0};
    enum vs_drop why = packet_parse(skb, &p, true);
    if (why)
        return drop(slot, why, NULL);
    if (p.src != bpf_htonl(VS_GUEST_IP))
        return drop(slot, VS_DROP_SPOOF_IP, &p);
    if (!checksum_place_right(skb, &p) || packets_of(skb) > SEGMENTS_MAX)
        return drop(slot, VS_DROP_MALFORMED, &p);
    if (p.dst == bpf_htonl(VS_GATEWAY_IP))
        return to_service(skb, cfg, slot, &p);
    __u16 nat_port = 0;
    why = outbound_session(cfg, tap, sb, &p, &nat_port);
    if (why)
        return drop(slot, why, &p);
    if (!translate(skb, &p, true, cfg->uplink_ip, nat_port))
        return drop(slot, VS_DROP_MALFORMED, &p);
    count(slot, true, p.len, packets_of(skb));
    if (!cfg->gateway)
        return bpf_redirect_neigh(cfg->uplink_ifindex, NULL, 0, 0);
    struct bpf_redir_neigh hop = {.nh_family = AF_INET,
                                  .ipv4_nh = (p.dst & cfg->mask) == cfg->net ? p.dst : cfg->gateway};
    return bpf_redirect_neigh(cfg->uplink_ifindex, &hop, sizeof hop, 0);
}

/* Puts a packet for a guest into its TAP. */
static __always_inline int deliver(struct __sk_buff *skb, __u32 tap, __u32 slot, const struct packet *p)
{
    static const __u8 guest_mac[6] = VS_GUEST_MAC;
    static const __u8 gateway_mac[6] = VS_GATEWAY_MAC;
    if (!bucket_take(slot, false, p->len))
        return drop(slot, VS_DROP_RATE, p);
    if (!rewrite_macs(skb, guest_mac, gateway_mac))
        return TC_ACT_SHOT;
    count(slot, false, p->len, packets_of(skb));
    return bpf_redirect(tap, 0);
}

/* ICMP errors (unreachable, time exceeded, parameter problem) about a packet that a guest sent: only when the
 * quoted header belongs to a session. */
static __always_inline int world_icmp_error(struct __sk_buff *skb, const struct vs_config *cfg,
                                            struct packet *p)
{
    struct {
        struct iphdr ip;
        __be16 sport, dport;
        __u32 rest;
    } quoted;
    __u32 inner = OFF_L4 + 8;
    if (bpf_skb_load_bytes(skb, inner, &quoted, sizeof quoted) < 0 || quoted.ip.version != 4 ||
        quoted.ip.ihl != 5 || quoted.ip.saddr != cfg->uplink_ip)
        return TC_ACT_UNSPEC;
    struct vs_reverse_key rk = {.remote_ip = quoted.ip.daddr, .proto = quoted.ip.protocol};
    __u32 port_at = inner + sizeof(struct iphdr);
    if (quoted.ip.protocol == IPPROTO_ICMP) {
        rk.nat_port = (__be16)quoted.rest; /* identifier: bytes 4 and 5 of the quoted ICMP header */
        port_at += 4;
    } else {
        rk.nat_port = quoted.sport;
        rk.remote_port = quoted.dport;
    }
    struct vs_reverse_value *r = bpf_map_lookup_elem(&vs_reverse, &rk);
    if (!r)
        return TC_ACT_UNSPEC;
    __u32 tap = r->tap, guest = bpf_htonl(VS_GUEST_IP);
    __u16 guest_port = r->guest_port;
    struct vs_sandbox *sb = bpf_map_lookup_elem(&vs_sandboxes, &tap);
    if (!sb)
        return TC_ACT_SHOT;
    /* The quoted IP header's own checksum moves against its source address, so their sum, and with it the
     * ICMP checksum, stays. */
    bpf_l3_csum_replace(skb, inner + offsetof(struct iphdr, check), quoted.ip.saddr, guest, 4);
    bpf_skb_store_bytes(skb, inner + offsetof(struct iphdr, saddr), &guest, 4, 0);
    bpf_l4_csum_replace(skb, OFF_L4 + 2, rk.nat_port, guest_port, 2);
    bpf_skb_store_bytes(skb, port_at, &guest_port, 2, 0);
    rewrite_ip(skb, IPPROTO_ICMP, OFF_IP_DST, p->dst, guest);
    return deliver(skb, tap, sb->slot, p);
}

SEC("tc")
int from_world(struct __sk_buff *skb)
{
    __u32 zero = 0;
    struct vs_config *cfg = bpf_map_lookup_elem(&vs_config, &zero);
    struct packet p = {0};
    if (!cfg || skb->protocol != bpf_htons(ETH_P_IP) || packet_parse(skb, &p, false) ||
        p.dst != cfg->uplink_ip)
        return TC_ACT_UNSPEC; /* not ours: another node on this host, or the host itself */
    if (p.proto != IPPROTO_ICMP && (__u32)(bpf_ntohs(p.dport) - cfg->port_first) >= cfg->port_count)
        return TC_ACT_UNSPEC;
    if (p.proto == IPPROTO_ICMP && p.icmp_type != ICMP_ECHOREPLY) {
        bool error = p.icmp_type == ICMP_DEST_UNREACH || p.icmp_type == ICMP_TIME_EXCEEDED ||
                     p.icmp_type == ICMP_PARAMETERPROB;
        return error ? world_icmp_error(skb, cfg, &p) : TC_ACT_UNSPEC;
    }
    struct vs_reverse_key rk = {
        .remote_ip = p.src, .remote_port = p.sport, .nat_port = p.dport, .proto = p.proto};
    struct vs_reverse_value *r = bpf_map_lookup_elem(&vs_reverse, &rk);
    if (!r)
        return TC_ACT_UNSPEC;
    __u32 tap = r->tap;
    __u16 guest_port = r->guest_port;
    struct vs_forward_key fk = {
        .tap = tap, .remote_ip = p.src, .remote_port = p.sport, .guest_port = guest_port, .proto = p.proto};
    struct vs_session *s = bpf_map_lookup_elem(&vs_forward, &fk);
    if (!s)
        return TC_ACT_SHOT; /* between the two deletes of the sweeper */
    __u32 slot = s->slot;
    if (!inbound_open(cfg, s, &p))
        return drop(slot, VS_DROP_POLICY, &p);
    session_touch(s, &p, false);
    if (!translate(skb, &p, false, bpf_htonl(VS_GUEST_IP), guest_port))
        return TC_ACT_SHOT;
    return deliver(skb, tap, slot, &p);
}

/* Which TAP a slot has: the reverse of vs_sandboxes, for answers of the node's services. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, VS_MAX_SANDBOXES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, __u32);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} vs_slots SEC(".maps");

SEC("tc")
int from_host(struct __sk_buff *skb)
{
    __u32 zero = 0;
    struct vs_config *cfg = bpf_map_lookup_elem(&vs_config, &zero);
    struct packet p = {0};
    if (!cfg || skb->protocol != bpf_htons(ETH_P_IP) || packet_parse(skb, &p, false) ||
        p.src != cfg->service_ip)
        return TC_ACT_SHOT; /* nothing else has business on this pair */
    __u32 slot = bpf_ntohl(p.dst) - cfg->service_net;
    if (slot >= VS_MAX_SANDBOXES || p.sport != bpf_htons(VS_DNS_PORT) || p.proto == IPPROTO_ICMP)
        return TC_ACT_SHOT;
    __u32 *tap = bpf_map_lookup_elem(&vs_slots, &slot);
    if (!tap)
        return TC_ACT_SHOT;
    rewrite_ip(skb, p.proto, OFF_IP_SRC, p.src, bpf_htonl(VS_GATEWAY_IP));
    rewrite_ip(skb, p.proto, OFF_IP_DST, p.dst, bpf_htonl(VS_GUEST_IP));
    return deliver(skb, *tap, slot, &p);
}

SEC("syscall")
int sweep(struct vs_sweep *arg)
{
    struct vs_sweep work = *arg;
    bpf_for_each_map_elem(&vs_forward, sweep_one, &work, 0);
    arg->removed = work.removed;
    arg->left = work.left;
    return 0;
}

SEC("syscall")
int list_sessions(struct vs_list_sessions *arg)
{
    struct vs_list_sessions work = {.tap = arg->tap};
    bpf_for_each_map_elem(&vs_forward, list_one, &work, 0);
    arg->n = work.n;
    return 0;
}
