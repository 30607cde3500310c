/* Owns the Sandboxes service: from message to operation and back. Invariant: no state is changed here; a
 * caller sees only sandboxes of the team that it names, and tokens leave only towards the API. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "master/cursor.h"
#include "master/ops.h"
#include "master/stats.h"
#include "proto/node.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 100
#define METRICS_MAX 100
#define LOG_TIMEOUT_MS 10000

static void tokens_fill(struct request *r, const struct record *rec, struct record_tokens *t)
{
    if (rec->spec->secure)
        token_envd(&r->m->seed, rec->id, t->envd);
    if (rec->spec->private_traffic)
        token_traffic(&r->m->seed, rec->id, t->traffic);
}

/* Answers with the record and releases it. */
static void reply_record(struct request *r, struct record *rec)
{
    struct record_tokens tokens;
    Cube__V1__Sandbox msg;
    Cube__Master__V1__SandboxReply reply = CUBE__MASTER__V1__SANDBOX_REPLY__INIT;
    tokens_fill(r, rec, &tokens);
    record_message(rec, &tokens, &msg);
    reply.sandbox = &msg;
    request_reply(r, &reply.base);
    record_free(rec);
}

static void serve_create(struct request *r)
{
    Cube__Master__V1__CreateRequest *q = (Cube__Master__V1__CreateRequest *)r->in;
    struct record rec;
    struct err e = {0};
    bool repeatable = *q->idempotency_key;
    int64_t begin = clock_mono_us();
    int rc = op_create(r->m, q, r->trace, &rec, &e);
    stats_create(rc == 0, clock_mono_us() - begin);
    if (rc < 0) {
        request_fail(r, &e);
        return;
    }
    /* Nobody was told of it and nobody can ask for it again: it would only run until its timeout. */
    if (!r->call && !repeatable &&
        op_kill(r->m, rec.id, rec.team, 0, "the client left before the answer", r->trace, &e) < 0)
        log_line(LOG_WARN, &(struct log_about){.sandbox = rec.id, .err = &e},
                 "ending a sandbox whose client left");
    reply_record(r, &rec);
}

static void serve_get(struct request *r)
{
    Cube__Master__V1__GetRequest *q = (Cube__Master__V1__GetRequest *)r->in;
    struct record rec;
    struct err e = {0};
    if (op_load(r->m, q->sandbox_id, q->team_id, &rec, &e) < 0)
        request_fail(r, &e);
    else
        reply_record(r, &rec);
}

