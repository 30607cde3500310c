/* What the BPF programs and their loader agree on: keys, values and constants of CubeVS's pinned maps.
 * Changing a layout here means a new VS_ABI, so that an upgrade never reads old entries as new ones. All
 * addresses and ports are in network byte order. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#define VS_ABI 3

/* The guest's side, the same in every sandbox (contracts/internal.md §8). */
#define VS_GUEST_IP 0xa9fe0015u   /* 169.254.0.21, host order */
#define VS_GATEWAY_IP 0xa9fe0016u /* 169.254.0.22, host order */
#define VS_GUEST_MAC                                                                                         \
    {                                                                                                        \
        0x02, 0xcb, 0x00, 0x00, 0x00, 0x01                                                                   \
    }
#define VS_GATEWAY_MAC                                                                                       \
    {                                                                                                        \
        0x02, 0xcb, 0x00, 0x00, 0x00, 0x02                                                                   \
    }

#define VS_PORT_TRIES 32 /* ports tried for a new session */

#define VS_MAX_SANDBOXES 16384
#define VS_MAX_SESSIONS (1u << 20)
#define VS_DNS_PORT 53

/* A session's life without a packet, in seconds. TCP: RFC 5382 wants ≥ 2 h 4 min for established ones and ≥ 4
 * min for half-open ones; UDP: RFC 4787 wants ≥ 2 min; ICMP: RFC 5508 wants ≥ 60 s. */
#define VS_TTL_TCP_SYN 30
#define VS_TTL_TCP_ESTABLISHED 7440
#define VS_TTL_TCP_HALF_CLOSED 240
#define VS_TTL_TCP_TIME_WAIT 60
#define VS_TTL_TCP_RESET 5
#define VS_TTL_UDP_NEW 30
#define VS_TTL_UDP 180
#define VS_TTL_ICMP 60

/* Why a packet was dropped; index of the per-sandbox counters and of the samples. */
enum vs_drop {
    VS_DROP_NONE = 0,
    VS_DROP_SPOOF_MAC,
    VS_DROP_SPOOF_IP,
    VS_DROP_NOT_IPV4, /* VLAN tags and other ether types */
    VS_DROP_IPV6,
    VS_DROP_MALFORMED, /* truncated, wrong lengths */
    VS_DROP_OPTIONS,   /* IP options, source routing among them */
    VS_DROP_FRAGMENT,
    VS_DROP_PROTOCOL,     /* neither TCP, UDP nor ICMP echo */
    VS_DROP_RANGE,        /* always-denied range */
    VS_DROP_POLICY,       /* the sandbox's own policy */
    VS_DROP_NO_SESSION,   /* TCP without SYN and without a session */
    VS_DROP_LIMIT,        /* the sandbox's number of sessions */
    VS_DROP_SESSION_RATE, /* the sandbox's new sessions per second */
    VS_DROP_TABLE_FULL,
    VS_DROP_NO_PORT, /* every tried port to that remote endpoint is in use */
    VS_DROP_RATE,    /* token bucket */
    VS_DROP_ARP,     /* not a question for the gateway */
    VS_DROP_UNKNOWN_TAP,
    VS_DROP_REASONS
};

enum vs_tcp_state {
    VS_SYN_SENT = 1,
    VS_SYN_RECEIVED,
    VS_ESTABLISHED,
    VS_FIN_OUT,
    VS_FIN_IN,
    VS_TIME_WAIT,
    VS_RESET
};

/* Map `vs_config`, one entry. The first three fields are the same in every ABI: a loader of another one
 * cleans up by them. */
struct vs_config {
    __u32 uplink_ifindex;
    __u32 uplink_ip;       /* source address of what leaves */
    __u32 service_ifindex; /* far end of the service pair: what is redirected there arrives at the node's own
                              stack; 0 = none */
    __u32 service_ip;      /* the node's address for DNS; 0 = none */
    __u32 service_net;     /* sandboxes appear to the node's services as service_net + slot (host order) */
    __u8 service_mac[6];   /* of the near end */
    __u16 port_first;      /* host order: ports of the uplink's address that are this node's … */
    __u32 port_count;      /* … and how many */
    __u32 abi;
    __u32 net, mask; /* of the uplink's address: what lies in it is its own next hop … */
    __u32 gateway;   /* … and this is everything else's; 0 = ask the routing table for each packet */
    __u32 epoch;     /* grows when the denied ranges change: sessions are checked anew */
};

