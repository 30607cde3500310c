/* Owns the list of metrics and its text form (Prometheus exposition 0.0.4); invariant: registration happens
 * before the threads start, so the list is read without a lock. */
#include "lib/net/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 20
#define FIRST_BUCKET_US 50

#define WRITERS_MAX 8

static struct metric *first, **last = &first;
static void (*writers[WRITERS_MAX])(struct buf *out);

/* Metrics of one name stand together, because the format wants one HELP and TYPE per name. */
void metric_register(struct metric *m)
{
    for (struct metric *at = first; at; at = at->next) {
        bool last_of_name =
            strcmp(at->name, m->name) == 0 && (!at->next || strcmp(at->next->name, m->name) != 0);
        if (!last_of_name)
            continue;
        m->next = at->next;
        at->next = m;
        if (!m->next)
            last = &m->next;
        return;
    }
    m->next = NULL;
    *last = m;
    last = &m->next;
}

void metrics_add_writer(void (*write)(struct buf *out))
{
    for (size_t i = 0; i < WRITERS_MAX; i++) {
        if (writers[i] && writers[i] != write)
            continue;
        writers[i] = write;
        return;
    }
    abort(); /* a mistake in the program */
}

void metric_add(struct metric *m, int64_t n)
{
    atomic_fetch_add_explicit(&m->value, n, memory_order_relaxed);
}

void metric_set(struct metric *m, int64_t v)
{
    atomic_store_explicit(&m->value, v, memory_order_relaxed);
}

void metric_observe_us(struct metric *m, int64_t us)
{
    int64_t limit = FIRST_BUCKET_US;
    int i = 0;
    while (i < BUCKETS && us > limit) {
        limit *= 2;
        i++;
    }
    if (i < BUCKETS)
        atomic_fetch_add_explicit(&m->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->value, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->sum_us, us, memory_order_relaxed);
}

static int64_t load(_Atomic int64_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

static void write_histogram(struct buf *out, struct metric *m)
{
    const char *labels = m->labels ? m->labels : "";
    const char *sep = *labels ? "," : "";
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    int64_t limit = FIRST_BUCKET_US, below = 0;
    for (int i = 0; i < BUCKETS; i++, limit *= 2) {
        below += load(&m->buckets[i]);
        buf_printf(out, "%s_bucket{%s%sle=\"%g\"} %" PRId64 "\n", m->name, labels, sep, (double)limit / 1e6,
                   below);
    }
    int64_t n = load(&m->value);
    if (n < below)
        n = below; /* an observation between the two reads: +Inf must not be below the last bucket */
    buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRId64 "\n", m->name, labels, sep, n);
    buf_printf(out, "%s_sum%s%s%s %.6f\n", m->name, open, labels, close, (double)load(&m->sum_us) / 1e6);
    buf_printf(out, "%s_count%s%s%s %" PRId64 "\n", m->name, open, labels, close, n);
}

void metrics_write(struct buf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    const char *previous = "";
    for (struct metric *m = first; m; m = m->next) {
        if (strcmp(m->name, previous) != 0)
            buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help ? m->help : "", m->name,
                       types[m->kind]);
        previous = m->name;
        if (m->kind == METRIC_HISTOGRAM)
            write_histogram(out, m);
        else if (m->labels)
            buf_printf(out, "%s{%s} %" PRId64 "\n", m->name, m->labels, load(&m->value));
        else
            buf_printf(out, "%s %" PRId64 "\n", m->name, load(&m->value));
    }
    for (size_t i = 0; i < WRITERS_MAX && writers[i]; i++)
        writers[i](out);
}
