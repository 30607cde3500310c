/* What this node can hold: the figures for the masters, and the node's own last word on a start (DESIGN.md
 * §3.3). */
#pragma once

#include "node/daemon/node.h"
#include "proto/master.pb-c.h"

/** Whether one more guest fits now. ERR_CAPACITY names the resource, ERR_STORAGE_FULL when the disk is. */
int capacity_admit(struct node *n, uint32_t memory_mib, struct err *e);

void capacity_fill(struct node *n, Cube__Master__V1__Capacity *out);

/** MemAvailable is below the reserve: creates are refused. */
bool capacity_pressure(struct node *n);
