/* The messages in which a node tells masters about its sandboxes. */
#pragma once

#include "node/daemon/sandbox.h"
#include "proto/master.pb-c.h"

struct report {
    Cube__Master__V1__NodeReport message;
    Cube__Master__V1__Capacity capacity;
};

/** Fills a report with all sandboxes, or with those that changed since the last one (and marks them told).
 * `report_free` afterwards; the specs inside are borrowed from the sandboxes. */
void report_fill(struct node *n, bool full, struct report *out);
void report_free(struct report *r);

/** The same list for the List call. */
void report_sandboxes(struct node *n, bool only_changed, size_t *count,
                      Cube__Master__V1__NodeSandbox ***list);
void report_sandboxes_free(size_t count, Cube__Master__V1__NodeSandbox **list);
