/* Coming back: finding again what runs, and removing what nobody needs. */
#pragma once

#include "node/daemon/node.h"

/** Reads all records, re-adopts their VMs without disturbing them, settles what was in between, and removes
 * orphans. In a fiber, once, with the jailer connected. */
void adopt_all(struct node *n);

/** Removes VM processes, TAPs and directories that no VM of ours names. */
void sweep(struct node *n);

/** Sweeps from time to time. */
void sweep_start(struct node *n);
