/* Directories of ended VMs that the next ones use again. */
#pragma once

#include "node/daemon/node.h"

/** Opens <store>/vm-spare, and removes what a daemon before left there. */
int vm_spare_open(struct node *n, struct err *e);

/** Makes <store>/vm/<name> out of a spare directory: base/, layer and console.log are in it, all empty. -1
 * when there is none. */
int vm_spare_take(struct node *n, const char *name);

/** Gives <store>/vm/<name> back. Its process must be gone; a layer that a snapshot keeps is left to the
 * snapshot. Returns -1, with the directory still there, when it is not worth keeping. */
int vm_spare_give(struct node *n, const char *name);
