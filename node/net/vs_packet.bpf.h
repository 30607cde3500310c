/* Reading and rewriting of one packet. Every length is checked against the packet's end before it is used;
 * what is not plain IPv4 without options and fragments never gets further than here. */
#pragma once

#define IP_MORE_OR_OFFSET 0x3fff /* MF bit and fragment offset */

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

/* RFC 792. <linux/icmp.h> would bring in libc's headers for another target. */
#define ICMP_ECHOREPLY 0
#define ICMP_DEST_UNREACH 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

struct icmp_echo {
    __u8 type, code;
    __u16 check, id, seq;
};

#define OFF_IP ((__u32)sizeof(struct ethhdr))
#define OFF_IP_CSUM (OFF_IP + (__u32) __builtin_offsetof(struct iphdr, check))
#define OFF_IP_SRC (OFF_IP + (__u32) __builtin_offsetof(struct iphdr, saddr))
#define OFF_IP_DST (OFF_IP + (__u32) __builtin_offsetof(struct iphdr, daddr))
#define OFF_L4 (OFF_IP + (__u32)sizeof(struct iphdr))

static __always_inline bool mac_equal(const __u8 *a, const __u8 *b)
{
    return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]) | (a[5] ^ b[5])) ==
           0;
}

static __always_inline __u32 ip_of(const __u8 *p)
{
    return bpf_htonl((__u32)p[0] << 24 | (__u32)p[1] << 16 | (__u32)p[2] << 8 | p[3]);
}

struct packet {
    __u32 src, dst;
    __u16 sport, dport; /* ICMP echo: the identifier on the guest's side, 0 on the other */
    __u8 proto;
    __u8 tcp_flags;
    __u8 icmp_type;
    __u8 partial; /* the transport's checksum is the host's to complete; known of a guest's packets only */
    __u32 len;    /* bytes of the IP packet */
};

/* Makes `n` bytes readable and writable in place; most packets have them there already. */
static __always_inline bool packet_has(struct __sk_buff *skb, __u32 n)
{
    return (void *)(long)skb->data + n <= (void *)(long)skb->data_end || bpf_skb_pull_data(skb, n) == 0;
}

/* Parses IPv4 + the ports behind an Ethernet header. `from_guest` decides on which side an ICMP identifier
 * stands. Returns a drop reason. */
static __always_inline enum vs_drop packet_parse(struct __sk_buff *skb, struct packet *p, bool from_guest)
{
    if (!packet_has(skb, OFF_L4 + 20) && !packet_has(skb, OFF_L4 + 8) && !packet_has(skb, OFF_L4))
        return VS_DROP_MALFORMED;
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct iphdr *ip = data + OFF_IP;
    if ((void *)(ip + 1) > end)
        return VS_DROP_MALFORMED;
    if (ip->version != 4)
        return VS_DROP_MALFORMED;
    if (ip->ihl != 5)
        return VS_DROP_OPTIONS;
    if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
        return VS_DROP_FRAGMENT;
    __u32 total = bpf_ntohs(ip->tot_len);
    if (total < sizeof *ip || (total > skb->len - OFF_IP && !skb->gso_segs))
        return VS_DROP_MALFORMED;
    p->src = ip->saddr;
    p->dst = ip->daddr;
    p->proto = ip->protocol;
    p->len = skb->len - OFF_IP;

    __u32 need = p->proto == IPPROTO_TCP ? 20 : 8;
    if (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP && p->proto != IPPROTO_ICMP)
        return VS_DROP_PROTOCOL;
    __u8 *l4 = data + OFF_L4;
    if (total < sizeof *ip + need || (void *)(l4 + 8) > end)
        return VS_DROP_MALFORMED;
    if (p->proto == IPPROTO_ICMP) {
        struct icmp_echo *icmp = (void *)l4;
        p->icmp_type = icmp->type;
        p->sport = from_guest ? icmp->id : 0;
        p->dport = from_guest ? 0 : icmp->id;
        return VS_DROP_NONE;
    }
    p->sport = *(__u16 *)l4;
    p->dport = *(__u16 *)(l4 + 2);
    if (p->proto == IPPROTO_TCP) {
        if ((void *)(l4 + 20) > end || (l4[12] >> 4) < 5)
            return VS_DROP_MALFORMED;
        p->tcp_flags = l4[13];
    } else if (bpf_ntohs(*(__u16 *)(l4 + 4)) < 8) {
        return VS_DROP_MALFORMED;
    }
    return VS_DROP_NONE;
}

/* The fields of the kernel's own buffer that __sk_buff does not show; found by name in the running kernel
 * (CO-RE). */
struct sk_buff {
    __u8 ip_summed : 2;
    __u16 csum_start, csum_offset;
    unsigned char *head, *data;
} __attribute__((preserve_access_index));

