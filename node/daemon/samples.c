/* Owns the metric points of sandboxes, in memory: a ring of the newest. Invariant: a sample wakes a guest, so
 * idle ones are asked rarely: every metrics_ms in a sandbox's first minute or while it works, six times as
 * rarely when it is idle, and several times within the idle time after which it would be paused. */
#include "node/daemon/samples.h"

#include "lib/base/clock.h"
#include "node/daemon/guest.h"
#include "node/daemon/master_link.h"
#include "node/daemon/network.h"
#include "node/daemon/network_watch.h"
#include "node/daemon/sandbox.h"

#define POINTS 240
#define ANSWER_MS 3000
#define YOUNG_MS 60000
#define IDLE_PCT 1.0
#define IDLE_FACTOR 6
#define IDLE_PARTS 4 /* a sandbox in mode `idle` is looked at so often within its idle time */

struct samples {
    Cube__Master__V1__MetricPoint *point; /* POINTS of them, from the first sample to the sandbox's end */
    size_t count, next;
    uint64_t cpu_busy_us; /* of the last sample */
    int64_t at_us;
    bool busy, asking;
};

struct samples *samples_new(void)
{
    struct samples *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    return s;
}

void samples_free(struct samples *s)
{
    free(s->point);
    free(s);
}

void samples_end(struct samples *s)
{
    free(s->point);
    s->point = NULL;
    s->count = s->next = 0;
}

static void keep(struct sandbox *sb, const Cube__Init__V1__MetricsReply *m,
                 const Cube__Init__V1__HealthReply *h, const Cube__Vmm__V1__Stats *v, int64_t now_us)
{
    struct samples *s = sb->samples;
    if (!s->point && !(s->point = calloc(POINTS, sizeof *s->point)))
        abort();
    Cube__Master__V1__MetricPoint *p = &s->point[s->next];
    cube__master__v1__metric_point__init(p);
    double elapsed = (double)(now_us - s->at_us);
    uint32_t cpus = m->cpu_count ? m->cpu_count : 1;
    p->ts_ms = clock_realtime_ms();
    p->sandbox_id = sb->id;
    p->cpu_count = m->cpu_count;
    if (s->at_us && elapsed > 0 && m->cpu_busy_us >= s->cpu_busy_us) {
        p->cpu_used_pct = 100.0 * (double)(m->cpu_busy_us - s->cpu_busy_us) / elapsed;
        if (p->cpu_used_pct > 100.0 * cpus)
            p->cpu_used_pct = 100.0 * cpus;
    }
    p->mem_total = m->mem_total;
    p->mem_used = m->mem_used;
    p->mem_cache = m->mem_cache;
    p->disk_total = m->disk_total;
    p->disk_used = m->disk_used;
    p->net_rx_bytes = v->net_rx_bytes;
    p->net_tx_bytes = v->net_tx_bytes;
    struct vs_totals net;
    if (network_read(sb->vm, &net)) { /* what passed, where the device also counts what was dropped */
        p->net_rx_bytes = net.down_bytes;
        p->net_tx_bytes = net.up_bytes;
        p->net_rx_packets = net.down_packets;
        p->net_tx_packets = net.up_packets;
    }
    sb->cpu_milli = (uint32_t)(p->cpu_used_pct * 10.0);
    sb->rss_mib = v->rss_bytes >> 20;
    s->busy = p->cpu_used_pct > IDLE_PCT;
    /* A command or terminal that runs counts whether somebody is connected to it or not. */
    sb->awake = h->exec_sessions || h->processes ? "exec"
                : sb->open_streams               ? "stream"
                : network_active(sb->vm)         ? "egress"
                : s->busy                        ? "cpu"
                                                 : "";
    if (*sb->awake) {
        sb->last_activity_ms = p->ts_ms;
        sb->changed = true; /* told with the next report, not at once */
    }
    s->cpu_busy_us = m->cpu_busy_us;
    s->at_us = now_us;
    s->next = (s->next + 1) % POINTS;
    s->count += s->count < POINTS;
}