static void serve_kill(struct request *r)
{
    Cube__Master__V1__KillRequest *q = (Cube__Master__V1__KillRequest *)r->in;
    Cube__Master__V1__KillReply reply = CUBE__MASTER__V1__KILL_REPLY__INIT;
    struct err e = {0};
    if (op_kill(r->m, q->sandbox_id, q->team_id, q->if_rev, *q->reason ? q->reason : "asked by the user",
                r->trace, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    reply.killed = true;
    request_reply(r, &reply.base);
}

static void serve_pause(struct request *r)
{
    struct record rec;
    struct err e = {0};
    if (op_pause(r->m, (Cube__Master__V1__PauseRequest *)r->in, r->trace, &rec, &e) < 0)
        request_fail(r, &e);
    else
        reply_record(r, &rec);
}

static void serve_resume(struct request *r)
{
    struct record rec;
    struct err e = {0};
    bool resumed;
    if (op_resume(r->m, (Cube__Master__V1__ResumeRequest *)r->in, r->trace, &rec, &resumed, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    struct record_tokens tokens;
    Cube__V1__Sandbox msg;
    Cube__Master__V1__ResumeReply reply = CUBE__MASTER__V1__RESUME_REPLY__INIT;
    tokens_fill(r, &rec, &tokens);
    record_message(&rec, &tokens, &msg);
    reply.sandbox = &msg;
    reply.resumed = resumed;
    uint8_t ticket[32];
    struct node *n = fleet_find(r->m->fleet, rec.node);
    if (r->call && rpc_peer_role(r->call) == RPC_ROLE_LIFECYCLE && n) {
        ticket_derive(&r->m->seed, rec.id, rec.gen, ticket);
        reply.relay_address = n->relay;
        reply.ticket = (ProtobufCBinaryData){.data = ticket, .len = sizeof ticket};
    }
    request_reply(r, &reply.base);
    record_free(&rec);
}

static void serve_set_deadline(struct request *r)
{
    struct record rec;
    struct err e = {0};
    if (op_deadline(r->m, (Cube__Master__V1__SetDeadlineRequest *)r->in, &rec, &e) < 0)
        request_fail(r, &e);
    else
        reply_record(r, &rec);
}

/* ---- list ---- */

struct page {
    struct record *recs;
    size_t n;
    char next[INDEX_MEMBER_LEN + 1];
    uint32_t running;
};

static int page_parse(const redisReply *r, void *out, struct err *e)
{
    struct page *p = out;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2)
        return err_set(e, ERR_INTERNAL, "listing sandboxes: unexpected answer");
    snprintf(p->next, sizeof p->next, "%s", r->element[0]->str);
    p->running = (uint32_t)strtoul(r->element[1]->str, NULL, 10);
    p->recs = calloc(r->elements, sizeof *p->recs);
    if (!p->recs)
        abort();
    struct err skip;
    for (size_t i = 2; i < r->elements; i++)
        if (record_parse_values(r->element[i], &p->recs[p->n], &skip) == 0)
            p->n++;
    return 0;
}

static int list_args(struct request *r, const Cube__Master__V1__ListRequest *q, struct db_args *a,
                     struct err *e)
{
    char after[INDEX_MEMBER_LEN + 1], tag[512];
    bool both = !q->running && !q->paused;
    if (!*q->team_id || strlen(q->team_id) > TEAM_ID_MAX || strlen(q->template_id) > TEMPLATE_ID_MAX ||
        q->n_metadata > 64)
        return err_set(e, ERR_INVALID, "the list names no team, or more than 64 metadata filters");
    if (cursor_decode(q->cursor, q->ascending, after, e) < 0)
        return -1;
    db_arg_int(a, both || q->running);
    db_arg_int(a, both || q->paused);
    db_arg_int(a, q->ascending);
    db_arg(a, after);
    db_arg_int(a, q->started_after_ms > 0 ? q->started_after_ms : 0);
    db_arg_int(a, q->limit == 0 || q->limit > LIST_MAX ? LIST_MAX : q->limit);
    db_arg_int(a, RECORD_FIELDS);
    for (size_t i = 0; i < RECORD_FIELDS; i++)
        db_arg(a, record_field(i));
    for (size_t i = 0; i < q->n_metadata; i++) {
        commit_tag_metadata(tag, sizeof tag, q->team_id, q->metadata[i]->key, q->metadata[i]->value);
        db_arg(a, tag);
    }
    if (*q->template_id)
        db_arg_printf(a, "tpl:%s:%s", q->team_id, q->template_id);
    if (!q->n_metadata && !*q->template_id)
        db_arg_printf(a, "team:%s", q->team_id);
    return 0;
}

static void serve_list(struct request *r)
{
    Cube__Master__V1__ListRequest *q = (Cube__Master__V1__ListRequest *)r->in;
    struct page p = {0};
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    if (list_args(r, q, &a, &e) < 0 || db_eval(r->m, &script_list, &a, page_parse, &p, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__ListReply reply = CUBE__MASTER__V1__LIST_REPLY__INIT;
    char cursor[CURSOR_MAX] = "";
    Cube__V1__Sandbox *msgs = calloc(p.n + 1, sizeof *msgs), **ptrs = calloc(p.n + 1, sizeof *ptrs);
    if (!msgs || !ptrs)
        abort();
    for (size_t i = 0; i < p.n; i++) {
        record_message(&p.recs[i], NULL, &msgs[i]);
        ptrs[i] = &msgs[i];
    }
    if (p.next[0])
        cursor_encode(p.next, q->ascending, cursor);
    reply.sandboxes = ptrs;
    reply.n_sandboxes = p.n;
    reply.next_cursor = cursor;
    reply.total_running = p.running;
    request_reply(r, &reply.base);
    for (size_t i = 0; i < p.n; i++)
        record_free(&p.recs[i]);
    free(p.recs);
    free(msgs);
    free(ptrs);
}

/* ---- timeline ---- */

struct story {
    Cube__V1__Event *events, **ptrs;
    char **texts;
    size_t n;
};

/* "<ts>\t<gen>\t<kind>\t<trace>\t<text>", newest first. */
static bool event_read(char *line, Cube__V1__Event *out)
{
    char *part[5], *save = line;
    for (int i = 0; i < 5; i++)
        if (!(part[i] = i < 4 ? strsep(&save, "\t") : save))
            return false;
    cube__v1__event__init(out);
    out->ts_ms = strtoll(part[0], NULL, 10);
    out->gen = strtoull(part[1], NULL, 10);
    out->kind = part[2];
    out->trace = part[3];
    out->text = part[4];
    return true;
}

static int story_parse(const redisReply *r, void *out, struct err *e)
{
    struct story *s = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "reading a timeline: unexpected answer");
    s->events = calloc(r->elements + 1, sizeof *s->events);
    s->ptrs = calloc(r->elements + 1, sizeof *s->ptrs);
    s->texts = calloc(r->elements + 1, sizeof *s->texts);
    if (!s->events || !s->ptrs || !s->texts)
        abort();
    for (size_t i = r->elements; i-- > 0;) {
        if (r->element[i]->type != REDIS_REPLY_STRING || !(s->texts[s->n] = strdup(r->element[i]->str)))
            continue;
        if (!event_read(s->texts[s->n], &s->events[s->n])) {
            free(s->texts[s->n]);
            continue;
        }
        s->ptrs[s->n] = &s->events[s->n];
        s->n++;
    }
    return 0;
}

static void serve_timeline(struct request *r)
{
    Cube__Master__V1__GetRequest *q = (Cube__Master__V1__GetRequest *)r->in;
    _cleanup_record_ struct record rec = {0};
    struct story s = {0};
    struct err e = {0};
    char name[64];
    /* The story outlives the record; only those who may see every team can read it then. */
    if (op_load(r->m, q->sandbox_id, q->team_id, &rec, &e) < 0 && (e.code != ERR_NOT_FOUND || *q->team_id)) {
        request_fail(r, &e);
        return;
    }
    snprintf(name, sizeof name, "%s:tl:%.21s", r->m->prefix, q->sandbox_id);
    e = (struct err){0};
    if (db_command(r->m, 4, (const char *[]){"LRANGE", name, "0", "99"}, story_parse, &s, &e) == 0 &&
        s.n == 0)
        err_set(&e, ERR_NOT_FOUND, "sandbox %.21s not found", q->sandbox_id);
    if (e.code) {
        request_fail(r, &e);
    } else {
        Cube__Master__V1__TimelineReply reply = CUBE__MASTER__V1__TIMELINE_REPLY__INIT;
        reply.events = s.ptrs;
        reply.n_events = s.n;
        request_reply(r, &reply.base);
    }
    for (size_t i = 0; i < s.n; i++)
        free(s.texts[i]);
    free(s.texts);
    free(s.ptrs);
    free(s.events);
}

/* ---- what only the node knows ---- */

static void serve_read_log(struct request *r)
{
    Cube__Master__V1__ReadLogRequest *q = (Cube__Master__V1__ReadLogRequest *)r->in;
    _cleanup_record_ struct record rec = {0};
    struct err e = {0};
    ProtobufCMessage *reply = NULL;
    if (op_load(r->m, q->sandbox_id, q->team_id, &rec, &e) == 0)
        node_call(r->m, rec.node, "/cube.node.v1.Sandboxes/ReadLog", &q->base,
                  &cube__master__v1__read_log_reply__descriptor, LOG_TIMEOUT_MS, r->trace, &reply, &e);
    if (!reply) {
        request_fail(r, &e);
        return;
    }
    request_reply(r, reply);
    protobuf_c_message_free_unpacked(reply, NULL);
}

static void serve_network(struct request *r)
{
    Cube__Master__V1__NetworkRequest *q = (Cube__Master__V1__NetworkRequest *)r->in;
    _cleanup_record_ struct record rec = {0};
    struct err e = {0};
    ProtobufCMessage *reply = NULL;
    if (op_load(r->m, q->sandbox_id, q->team_id, &rec, &e) == 0)
        node_call(r->m, rec.node, "/cube.node.v1.Sandboxes/Network", &q->base,
                  &cube__master__v1__network_reply__descriptor, LOG_TIMEOUT_MS, r->trace, &reply, &e);
    if (!reply) {
        request_fail(r, &e);
        return;
    }
    request_reply(r, reply);
    protobuf_c_message_free_unpacked(reply, NULL);
}

struct metrics_part {
    char node[NODE_ID_MAX + 1];
    char *ids[METRICS_MAX];
    size_t n;
    Cube__Master__V1__MetricsReply *reply;
};

static struct metrics_part *part_for(struct metrics_part *parts, size_t *n, const char *node)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(parts[i].node, node) == 0)
            return &parts[i];
    snprintf(parts[*n].node, sizeof parts[*n].node, "%s", node);
    return &parts[(*n)++];
}

/* Asks each node that holds some of them; a node that does not answer only leaves its points out, unless one
 * sandbox was asked for. */
static void serve_metrics(struct request *r)
{
    Cube__Master__V1__MetricsRequest *q = (Cube__Master__V1__MetricsRequest *)r->in;
    struct err e = {0};
    size_t count = 0, points = 0;
    bool failed = false;
    if (q->n_sandbox_ids == 0 || q->n_sandbox_ids > METRICS_MAX) {
        err_set(&e, ERR_INVALID, "metrics are asked for 1 to %d sandboxes", METRICS_MAX);
        request_fail(r, &e);
        return;
    }
    struct metrics_part *parts = calloc(q->n_sandbox_ids, sizeof *parts);
    if (!parts)
        abort();
    for (size_t i = 0; i < q->n_sandbox_ids; i++) {
        _cleanup_record_ struct record rec = {0};
        if (op_load(r->m, q->sandbox_ids[i], q->team_id, &rec, &e) == 0 &&
            state_table[rec.state].view != VIEW_GONE) {
            struct metrics_part *p = part_for(parts, &count, rec.node);
            p->ids[p->n++] = q->sandbox_ids[i];
        } else if (q->n_sandbox_ids == 1) {
            if (!e.code)
                err_set(&e, ERR_NOT_FOUND, "sandbox %.21s not found", q->sandbox_ids[0]);
            failed = true;
        }
    }
    for (size_t i = 0; i < count; i++) {
        Cube__Master__V1__MetricsRequest ask = CUBE__MASTER__V1__METRICS_REQUEST__INIT;
        ask.sandbox_ids = parts[i].ids;
        ask.n_sandbox_ids = parts[i].n;
        ask.start_ms = q->start_ms;
        ask.end_ms = q->end_ms;
        ProtobufCMessage *msg = NULL;
        if (node_call(r->m, parts[i].node, "/cube.node.v1.Sandboxes/Metrics", &ask.base,
                      &cube__master__v1__metrics_reply__descriptor, LOG_TIMEOUT_MS, r->trace, &msg, &e) < 0 &&
            q->n_sandbox_ids == 1)
            failed = true;
        parts[i].reply = (Cube__Master__V1__MetricsReply *)msg;
        points += msg ? parts[i].reply->n_points : 0;
    }
    if (failed) {
        request_fail(r, &e);
    } else {
        Cube__Master__V1__MetricsReply reply = CUBE__MASTER__V1__METRICS_REPLY__INIT;
        reply.points = calloc(points + 1, sizeof *reply.points);
        if (!reply.points)
            abort();
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; parts[i].reply && k < parts[i].reply->n_points; k++)
                reply.points[reply.n_points++] = parts[i].reply->points[k];
        request_reply(r, &reply.base);
        free(reply.points);
    }
    for (size_t i = 0; i < count; i++)
        if (parts[i].reply)
            cube__master__v1__metrics_reply__free_unpacked(parts[i].reply, NULL);
    free(parts);
}

REQUEST_START(serve_create)
REQUEST_START(serve_get)
REQUEST_START(serve_list)
REQUEST_START(serve_kill)
REQUEST_START(serve_pause)
REQUEST_START(serve_resume)
REQUEST_START(serve_set_deadline)
REQUEST_START(serve_timeline)
REQUEST_START(serve_read_log)
REQUEST_START(serve_metrics)
REQUEST_START(serve_network)

#define METHOD(name, in_type, out_type, extra, fn)                                                           \
    {                                                                                                        \
        .path = "/cube.master.v1.Sandboxes/" name, .in = &cube__master__v1__##in_type##__descriptor,         \
        .out = &cube__master__v1__##out_type##__descriptor,                                                  \
        .roles = RPC_ROLE_API | RPC_ROLE_ADMIN | (extra), .start = start_##fn                                \
    }

const struct rpc_method sandboxes_methods[] = {
    METHOD("Create", create_request, sandbox_reply, 0, serve_create),
    METHOD("Get", get_request, sandbox_reply, RPC_ROLE_LIFECYCLE, serve_get),
    METHOD("List", list_request, list_reply, 0, serve_list),
    METHOD("Kill", kill_request, kill_reply, RPC_ROLE_LIFECYCLE, serve_kill),
    METHOD("Pause", pause_request, sandbox_reply, RPC_ROLE_LIFECYCLE, serve_pause),
    METHOD("Resume", resume_request, resume_reply, RPC_ROLE_LIFECYCLE, serve_resume),
    METHOD("SetDeadline", set_deadline_request, sandbox_reply, RPC_ROLE_LIFECYCLE, serve_set_deadline),
    METHOD("Timeline", get_request, timeline_reply, 0, serve_timeline),
    METHOD("ReadLog", read_log_request, read_log_reply, 0, serve_read_log),
    METHOD("Metrics", metrics_request, metrics_reply, 0, serve_metrics),
    METHOD("Network", network_request, network_reply, 0, serve_network),
    {0},
};
