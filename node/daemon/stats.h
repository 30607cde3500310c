/* The node's metrics (Prometheus, /metrics of the admin listener). */
#pragma once

#include "node/daemon/node.h"

void stats_register(void);
void stats_start(bool restore, bool from_pool, bool ok, int64_t us);
void stats_start_parts(int64_t vmm_us, int64_t init_us); /* of a successful one */
void stats_kill(void);
void stats_pause(bool ok, int64_t frozen_us, int64_t durable_us);
void stats_snapshot(bool ok);
void stats_lost(void);             /* a VM ended by itself */
void stats_gauges(struct node *n); /* from the node's tick */
