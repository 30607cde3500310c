/* The node's own watch over deadlines, for when no master is there (internal.md §10), and the end of
 * tombstones. */
#pragma once

#include "node/daemon/node.h"

void deadline_start(struct node *n);
