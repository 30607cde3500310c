/* Owns the Catalog service's answer to what a team ran, minute by minute. Redis holds only the minutes in
 * which something changed; invariant: the answer has no gap, and a minute without a change repeats what held
 * before. */
#include "master/ops.h"

#include <stdlib.h>
#include <string.h>

#define MINUTE_MS 60000
#define MINUTES_MAX (7 * 24 * 60) /* Redis keeps a day more */

typedef Cube__Master__V1__TeamMinute Minute;

struct answer {
    int64_t first, last; /* minutes since the epoch */
    Minute *minutes;
};

static int64_t word(const redisReply *r, size_t i)
{
    const redisReply *w = r->element[i];
    return w->type == REDIS_REPLY_STRING ? strtoll(w->str, NULL, 10) : w->integer;
}

static int parse(const redisReply *r, void *out, struct err *e)
{
    struct answer *a = out;
    if (r->type != REDIS_REPLY_ARRAY || r->elements % 4 != 1)
        return err_set(e, ERR_INTERNAL, "reading a team's metrics: unexpected answer");
    int64_t holds = word(r, 0);
    size_t at = 1;
    for (int64_t m = a->first; m <= a->last; m++) {
        Minute *out_minute = &a->minutes[m - a->first];
        cube__master__v1__team_minute__init(out_minute);
        out_minute->start_ms = m * MINUTE_MS;
        out_minute->most = (uint32_t)holds;
        if (at + 3 < r->elements && word(r, at) == m) {
            out_minute->most = (uint32_t)word(r, at + 1);
            holds = word(r, at + 2);
            out_minute->starts = (uint32_t)word(r, at + 3);
            at += 4;
        }
    }
    return 0;
}

static void serve_team_metrics(struct request *r)
{
    const Cube__Master__V1__TeamMetricsRequest *q = (const Cube__Master__V1__TeamMetricsRequest *)r->in;
    struct err e = {0};
    int64_t now = r->m->now_ms() / MINUTE_MS;
    struct answer a = {.first = q->start_ms / MINUTE_MS, .last = q->end_ms / MINUTE_MS};
    a.last = a.last > now ? now : a.last;
    a.first = a.first <= now - MINUTES_MAX ? now - MINUTES_MAX + 1 : a.first;
    size_t n = a.last >= a.first ? (size_t)(a.last - a.first) + 1 : 0;
    Cube__Master__V1__TeamMetricsReply reply = CUBE__MASTER__V1__TEAM_METRICS_REPLY__INIT;
    a.minutes = calloc(n + 1, sizeof *a.minutes);
    reply.minutes = calloc(n + 1, sizeof(Minute *));
    if (!a.minutes || !reply.minutes)
        abort();
    _cleanup_db_args_ struct db_args args;
    db_args_start(&args, r->m);
    db_arg(&args, q->team_id);
    db_arg_int(&args, a.first);
    db_arg_int(&args, a.last);
    if (strlen(q->team_id) == 0 || strlen(q->team_id) > TEAM_ID_MAX)
        err_set(&e, ERR_INVALID, "the request names no team");
    else if (n > 0)
        db_eval(r->m, &script_team_metrics, &args, parse, &a, &e);
    for (; reply.n_minutes < n; reply.n_minutes++)
        reply.minutes[reply.n_minutes] = &a.minutes[reply.n_minutes];
    if (e.code)
        request_fail(r, &e);
    else
        request_reply(r, &reply.base);
    free(reply.minutes);
    free(a.minutes);
}

REQUEST_START(serve_team_metrics)

const struct rpc_method team_methods[] = {
    {"/cube.master.v1.Catalog/TeamMetrics", &cube__master__v1__team_metrics_request__descriptor,
     &cube__master__v1__team_metrics_reply__descriptor, RPC_ROLE_API | RPC_ROLE_ADMIN, false,
     start_serve_team_metrics},
    {0},
};