int samples_take(struct sandbox *sb, struct err *e)
{
    struct samples *s = sb->samples;
    struct vm *vm = sb->vm;
    if (!vm || sb->state != SB_STATE(RUNNING) || s->asking)
        return err_set(e, ERR_CONFLICT, "%s is not running", sb->id);
    s->asking = true;
    Cube__Init__V1__MetricsReply m;
    Cube__Vmm__V1__Stats v = CUBE__VMM__V1__STATS__INIT;
    uint64_t gen = sb->gen;
    vm->users++;
    sb->users++;
    int rc = guest_metrics(vm, ANSWER_MS, &m, e);
    Cube__Init__V1__HealthReply h = CUBE__INIT__V1__HEALTH_REPLY__INIT;
    if (rc == 0) {
        guest_health(vm, ANSWER_MS, &h, NULL);
        vm_stats(vm, &v, NULL);
    }
    vm->users--;
    sb->users--; /* nothing waits from here on */
    s->asking = false;
    if (sb->vm != vm || sb->gen != gen || sb->state != SB_STATE(RUNNING))
        return rc;
    bool healthy = rc == 0 && h.envd_ok;
    if (h.oom_kills > sb->oom_kills) {
        sb->oom_kills = h.oom_kills;
        master_link_changed(sb);
    }
    if (healthy != sb->healthy)
        master_link_changed(sb);
    sb->healthy = healthy;
    if (rc == 0)
        keep(sb, &m, &h, &v, clock_mono_us());
    return rc;
}

struct due {
    int64_t now, every;
    size_t count;
    char id[64][22];
};

static void collect_due(struct sandbox *sb, void *data)
{
    struct due *d = data;
    if (sb->state != SB_STATE(RUNNING) || !fiber_lock_idle(&sb->op) || d->count == 64)
        return;
    bool young = d->now - sb->started_ms < YOUNG_MS;
    int64_t every = young || sb->samples->busy ? d->every : d->every * IDLE_FACTOR;
    if (sb->spec->idle_ms > 0 && every > sb->spec->idle_ms / IDLE_PARTS)
        every = sb->spec->idle_ms / IDLE_PARTS; /* work that begins unseen must be seen before the pause */
    if (clock_mono_us() - sb->samples->at_us >= every * 1000 && d->now - sb->started_ms > 500)
        snprintf(d->id[d->count++], 22, "%s", sb->id);
}

static void sampler(void *arg)
{
    struct node *n = arg;
    while (!n->stopping) {
        fiber_sleep(500);
        struct due d = {.now = clock_realtime_ms(), .every = n->cfg.metrics_ms};
        sandbox_each(n, collect_due, &d);
        for (size_t i = 0; i < d.count;
             i++) { /* one after the other: sampling never competes with itself for the host */
            struct sandbox *sb = sandbox_find(n, d.id[i]);
            struct err e = {0};
            if (sb && samples_take(sb, &e) < 0)
                sb->samples->at_us = clock_mono_us(); /* not again at once */
        }
    }
}

int64_t samples_age_ms(const struct sandbox *sb)
{
    return sb->samples->at_us ? (clock_mono_us() - sb->samples->at_us) / 1000 : INT64_MAX;
}

void samples_start(struct node *n)
{
    fiber_spawn(sampler, n);
}

void samples_fill(struct sandbox *sb, int64_t start_ms, int64_t end_ms, bool latest,
                  Cube__Master__V1__MetricsReply *out)
{
    struct samples *s = sb->samples;
    for (size_t i = latest && s->count ? s->count - 1 : 0; i < s->count; i++) {
        Cube__Master__V1__MetricPoint *p = &s->point[(s->next + POINTS - s->count + i) % POINTS];
        if ((start_ms && p->ts_ms < start_ms) || (end_ms && p->ts_ms > end_ms))
            continue;
        out->points = realloc(out->points, (out->n_points + 1) * sizeof *out->points);
        if (!out->points)
            abort();
        out->points[out->n_points++] = p;
    }
}
