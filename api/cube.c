/* Owns the answers under /cube/v1 about one sandbox: everything the platform knows, its timeline, and the
 * timeline told in sentences. */
#include "api/create.h"
#include "api/handlers.h"
#include "api/present.h"
#include "api/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void get(struct call *c, const char *method, const ProtobufCMessageDescriptor *out,
                call_reply_cb *reply)
{
    Cube__Master__V1__GetRequest in = CUBE__MASTER__V1__GET_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    in.team_id = c->caller.team_id;
    call_master(c, method, &in.base, out, UPSTREAM_READ, reply, NULL);
}

static void time_or_null(struct jsonw *w, const char *key, int64_t ms)
{
    jsonw_key(w, key);
    if (ms > 0)
        jsonw_time_ms(w, ms);
    else
        jsonw_null(w);
}

static const char *or_null(const char *s)
{
    return s && *s ? s : NULL;
}

static void on_sandbox(struct call *c, const ProtobufCMessage *m)
{
    const Cube__V1__Sandbox *s = ((const Cube__Master__V1__SandboxReply *)m)->sandbox;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_kstr(&w, "sandboxID", s->spec->sandbox_id);
    jsonw_kstr(&w, "teamID", s->spec->team_id);
    jsonw_kstr(&w, "templateID", s->spec->template_id);
    jsonw_kstr(&w, "alias", or_null(s->spec->alias));
    jsonw_kstr(&w, "state", present_state_name(s->state));
    jsonw_kint(&w, "generation", (int64_t)s->gen);
    jsonw_kint(&w, "revision", (int64_t)s->rev);
    jsonw_kstr(&w, "nodeID", or_null(s->node_id));
    jsonw_kstr(&w, "isolation", or_null(s->isolation));
    jsonw_kstr(&w, "operation", or_null(s->op));
    jsonw_kstr(&w, "reason", or_null(s->reason));
    jsonw_kstr(&w, "snapshotID", or_null(s->snapshot_id));
    time_or_null(&w, "createdAt", s->created_ms);
    time_or_null(&w, "startedAt", s->started_ms);
    time_or_null(&w, "endAt", s->end_ms);
    jsonw_kstr(&w, "mode", s->spec->idle_ms > 0 ? "idle" : "deadline");
    jsonw_kstr(&w, "onTimeout", s->spec->auto_pause || s->spec->idle_ms > 0 ? "pause" : "kill");
    jsonw_kbool(&w, "autoResume", s->spec->auto_resume);
    jsonw_key(&w, "awake");
    jsonw_obj(&w);
    jsonw_kstr(&w, "reason", or_null(s->awake));
    time_or_null(&w, "since", s->awake_since_ms);
    time_or_null(&w, "lastActivityAt", s->last_activity_ms);
    jsonw_kint(&w, "openStreams", s->open_streams);
    jsonw_obj_end(&w);
    time_or_null(&w, "pausesAt", s->pauses_at_ms);
    jsonw_kbool(&w, "healthy", s->healthy);
    jsonw_kstr(&w, "envdVersion", s->envd_version);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_cube_sandbox(struct call *c)
{
    get(c, MASTER_SANDBOXES "Get", &cube__master__v1__sandbox_reply__descriptor, on_sandbox);
}

static void on_timeline(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__TimelineReply *r = (const Cube__Master__V1__TimelineReply *)m;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_events; i++) {
        const Cube__V1__Event *ev = r->events[i];
        jsonw_obj(&w);
        jsonw_key(&w, "timestamp");
        jsonw_time_ms(&w, ev->ts_ms);
        jsonw_kint(&w, "generation", (int64_t)ev->gen);
        jsonw_kstr(&w, "kind", ev->kind);
        jsonw_kstr(&w, "text", ev->text);
        jsonw_kstr(&w, "trace", or_null(ev->trace));
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

void handle_cube_timeline(struct call *c)
{
    get(c, MASTER_SANDBOXES "Timeline", &cube__master__v1__timeline_reply__descriptor, on_timeline);
}

/* "14:02:07 (+1.4 s) generation 2: text" — the gap is to the event before. */
static void sentence(struct jsonw *w, const Cube__V1__Event *ev, int64_t before_ms, uint64_t before_gen)
{
    char clock[16], gap[40] = "", generation[40] = "";
    time_t s = ev->ts_ms / 1000;
    struct tm tm;
    gmtime_r(&s, &tm);
    strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    if (before_ms)
        snprintf(gap, sizeof gap, " (+%.3f s)", (double)(ev->ts_ms - before_ms) / 1000);
    if (ev->gen && ev->gen != before_gen)
        snprintf(generation, sizeof generation, " generation %" PRIu64 ":", ev->gen);
    _cleanup_buf_ struct buf text = {0};
    buf_printf(&text, "%s%s%s %s", clock, gap, generation, ev->text && *ev->text ? ev->text : ev->kind);
    jsonw_strn(w, text.data, text.len);
}

static void on_why(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__TimelineReply *r = (const Cube__Master__V1__TimelineReply *)m;
    struct jsonw w = call_json(c);
    int64_t before_ms = 0;
    uint64_t before_gen = 0;
    jsonw_obj(&w);
    jsonw_kstr(&w, "sandboxID", c->match.args[0]);
    jsonw_key(&w, "sentences");
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_events; i++) {
        sentence(&w, r->events[i], before_ms, before_gen);
        before_ms = r->events[i]->ts_ms;
        before_gen = r->events[i]->gen;
    }
    jsonw_arr_end(&w);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_cube_why(struct call *c)
{
    get(c, MASTER_SANDBOXES "Timeline", &cube__master__v1__timeline_reply__descriptor, on_why);
}

/* A lease is a deadline that holds a sandbox of mode idle awake until then. */
void handle_cube_lease(struct call *c)
{
    static const char *const known[] = {"seconds", NULL};
    struct err e = {0};
    int64_t seconds = 0;
    Cube__Master__V1__SetDeadlineRequest in = CUBE__MASTER__V1__SET_DEADLINE_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (body_int(c->body, "", "seconds", 0, INT32_MAX, &seconds, NULL, &e) < 0 ||
        timeout_check(seconds, c->caller.max_timeout_ms, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    in.team_id = c->caller.team_id;
    in.timeout_ms = seconds * 1000;
    call_master(c, MASTER_SANDBOXES "SetDeadline", &in.base, &cube__master__v1__sandbox_reply__descriptor, 0,
                reply_empty, NULL);
}
