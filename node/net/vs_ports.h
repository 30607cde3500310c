/* Which ports of the uplink's address belong to this node's sandboxes. Nodes that share an uplink share its
 * address, so each needs a range of its own; the range is written into the handle of the node's filter on the
 * uplink, where every other node finds it, also while its daemon is away. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

struct vs_ports {
    uint16_t first, last; /* host order, both included; 0 and 0 = choose */
};

/** Reads "40000-56383" or "auto". At least 256 ports above 1023. */
int vs_ports_parse(const char *s, struct vs_ports *out, struct err *e);

/** The handle of the filter that claims a range. Never 0. */
uint32_t vs_ports_handle(struct vs_ports p);

/** Finds the range of the node whose filter on `uplink` has `priority`. `wanted` "choose": the one that it
 * has already, else the first of the built-in ranges that meets no other node's. Fails with ERR_CONFLICT,
 * naming the other node's range, when `wanted` meets one or nothing is free. `held`, when not NULL, gets a
 * descriptor that keeps others from choosing until it is closed (-1 when another held it for too long). */
int vs_ports_choose(unsigned uplink, uint32_t priority, struct vs_ports wanted, struct vs_ports *out,
                    int *held, struct err *e);

/** Removes filters of `priority` from `uplink` but the one with the handle `keep` (0 = none). */
int vs_ports_release(unsigned uplink, uint32_t priority, uint32_t keep, struct err *e);
