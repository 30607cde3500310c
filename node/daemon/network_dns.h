/* cube-node's side of node/dns/report.h: passes the sockets, says which slots have rules by name, opens what
 * was answered. */
#pragma once

#include "node/daemon/node.h"

void network_dns_start(struct node *n);

/** Whether answers for this slot shall wait for us. Remembered and said again after a reconnect. */
void network_dns_watch(uint32_t slot, bool on);

/** Implemented by network.c: addresses handed out for a name. */
void network_name_answered(uint32_t slot, const char *name, const uint32_t *addresses, size_t n,
                           uint32_t ttl_s);
