/* The cell as a whole: whether Redis is there and whole, who else lives, and the journal from which the
 * catalog comes back. */
#pragma once

#include "master/journal.h"
#include "master/master.h"

/** Connects to Redis, opens or finds the cell, announces this master, follows route events. */
int cell_start(struct master *m, struct err *e);
/** A node sent a full report: while recovering, the cell is ready once all known nodes have. In a fiber. */
void cell_node_reported(struct master *m, const char *node);

/** Ends all report streams, so that the nodes register and report in full again. */
void links_reset(const char *why);

/* ---- journal of the catalog (internal.md §3) ---- */

/** Replays the final state into Redis where entries are missing; in a fiber. */
int journal_replay(struct master *m, struct err *e);
/** Writes one entry of the journal into Redis unless it is there; in a fiber. */
int catalog_replay(struct master *m, const char *kind, const uint8_t *payload, size_t n, struct err *e);
/** Remembers that this node exists, so that a recovering cell waits for its report; written once, and again
 * when it `returned` from being lost. */
void journal_node(struct master *m, const char *node, bool returned);
/** A recovering cell shall not wait for it. */
void journal_node_lost(struct master *m, const char *node);
/** Names of the nodes of the journal, one call each. */
void journal_nodes(struct master *m, void (*each)(const char *node, void *data), void *data);
