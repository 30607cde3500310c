/* The node's self-test: before guests of a kernel start here, one boots and a probe runs in its user mode
 * (docs/kernel.md, "Self-test"). */
#pragma once

#include "node/daemon/node.h"

/** Whether the kernel of this template works on this host: at once when it passed before (since the host's
 * boot, with this version of the node and this class of host), else a guest boots. -1 with the reason: the
 * template must not be offered. In a fiber; one test at a time. */
int selftest_template(struct node *n, const char *template_id, struct err *e);

/** Tests all templates of the store, in a fiber of its own. Starts wait for it (`selftest_admit`). */
void selftest_start(struct node *n);

/** Whether a start may go on: waits for a test under way; -1 with the reason when no kernel passed and one
 * failed. In a fiber. */
int selftest_admit(struct node *n, struct err *e);

/** The reason why no guest may start here, or "". */
const char *selftest_unfit(void);
