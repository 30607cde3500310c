/* Owns the metrics of a team: how many sandboxes it had at once and how often it started one. Invariant: a
 * team sees only its own, and an answer stays small however long the time asked for. */
#include "api/handlers.h"
#include "api/server.h"
#include "lib/base/clock.h"

#include <string.h>

#define DEFAULT_S 3600  /* when `start` is absent */
#define POINTS_MAX 1000 /* a longer time has longer steps */

typedef Cube__Master__V1__TeamMinute Minute;

struct team_ask {
    bool rate; /* max: of which metric */
};

static int ask_parse(struct call *c, Cube__Master__V1__TeamMetricsRequest *in, struct err *e)
{
    int64_t start, end, now = clock_realtime_ms() / 1000;
    if (strcmp(c->match.args[0], c->caller.team_id) != 0)
        return err_set(e, ERR_FORBIDDEN, "the metrics of another team are not yours to see");
    if (query_int(&c->query, "end", 0, INT32_MAX * 2LL, now, &end, e) < 0 ||
        query_int(&c->query, "start", 0, INT32_MAX * 2LL, end > DEFAULT_S ? end - DEFAULT_S : 0, &start, e) <
            0)
        return -1;
    if (start > end)
        return err_set(e, ERR_INVALID, "validation error: 'start' is after 'end'");
    in->team_id = c->caller.team_id;
    in->start_ms = start * 1000;
    in->end_ms = end * 1000;
    return 0;
}

static void ask(struct call *c, call_reply_cb *reply)
{
    struct err e = {0};
    Cube__Master__V1__TeamMetricsRequest in = CUBE__MASTER__V1__TEAM_METRICS_REQUEST__INIT;
    if (ask_parse(c, &in, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    call_master(c, MASTER_CATALOG "TeamMetrics", &in.base, &cube__master__v1__team_metrics_reply__descriptor,
                UPSTREAM_READ, reply, NULL);
}

/* Per second, over `n` minutes from `m`; the running minute counts as far as it has come. */
static double start_rate(Minute *const *m, size_t n)
{
    uint64_t starts = 0;
    for (size_t i = 0; i < n; i++)
        starts += m[i]->starts;
    int64_t begin = m[0]->start_ms, end = m[n - 1]->start_ms + 60000, now = clock_realtime_ms();
    end = now < end && now > begin + 1000 ? now : end;
    return (double)starts * 1000 / (double)(end - begin);
}

static void time_write(struct jsonw *w, int64_t ms)
{
    jsonw_key(w, "timestamp");
    jsonw_time_ms(w, ms);
    jsonw_kint(w, "timestampUnix", ms / 1000);
}

static void on_team_metrics(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__TeamMetricsReply *r = (const Cube__Master__V1__TeamMetricsReply *)m;
    size_t step = (r->n_minutes + POINTS_MAX - 1) / POINTS_MAX;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_minutes; i += step) {
        size_t n = r->n_minutes - i < step ? r->n_minutes - i : step;
        uint32_t most = 0;
        for (size_t k = 0; k < n; k++)
            most = r->minutes[i + k]->most > most ? r->minutes[i + k]->most : most;
        jsonw_obj(&w);
        time_write(&w, r->minutes[i]->start_ms);
        jsonw_kint(&w, "concurrentSandboxes", most);
        jsonw_key(&w, "sandboxStartRate");
        jsonw_double(&w, start_rate(r->minutes + i, n), 4);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

void handle_team_metrics(struct call *c)
{
    ask(c, on_team_metrics);
}

/* The newest of equal ones; without any minute in the time asked for, zero at its end. */
static void on_team_metrics_max(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__TeamMetricsReply *r = (const Cube__Master__V1__TeamMetricsReply *)m;
    const struct team_ask *a = c->state;
    int64_t at = clock_realtime_ms();
    double max = 0;
    for (size_t i = 0; i < r->n_minutes; i++) {
        double v = a->rate ? start_rate(r->minutes + i, 1) : r->minutes[i]->most;
        if (v >= max) {
            max = v;
            at = r->minutes[i]->start_ms;
        }
    }
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    time_write(&w, at);
    jsonw_key(&w, "value");
    if (a->rate)
        jsonw_double(&w, max, 4);
    else
        jsonw_int(&w, (int64_t)max);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_team_metrics_max(struct call *c)
{
    const char *metric = query_get(&c->query, "metric");
    struct team_ask *a = c->state = call_alloc(c, sizeof *a);
    a->rate = metric && strcmp(metric, "sandbox_start_rate") == 0;
    if (!a->rate && (!metric || strcmp(metric, "concurrent_sandboxes") != 0)) {
        call_error(c, ERR_INVALID,
                   "validation error: query parameter 'metric' must be concurrent_sandboxes or "
                   "sandbox_start_rate");
        return;
    }
    ask(c, on_team_metrics_max);
}
