/* What cube-proxy counts and logs: latency histograms per phase, counters by result, and the access log,
 * which each worker collects and writes in one piece. */
#include "proxy/proxy.h"

#include "lib/base/clock.h"
#include "lib/base/jsonw.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"
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
     .labels = "event=\"slow_bodies\"",
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

/* What every line says. */
static struct jsonw line_begin(struct worker *w, const char *client, const char *sandbox, uint16_t port,
                               const char *request, int status)
{
    struct jsonw j = jsonw_start(&w->log);
    jsonw_obj(&j);
    jsonw_key(&j, "ts");
    jsonw_time_ms(&j, clock_realtime_ms());
    jsonw_kstr(&j, "client", client);
    jsonw_kstr(&j, "sandbox", sandbox);
    jsonw_kint(&j, "port", port);
    jsonw_kstr(&j, "request", request);
    jsonw_kint(&j, "status", status);
    return j;
}

static void line_end(struct worker *w, struct jsonw *j, const char *trace)
{
    jsonw_kstr(j, "trace", trace);
    jsonw_obj_end(j);
    buf_putc(&w->log, '\n');
    if (w->log.len >= LOG_FLUSH)
        access_log_flush(w);
}

void access_log(struct exchange *x)
{
    if (log_fd < 0)
        return;
    struct worker *w = x->worker;
    struct jsonw j = line_begin(w, x->client, x->id, x->port, x->line, x->status);
    jsonw_kint(&j, "in", (int64_t)x->bytes_in);
    jsonw_kint(&j, "out", (int64_t)x->bytes_out);
    jsonw_kint(&j, "us", dp_now_us(w->loop) - x->start_us);
    if (x->woke)
        jsonw_kint(&j, "wake_ms", x->wake_ms);
    line_end(w, &j, x->trace);
}

/* "METHOD /path" when the head begins so: of anything else nothing is said, it may be a secret. */
static void garbled_line(char out[80], const char *p, size_t n)
{
    size_t i = 0, method = 0;
    while (method < n && p[method] != ' ')
        method++;
    if (method < n && method <= 32 && http_name_valid(p, method)) {
        memcpy(out, p, method);
        out[method] = ' ';
        for (i = method + 1; i < n && i < 79 && (uint8_t)p[i] > ' ' && p[i] != 0x7f && p[i] != '?'; i++)
            out[i] = p[i];
        out[i] = 0;
    } else {
        memcpy(out, "-", 2);
    }
}

void access_log_refused(struct worker *w, const char *client, const char *head, size_t n, int status,
                        int64_t began_ms)
{
    uint8_t id[16];
    char trace[33], line[80];
    stats_add("refused_heads");
    if (log_fd < 0)
        return;
    garbled_line(line, head, n);
    random_bytes(id, sizeof id);
    hex_encode(id, sizeof id, trace);
    struct jsonw j = line_begin(w, client, "", 0, line, status);
    jsonw_kint(&j, "in", 0);
    jsonw_kint(&j, "out", 0);
    jsonw_kint(&j, "us", began_ms ? (dp_now_ms(w->loop) - began_ms) * 1000 : 0);
    line_end(w, &j, trace);
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
