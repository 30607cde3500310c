/* CubeVS for the node: loads and attaches the BPF programs, and changes what they know. Everything that the
 * programs need is pinned below one directory of a BPF file system: traffic flows on while no process of ours
 * runs, and the next process finds its maps again. Calls block for microseconds and are made from one thread.
 * Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. */
#pragma once

#include "lib/base/err.h"
#include "node/net/vs_ports.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vs;

struct vs_options {
    const char *pin_dir; /* below a mounted bpffs; made when missing */
    const char *uplink;  /* interface that leads to the world */
    uint32_t uplink_ip;  /* network order; 0 = the interface's first IPv4 address */
    /* The veth pair to the node's own services; NULL = sandboxes have no DNS. */
    const char *service_near, *service_far;
    uint32_t service_ip;   /* network order: the node's address on the near end */
    uint32_t service_net;  /* host order: sandbox slot n asks from service_net + n */
    struct vs_ports ports; /* of the uplink's address; zero = the node's own of before, or a free range */
};

/** Opens the pinned state, or makes it; programs are replaced atomically by this build's, sessions are kept.
 */
int vs_open(struct vs **out, const struct vs_options *o, struct err *e);
/** Follows a change of the uplink's routes; call now and then. */
void vs_follow_routes(struct vs *v);
/** The ports that the node translates with. */
struct vs_ports vs_ports_of(const struct vs *v);
/** Forgets this process's handles. What runs in the kernel goes on. */
void vs_close(struct vs *v);
/** The end of CubeVS on this node, without a process that has it open: detaches every program, removes the
 * service pair and every pin. Success when there is nothing. */
int vs_remove(const char *pin_dir, struct err *e);

struct vs_limits {
    uint32_t max_sessions;                     /* 0 = none */
    uint32_t max_new_per_s;                    /* new sessions per second; 0 = none */
    uint64_t up_bytes_per_s, down_bytes_per_s; /* 0 = none */
};

/** TAPs that are prepared or attached, with their slots; at most `max`. */
size_t vs_taps(struct vs *v, unsigned *taps, uint32_t *slots, size_t max);
/** The slot of an attached TAP; 0 when it is not attached. */
uint32_t vs_slot(struct vs *v, unsigned tap_ifindex);

/** Does beforehand what vs_attach would else do: programs on the TAP, empty counters. The TAP carries nothing
 * yet. */
int vs_prepare(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct err *e);
/** Lets the sandbox behind a TAP send. `slot` < 16384 is the caller's, unique among those attached. Policy is
 * set before, or all is allowed but the always-denied ranges. */
int vs_attach(struct vs *v, unsigned tap_ifindex, uint32_t slot, const struct vs_limits *limits,
              struct err *e);
/** Ends the sandbox's sessions and forgets TAP, policy, names and counters. Idempotent; the TAP may be gone
 * already. */
int vs_detach(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct err *e);
/** As vs_detach, but with `whole` false only for the TAP: the slot is another's by now. */
int vs_detach_tap(struct vs *v, unsigned tap_ifindex, uint32_t slot, bool whole, struct err *e);
int vs_set_rate(struct vs *v, uint32_t slot, uint64_t up_bytes_per_s, uint64_t down_bytes_per_s,
                struct err *e);

struct vs_cidr {
    uint32_t ip;  /* network order */
    uint8_t bits; /* 0–32 */
};

/** Replaces the sandbox's policy in one step, seen by the next packet, also of open sessions: allow wins over
 * deny, what neither names is allowed. `names` tells one set of allowed names from another: sessions that a
 * name let in outlive the answer's time while it stays the same. */
int vs_set_policy(struct vs *v, uint32_t slot, const struct vs_cidr *allow, size_t n_allow,
                  const struct vs_cidr *deny, size_t n_deny, uint32_t names, struct err *e);

/** An address that DNS handed out for an allowed name, open for `ttl_s` seconds. */
int vs_allow_name(struct vs *v, uint32_t slot, uint32_t ip, uint32_t ttl_s, struct err *e);
/** Closes it before its time. */
int vs_forget_name(struct vs *v, uint32_t slot, uint32_t ip);
/** Closes all of them. */
void vs_forget_names(struct vs *v, uint32_t slot);

/** Ranges that no sandbox reaches: the built-in list plus `denied`, with the operator's `opened` as
 * exceptions; the longest prefix decides. */
int vs_set_ranges(struct vs *v, const struct vs_cidr *denied, size_t n_denied, const struct vs_cidr *opened,
                  size_t n_opened, struct err *e);

/** Ends old sessions, closes names whose time is over, and readies tables for rules; call every 5 s. Fills
 * how many ended and how many are open (either may be NULL). */
int vs_sweep(struct vs *v, uint32_t *removed, uint32_t *left, struct err *e);

struct vs_totals {
    uint64_t up_packets, up_bytes, down_packets, down_bytes;
    uint64_t drops[32]; /* by enum vs_drop of vs_abi.h */
    int64_t sessions;
};
int vs_read(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct vs_totals *out, struct err *e);

/** Bytes that the sandbox has sent to others since vs_prepare; 0 when unknown. */
uint64_t vs_up_bytes(struct vs *v, uint32_t slot);

struct vs_session_info {
    uint32_t remote_ip; /* network order */
    uint16_t remote_port, guest_port;
    uint8_t proto;
    uint32_t idle_s;
    const char *state; /* static */
};
/** Sessions of a TAP, in no order; at most `max` and 128. Walks the table of all sessions: microseconds for a
 * few thousand, tens of milliseconds for a million. */
size_t vs_sessions(struct vs *v, unsigned tap_ifindex, struct vs_session_info *out, size_t max);

/* A drop that was sampled: at most one per 50 ms and sandbox. */
struct vs_drop_info {
    uint32_t slot, reason;
    uint32_t remote_ip; /* network order; 0 = unknown */
    uint16_t remote_port;
    uint8_t proto;
    uint32_t missed; /* drops of the sandbox before this one that had no sample */
};
struct vs_watch;
/** Takes the samples of the node; one reader at a time. NULL when that fails. */
struct vs_watch *vs_watch_open(struct vs *v, void (*each)(const struct vs_drop_info *d, void *data),
                               void *data);
/** Calls `each` for what has come since. */
void vs_watch_read(struct vs_watch *w);

/** Name of a drop reason for people, "policy"; "?" when out of range. */
const char *vs_drop_name(unsigned reason);

/** Parses "1.2.3.4" or "1.2.3.0/24"; host bits must be zero. */
int vs_cidr_parse(const char *s, struct vs_cidr *out, struct err *e);

/** For tests: descriptor of a program ("from_cube", "from_world", "from_host"). */
int vs_program_fd(struct vs *v, const char *name);
