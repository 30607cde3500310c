/* What CubeVS needs of the host's network: the pair to the node's own services, reserved ports, and the
 * uplink's name. Needs CAP_NET_ADMIN. */
#pragma once

#include "lib/base/err.h"
#include "node/net/vs_ports.h"

#include <stdint.h>

/** Makes the veth pair `near` and `far` when they are missing; gives `near` the address `ip`/`bits` (network
 * order); no ARP, no IPv6, up. Idempotent. */
int vs_host_pair(const char *near, const char *far, uint32_t ip, uint8_t bits, struct err *e);

/** Removes the pair; success when it is not there. */
int vs_host_pair_remove(const char *near, struct err *e);

/** Adds CubeVS's ports to ip_local_reserved_ports, so that no socket of the host takes one for itself.
 * Idempotent. */
int vs_host_reserve_ports(struct vs_ports p, struct err *e);

struct vs_route {
    uint32_t net, mask, gateway; /* network order; gateway 0 = the routes are not that simple */
};
/** Reads the routes through an interface: when they are its own network and one default gateway, that is all
 * that a packet needs to find its next hop. */
void vs_host_route(const char *uplink, struct vs_route *out);

/** The interface of the IPv4 default route; `out` holds 16 bytes. */
int vs_host_uplink(char out[16], struct err *e);
