/* Counters, gauges and fixed-bucket histograms with Prometheus text exposition. Registration at start only;
 * updates are plain relaxed atomics on the caller's memory, no lock, no allocation. */
#pragma once

#include "lib/base/buf.h"

struct metric {
    const char *name;   /* "cube_api_requests_total" */
    const char *labels; /* "path=\"/sandboxes\",code=\"201\"" or NULL */
    const char *help;
    enum { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM } kind;
    _Atomic int64_t value;       /* counter, gauge; histogram: number of observations */
    _Atomic int64_t sum_us;      /* histogram */
    _Atomic int64_t buckets[20]; /* histogram: le 50 µs · 2^i */
    struct metric *next;
};

void metric_register(struct metric *m); /* kept for ever */
void metric_add(struct metric *m, int64_t n);
void metric_set(struct metric *m, int64_t v);
void metric_observe_us(struct metric *m, int64_t us);
/** Adds a function that writes whole families of its own, for labels that come and go; at most 8, kept for
 * ever. */
void metrics_add_writer(void (*write)(struct buf *out));
void metrics_write(struct buf *out);
