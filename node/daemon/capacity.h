/* What this node can hold: the figures for the masters, and the node's own last word on a start (DESIGN.md
 * §3.3). */
#pragma once

#include "node/daemon/node.h"
#include "proto/master.pb-c.h"

struct sandbox;
/** Whether one more guest fits now; for a sandbox that runs (a rollback) whether its new VM does. `sb` may be
 * NULL. ERR_CAPACITY names the resource, ERR_STORAGE_FULL when the disk is. A guest's memory size is a limit
 * and not a need (clones share what they do not write), so it is not asked for. */
int capacity_admit(struct node *n, const struct sandbox *sb, struct err *e);

void capacity_fill(struct node *n, Cube__Master__V1__Capacity *out);

/** MemAvailable is below the reserve: creates are refused. */
bool capacity_pressure(struct node *n);
