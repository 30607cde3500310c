/* The metrics of cube-api. */
#pragma once

#include "api/route.h"

/** Registers everything; before the threads start. */
void api_metrics_init(void);
/** One ended request; `id` is ROUTE_COUNT when no route was found. */
void api_metrics_request(enum route_id id, int status, int64_t us);
void api_metrics_unknown_fields(unsigned n);
void api_metrics_in_flight(int delta);
void api_metrics_disconnect(void);
void api_metrics_master_retry(void);
void api_metrics_incomplete(void);
void api_metrics_rate_limited(void);
