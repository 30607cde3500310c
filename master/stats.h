/* Counters of cube-master for /metrics. */
#pragma once

#include "lib/net/metrics.h"
#include "master/commit.h"

void stats_register(void);
void stats_commit(enum commit_outcome outcome);
void stats_create(bool ok, int64_t took_us);     /* whole create, as its caller waited for it */
void stats_node_start(bool ok, int64_t took_us); /* one attempt on one node */
void stats_reconciled(void);
void stats_not_replicated(void); /* a commit that no replica confirmed in time */
void stats_cell(int state);      /* enum cell_state */
