/* The ranges that no sandbox reaches, in one table for the BPF map and for the name service. */
#pragma once

#include "node/net/vs.h"

extern const char *const vs_always_denied[];
extern const size_t vs_always_denied_count;

/** Whether an address (network order) lies in an always-denied range and in none of `opened`
 * ("10.1.0.0/16,…", may be ""). The longest prefix decides; what cannot be read in `opened` opens nothing. */
bool vs_range_denied(uint32_t ip, const char *opened);
