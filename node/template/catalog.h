/* The templates in this node's store, and their snapshots for its class. */
#pragma once

#include "node/daemon/node.h"

struct templates;

struct templates *catalog_new(struct node *n);

/** Looks again; true when the set changed. */
bool catalog_rescan(struct node *n);

/** IDs of the templates that sandboxes start from at once (their snapshot is there and was read through, or
 * they boot), valid until the next rescan. */
char **catalog_ids(const struct templates *t, size_t *count);

/** Version of envd that the guests of this node last said, or "". */
const char *catalog_envd_version(const struct templates *t);
void catalog_set_envd_version(struct templates *t, const char *version);

/** Starts the fiber that watches the store and makes the snapshots that are missing (`node.snapshots`). */
void catalog_start(struct node *n);