struct vs_bucket {
    __u64 rate;   /* bytes per second; 0 = no limit */
    __u64 burst;  /* bytes */
    __s64 tokens; /* bytes */
    __u64 last_ns;
};

/* Map `vs_sandboxes`, key: ifindex of the TAP. */
#define VS_LIVE 1u /* may send; without it the TAP only waits in a pool */
struct vs_sandbox {
    __u32 slot;          /* < VS_MAX_SANDBOXES; key of the sandbox's policy, counters and service address */
    __u32 max_sessions;  /* 0 = none */
    __u32 max_new_per_s; /* 0 = none */
    __u32 flags;
    __u64 window_ns; /* start of the current second of new sessions */
    __u32 window_new;
    __u32 pad;
    __s64 sessions; /* open now; counted by both programs and the sweeper */
};

/* Map `vs_rules`, key: slot, shared as memory with the loader: a change of rules is one store of `word`, so
 * that it costs no system call and no grace period. `word`: policy (key in vs_policies, 0 = none) in the low
 * half, and in the high half a number that grows at each change. `names` is stored before `word` and tells
 * one set of allowed names from another. */
struct vs_rules_word {
    __u64 word;
    __u32 names;
    __u32 pad;
};

/* Map `vs_buckets`, key: slot. Apart from vs_sandbox because a lock may stand only once in a value. */
struct vs_buckets {
    struct bpf_spin_lock lock;
    __u32 pad;
    struct vs_bucket up, down;
};

/* Map `vs_counters`, per CPU, key: slot. Bytes of IP packets. */
struct vs_counters {
    __u64 up_packets, up_bytes, down_packets, down_bytes;
};

/* Map `vs_drops`, per CPU, key: slot. Apart from the others because only those are in every packet's way. */
struct vs_drops {
    __u64 count[VS_DROP_REASONS];
};

/* Forward: what the guest's packet shows. Map `vs_forward`. */
struct vs_forward_key {
    __u32 tap;
    __u32 remote_ip;
    __u16 remote_port; /* 0 for ICMP */
    __u16 guest_port;  /* identifier for ICMP */
    __u8 proto;
    __u8 pad[3];
};
struct vs_session {
    __u32 last_s; /* CLOCK_MONOTONIC seconds of the last packet */
    __u32 slot;
    __u16 nat_port;
    __u8 state;   /* vs_tcp_state for TCP; 0 new, 1 answered for UDP and ICMP */
    __u8 by_name; /* open only because of a name: `names` is of vs_rules_word then */
    __u32 epoch;  /* of the rules that it was last checked against */
    __u32 names;
};

/* Reverse: what the world's packet shows. Map `vs_reverse`. */
struct vs_reverse_key {
    __u32 remote_ip;
    __u16 remote_port;
    __u16 nat_port;
    __u8 proto;
    __u8 pad[3];
};
struct vs_reverse_value {
    __u32 tap;
    __u16 guest_port;
    __u16 pad;
};

/* One policy: an LPM trie (map of maps `vs_policies`, key: a number, see vs_rules_word). The list comes
 * before the address, so that allow and deny are two tries in one map and one change of the number changes
 * both. */
enum vs_list { VS_LIST_ALLOW = 0, VS_LIST_DENY = 1 };
struct vs_policy_key {
    __u32 prefixlen; /* 8 + bits of the address */
    __u8 list;
    __u8 ip[4];
} __attribute__((packed));

/* Ranges that no sandbox reaches, and the operator's exceptions. Map `vs_ranges`, value: 0 denied, 1 opened.
 * The longest prefix decides. */
struct vs_range_key {
    __u32 prefixlen;
    __u8 ip[4];
};

/* Addresses that DNS handed out for an allowed name. Map `vs_names`, value: CLOCK_MONOTONIC second of the
 * end. */
struct vs_name_key {
    __u32 slot;
    __u32 ip;
};

/* When a sandbox's last sample was taken, and how many drops have had none since. Map `vs_sampled`, key:
 * slot. */
struct vs_sampled {
    __u64 ns;
    __u32 missed;
    __u32 pad;
};

/* One session in the answer of the program `list_sessions`. */
#define VS_LISTED_MAX 128
struct vs_listed {
    struct vs_forward_key key;
    struct vs_session session;
};

/* One sampled drop, through the ring buffer `vs_samples`. */
struct vs_sample {
    __u64 ns;
    __u32 slot;
    __u32 reason;
    __u32 remote_ip;
    __u16 remote_port;
    __u8 proto;
    __u8 pad;
    __u32 missed; /* drops of the sandbox before this one that had no sample */
    __u32 pad2;
};
