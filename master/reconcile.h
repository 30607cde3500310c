/* Bringing records and nodes together again: what overstays, what a node reports otherwise than recorded,
 * what it misses. */
#pragma once

#include "master/ops.h"

/** Starts the sweeper of transient states whose owner died or whose deadline passed. */
void reconcile_start(struct master *m);

/** A node's report disagrees with a record: `s` is what it said (NULL for "absent"). In a fiber. */
void reconcile_report(struct master *m, const char *node, const char *id, const char *verdict,
                      const Cube__Master__V1__NodeSandbox *s);

/** A node stopped reporting: its sandboxes are lost until it returns. In a fiber of its own. */
void reconcile_node_lost(struct master *m, const char *node);

/** The same for another reason; answers how many were lost. */
unsigned reconcile_node_gone(struct master *m, const char *node, const char *why);

/** A node is under memory pressure: idle sandboxes of mode `idle` on it are paused, one by one, until that is
 * over. At once; the work is done in a fiber of its own, one per node. */
void reconcile_pressure_later(struct master *m, const char *node);

/** Pauses or moves nothing: waits until a draining node is empty of running sandboxes by pausing them one by
 * one. */
void reconcile_drain_later(struct master *m, const char *node);
