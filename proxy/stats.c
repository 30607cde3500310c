/* What cube-proxy counts and logs: latency histograms per phase, counters by result, and the access log,
 * which each worker collects and writes in one piece. */
#include "proxy/proxy.h"

#include "lib/base/clock.h"
#include "lib/base/jsonw.h"
#include "lib/base/log.h"
#include "lib/net/metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOG_FLUSH = 32768 };

static struct metric phases[PHASES] = {
    {.name = "cube_proxy_phase_seconds",
     .labels = "phase=\"route\"",
     .help = "Time of a request's phases.",
     .kind = METRIC_HISTOGRAM},
    {.name = "cube_proxy_phase_seconds",
     .labels = "phase=\"connect\"",
     .help = "Time of a request's phases.",
     .kind = METRIC_HISTOGRAM},
    {.name = "cube_proxy_phase_seconds",
     .labels = "phase=\"first_byte\"",
     .help = "Time of a request's phases.",
     .kind = METRIC_HISTOGRAM},
    {.name = "cube_proxy_phase_seconds",
     .labels = "phase=\"total\"",
     .help = "Time of a request's phases.",
     .kind = METRIC_HISTOGRAM},
};
static struct metric requests[] = {
    {.name = "cube_proxy_requests_total",
     .labels = "class=\"1xx\"",
     .help = "Requests by class of the answer.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_requests_total",
     .labels = "class=\"2xx\"",
     .help = "Requests by class of the answer.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_requests_total",
     .labels = "class=\"3xx\"",
     .help = "Requests by class of the answer.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_requests_total",
     .labels = "class=\"4xx\"",
     .help = "Requests by class of the answer.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_requests_total",
     .labels = "class=\"5xx\"",
     .help = "Requests by class of the answer.",
     .kind = METRIC_COUNTER},
};
static struct metric bytes[] = {
    {.name = "cube_proxy_body_bytes_total",
     .labels = "direction=\"in\"",
     .help = "Body bytes passed on.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_body_bytes_total",
     .labels = "direction=\"out\"",
     .help = "Body bytes passed on.",
     .kind = METRIC_COUNTER},
};
static struct metric events[] = {
    {.name = "cube_proxy_events_total",
     .labels = "event=\"refused_heads\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_events_total",
     .labels = "event=\"refused_clients\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_events_total",
     .labels = "event=\"no_descriptors\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_events_total",
     .labels = "event=\"h2_flood\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_events_total",
     .labels = "event=\"dropped_for_memory\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_events_total",
     .labels = "event=\"retries\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_events_total",
     .labels = "event=\"wakes\"",
     .help = "Things worth a look.",
     .kind = METRIC_COUNTER},
};
static struct metric streams[] = {
    {.name = "cube_proxy_streams_total",
     .labels = "way=\"link\"",
     .help = "Streams to guests by the way they were opened.",
     .kind = METRIC_COUNTER},
    {.name = "cube_proxy_streams_total",
     .labels = "way=\"tcp\"",
     .help = "Streams to guests by the way they were opened.",
     .kind = METRIC_COUNTER},
};
static struct metric links = {.name = "cube_proxy_relay_links",
                              .help = "Threads with a link to the relay of this host.",
                              .kind = METRIC_GAUGE};
static int log_fd = -1;

void stats_init(void)
{
    for (size_t i = 0; i < PHASES; i++)
        metric_register(&phases[i]);
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        metric_register(&requests[i]);
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        metric_register(&bytes[i]);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        metric_register(&events[i]);
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        metric_register(&streams[i]);
    metric_register(&links);
}

void stats_link(int more)
{
    metric_add(&links, more);
}

void stats_stream(bool by_link)
{
    metric_add(&streams[by_link ? 0 : 1], 1);
}

void stats_add(const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (strncmp(events[i].labels + 7, what, n) == 0 && events[i].labels[7 + n] == '"')
            metric_add(&events[i], 1);
}

void stats_exchange(const struct exchange *x)
{
    int64_t now = dp_now_us(x->worker->loop);
    if (x->routed_us)
        metric_observe_us(&phases[PHASE_ROUTE], x->routed_us - x->start_us);
    if (x->connected_us)
        metric_observe_us(&phases[PHASE_CONNECT], x->connected_us - x->routed_us);
    if (x->first_us)
        metric_observe_us(&phases[PHASE_FIRST_BYTE], x->first_us - x->connected_us);
    metric_observe_us(&phases[PHASE_TOTAL], now - x->start_us);
    int class = x->status / 100;
    if (class >= 1 && class <= 5)
        metric_add(&requests[class - 1], 1);
    if (x->bytes_in)
        metric_add(&bytes[0], (int64_t)x->bytes_in);
    if (x->bytes_out)
        metric_add(&bytes[1], (int64_t)x->bytes_out);
    if (x->tries || x->reroutes)
        stats_add("retries");
    if (x->woke)
        stats_add("wakes");
}

int access_log_open(const char *path, struct err *e)
{
    if (path[0] == 0)
        return 0;
    log_fd = strcmp(path, "-") == 0 ? 2 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    return log_fd < 0 ? err_sys(e, ERR_INVALID, "opening the access log %s", path) : 0;
}

void access_log(struct exchange *x)
{
    if (log_fd < 0)
        return;
    struct worker *w = x->worker;
    struct jsonw j = jsonw_start(&w->log);
    jsonw_obj(&j);
    jsonw_key(&j, "ts");
    jsonw_time_ms(&j, clock_realtime_ms());
    jsonw_kstr(&j, "client", x->client);
    jsonw_kstr(&j, "sandbox", x->id);
    jsonw_kint(&j, "port", x->port);
    jsonw_kstr(&j, "request", x->line);
    jsonw_kint(&j, "status", x->status);
    jsonw_kint(&j, "in", (int64_t)x->bytes_in);
    jsonw_kint(&j, "out", (int64_t)x->bytes_out);
    jsonw_kint(&j, "us", dp_now_us(w->loop) - x->start_us);
    if (x->woke)
        jsonw_kint(&j, "wake_ms", x->wake_ms);
    jsonw_kstr(&j, "trace", x->trace);
    jsonw_obj_end(&j);
    buf_putc(&w->log, '\n');
    if (w->log.len >= LOG_FLUSH)
        access_log_flush(w);
}

void access_log_flush(struct worker *w)
{
    if (w->log.len == 0)
        return;
    ssize_t n = write(log_fd, w->log.data, w->log.len);
    (void)n; /* a full disk must not stop requests */
    buf_reset(&w->log);
    w->log.failed = false;
}

bool access_log_on(void)
{
    return log_fd >= 0;
}
