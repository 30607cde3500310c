/* Owns the counters of the API. Invariant: their number is fixed by the table of routes, so no client can
 * grow them. */
#include "api/metrics.h"

#include "lib/net/metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define CLASSES 4 /* 2xx and 3xx, 4xx, 5xx, 499 */
static const char *const class_names[CLASSES] = {"2xx", "4xx", "5xx", "cancelled"};

static struct metric requests[ROUTE_COUNT + 1][CLASSES];
static struct metric seconds[ROUTE_COUNT + 1];
static struct metric unknown_fields = {.name = "cube_api_unknown_fields_total",
                                       .help = "Fields in request bodies that this version does not know",
                                       .kind = METRIC_COUNTER};
static struct metric in_flight = {.name = "cube_api_requests_in_flight",
                                  .help = "Requests that wait for their answer",
                                  .kind = METRIC_GAUGE};
static struct metric disconnects = {.name = "cube_api_client_disconnects_total",
                                    .help = "Clients that left before their answer",
                                    .kind = METRIC_COUNTER};
static struct metric master_retries = {.name = "cube_api_master_retries_total",
                                       .help = "Calls that were sent to a master again",
                                       .kind = METRIC_COUNTER};
static struct metric incomplete = {.name = "cube_api_incomplete_requests_total",
                                   .help = "Connections closed because their request did not become complete",
                                   .kind = METRIC_COUNTER};
static struct metric rate_limited = {.name = "cube_api_rate_limited_total",
                                     .help = "Requests answered 429 by the rate limit",
                                     .kind = METRIC_COUNTER};

static char *labels(const char *fmt, const char *a, const char *b)
{
    char *s = NULL;
    return asprintf(&s, fmt, a, b) < 0 ? NULL : s;
}

void api_metrics_init(void)
{
    for (int i = 0; i <= ROUTE_COUNT; i++) {
        const char *name = i < ROUTE_COUNT ? routes[i].name : "none";
        for (int k = 0; k < CLASSES; k++) {
            requests[i][k] =
                (struct metric){.name = "cube_api_requests_total",
                                .labels = labels("route=\"%s\",code=\"%s\"", name, class_names[k]),
                                .help = "Requests by route and class of status",
                                .kind = METRIC_COUNTER};
            metric_register(&requests[i][k]);
        }
        seconds[i] = (struct metric){.name = "cube_api_request_seconds",
                                     .labels = labels("route=\"%s\"%s", name, ""),
                                     .help = "Time from the complete request to its answer",
                                     .kind = METRIC_HISTOGRAM};
        metric_register(&seconds[i]);
    }
    metric_register(&unknown_fields);
    metric_register(&in_flight);
    metric_register(&disconnects);
    metric_register(&master_retries);
    metric_register(&incomplete);
    metric_register(&rate_limited);
}

void api_metrics_request(enum route_id id, int status, int64_t us)
{
    int class = status == 499 ? 3 : status >= 500 ? 2 : status >= 400 ? 1 : 0;
    metric_add(&requests[id][class], 1);
    metric_observe_us(&seconds[id], us);
}

void api_metrics_unknown_fields(unsigned n)
{
    metric_add(&unknown_fields, n);
}

void api_metrics_in_flight(int delta)
{
    metric_add(&in_flight, delta);
}

void api_metrics_disconnect(void)
{
    metric_add(&disconnects, 1);
}

void api_metrics_master_retry(void)
{
    metric_add(&master_retries, 1);
}

void api_metrics_incomplete(void)
{
    metric_add(&incomplete, 1);
}

void api_metrics_rate_limited(void)
{
    metric_add(&rate_limited, 1);
}