#define SUMMED_PARTIAL 3 /* CHECKSUM_PARTIAL: to be completed later */

/* A guest may leave its transport's checksum to the host, and says where that lies. The host completes it
 * after this program, by writing two bytes of the guest's choice wherever it said: nowhere but in the
 * transport's own field, or a guest would change its packet's addresses behind our back. */
static __always_inline bool checksum_place_right(struct __sk_buff *skb, struct packet *p)
{
    struct sk_buff *k = (void *)skb;
    struct {
        unsigned long head, data;
    } room;
    struct {
        __u16 start, offset;
    } place;
    if (BPF_CORE_READ_BITFIELD_PROBED(k, ip_summed) != SUMMED_PARTIAL)
        return true;
    p->partial = 1;
    /* Each pair has always stood together, and one read of both costs half. */
    if (bpf_core_read(&room, sizeof room, &k->head) || bpf_core_read(&place, sizeof place, &k->csum_start))
        return false;
    return place.start == room.data - room.head + OFF_L4 &&
           ((p->proto == IPPROTO_TCP && place.offset == 16) ||
            (p->proto == IPPROTO_UDP && place.offset == 6));
}

/* Where the checksum of the transport lies, and with which flags it is mended. */
static __always_inline __u32 l4_csum_offset(__u8 proto)
{
    return OFF_L4 + (proto == IPPROTO_TCP ? 16 : proto == IPPROTO_UDP ? 6 : 2);
}

static __always_inline __u64 l4_csum_flags(__u8 proto, __u64 size)
{
    return size | (proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);
}

/* Replaces one address (field at `off`) in a packet whose fields were parsed; mends IP and transport
 * checksums. */
static __always_inline void rewrite_ip(struct __sk_buff *skb, __u8 proto, __u32 off, __u32 from, __u32 to)
{
    if (from == to)
        return;
    if (proto != IPPROTO_ICMP)
        bpf_l4_csum_replace(skb, l4_csum_offset(proto), from, to, l4_csum_flags(proto, 4) | BPF_F_PSEUDO_HDR);
    bpf_l3_csum_replace(skb, OFF_IP_CSUM, from, to, 4);
    bpf_skb_store_bytes(skb, off, &to, 4, 0);
}

static __always_inline __u16 fold(__u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    return (__u16)(sum + (sum >> 16));
}

/* RFC 1624: the header's checksum when one address in it changes. */
static __always_inline __u16 ip_check_moved(__u16 check, __u32 from, __u32 to)
{
    __u32 sum = (__u16)~check;
    sum += (__u16) ~(from & 0xffff) + (__u32)(__u16) ~(from >> 16) + (to & 0xffff) + (to >> 16);
    return (__u16)~fold(sum);
}

/* The translation: address (source of what leaves, destination of what comes) and the guest's port, in place.
 * The transport's checksum goes through the helper, which alone knows whether it is still to be computed.
 * Returns false when the packet cannot be written. */
static __always_inline bool translate(struct __sk_buff *skb, const struct packet *p, bool out, __u32 ip,
                                      __u16 port)
{
    __u32 old_ip = out ? p->src : p->dst, port_off = p->proto == IPPROTO_ICMP ? 4 : out ? 0 : 2;
    __u16 old_port = p->proto == IPPROTO_ICMP || out ? p->sport : p->dport;
    if (p->proto == IPPROTO_ICMP && !out)
        old_port = p->dport;
    if (p->proto != IPPROTO_ICMP)
        bpf_l4_csum_replace(skb, l4_csum_offset(p->proto), old_ip, ip,
                            l4_csum_flags(p->proto, 4) | BPF_F_PSEUDO_HDR);
    if (old_port != port && !p->partial) /* what is to be completed holds only the pseudo header's sum */
        bpf_l4_csum_replace(skb, l4_csum_offset(p->proto), old_port, port, l4_csum_flags(p->proto, 2));
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    if (data + OFF_L4 + 8 > end)
        return false;
    struct iphdr *h = data + OFF_IP;
    h->check = ip_check_moved(h->check, old_ip, ip);
    if (out)
        h->saddr = ip;
    else
        h->daddr = ip;
    *(__u16 *)(data + OFF_L4 + port_off) = port;
    return true;
}

static __always_inline bool rewrite_macs(struct __sk_buff *skb, const __u8 dst[6], const __u8 src[6])
{
    struct ethhdr *eth = (void *)(long)skb->data;
    if ((void *)(eth + 1) > (void *)(long)skb->data_end)
        return false;
    __builtin_memcpy(eth->h_dest, dst, 6);
    __builtin_memcpy(eth->h_source, src, 6);
    return true;
}
