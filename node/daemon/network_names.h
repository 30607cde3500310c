/* Which addresses are open for a sandbox because of a name: remembered with the name, so that a change of
 * rules closes what is no longer allowed. */
#pragma once

#include "node/net/vs.h"
#include "node/net/vs_rules.h"

/** Opens an address that was answered for `name`. At most 1024 at a time and slot: more stay closed. */
int network_names_open(struct vs *v, uint32_t slot, const char *name, uint32_t ip, uint32_t ttl_s,
                       struct err *e);

/** Before new rules hold: closes what they do not allow by name. */
void network_names_review(struct vs *v, uint32_t slot, const struct vs_rules *r);

/** After a restart the names of open addresses are unknown: the next review closes those. */
void network_names_unknown(uint32_t slot);

/** The slot is free. */
void network_names_forget(uint32_t slot);

/** Calls `each` for what is open now. */
void network_names_each(uint32_t slot,
                        void (*each)(const char *name, uint32_t ip, int64_t left_s, void *data), void *data);

/** A number for a set of names; order does not matter. */
uint32_t network_names_number(const struct vs_rules *r);
