/* Owns get, list and the bulk of metrics. Invariant: a sandbox of another team looks exactly like one that
 * does not exist. */
#include "api/handlers.h"
#include "api/names.h"
#include "api/present.h"
#include "api/server.h"
#include "lib/base/clock.h"

#include <stdio.h>
#include <string.h>

#define LIST_MAX 100
#define METRICS_MAX_IDS 100
#define NEWEST_WITHIN_MS 60000 /* several times the sampling interval */

const char *path_sandbox_id(struct call *c)
{
    struct err e = {0};
    char *id = call_alloc(c, 24);
    if (sandbox_id_parse(c->match.args[0], id, &e) == 0)
        return id;
    call_fail(c, &e);
    return NULL;
}

void reply_empty(struct call *c, const ProtobufCMessage *m)
{
    call_send_empty(c, c->route->status);
}

static void on_got(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__SandboxReply *r = (const Cube__Master__V1__SandboxReply *)m;
    if (!present_state(r->sandbox->state)) {
        call_error(c, ERR_NOT_FOUND, "sandbox '%s' not found", r->sandbox->spec->sandbox_id);
        return;
    }
    struct jsonw w = call_json(c);
    present_detail(&w, r->sandbox, c->w->api->domain);
    call_send_json(c, 200);
}

void handle_sandbox_get(struct call *c)
{
    Cube__Master__V1__GetRequest in = CUBE__MASTER__V1__GET_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    in.team_id = c->caller.team_id;
    call_master(c, MASTER_SANDBOXES "Get", &in.base, &cube__master__v1__sandbox_reply__descriptor,
                UPSTREAM_READ, on_got, NULL);
}

/* ---- lists ---- */

struct listing {
    bool total;                            /* X-Total-Running is wanted */
    Cube__Master__V1__ListRequest request; /* waits for the template's ID */
};

static void on_listed(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListReply *r = (const Cube__Master__V1__ListReply *)m;
    const struct listing *l = c->state;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_sandboxes; i++)
        present_listed(&w, r->sandboxes[i]);
    jsonw_arr_end(&w);
    if (l && r->next_cursor && *r->next_cursor)
        call_add_header(c, "x-next-token", r->next_cursor);
    if (l && l->total) {
        char total[16];
        snprintf(total, sizeof total, "%u", r->total_running);
        call_add_header(c, "x-total-running", total);
    }
    call_send_json(c, 200);
}

static int list_metadata(struct call *c, Cube__Master__V1__ListRequest *in, struct err *e)
{
    const char *text = query_get(&c->query, "metadata");
    struct metadata_filter *f = call_alloc(c, sizeof *f);
    if (!text || !*text)
        return 0;
    if (metadata_parse(call_strdup(c, text), f, e) < 0)
        return -1;
    in->metadata = call_alloc(c, f->n * sizeof *in->metadata);
    for (size_t i = 0; i < f->n; i++) {
        Cube__V1__Pair *p = call_alloc(c, sizeof *p);
        cube__v1__pair__init(p);
        p->key = (char *)f->items[i].key;
        p->value = (char *)f->items[i].value;
        in->metadata[in->n_metadata++] = p;
    }
    return 0;
}

/* `state` comes as a comma-separated list, and may be repeated. */
static int list_states(struct call *c, Cube__Master__V1__ListRequest *in, struct err *e)
{
    for (size_t i = 0; i < c->query.n; i++) {
        if (strcmp(c->query.items[i].key, "state") != 0)
            continue;
        for (const char *p = c->query.items[i].value; *p;) {
            size_t n = strcspn(p, ",");
            if (n == 7 && memcmp(p, "running", 7) == 0)
                in->running = true;
            else if (n == 6 && memcmp(p, "paused", 6) == 0)
                in->paused = true;
            else
                return err_set(e, ERR_INVALID,
                               "validation error: query parameter 'state' must be running, paused or both");
            p += n + (p[n] == ',');
        }
    }
    if (!in->running && !in->paused)
        in->running = in->paused = true;
    return 0;
}

static int list_parse(struct call *c, Cube__Master__V1__ListRequest *in, struct err *e)
{
    int64_t limit;
    const char *order = query_get(&c->query, "order");
    const char *template = query_get(&c->query, "template");
    const char *cursor = query_get(&c->query, "nextToken");
    if (list_metadata(c, in, e) < 0 || list_states(c, in, e) < 0 ||
        query_int(&c->query, "limit", 1, LIST_MAX, LIST_MAX, &limit, e) < 0 ||
        query_time(&c->query, "startedAfter", &in->started_after_ms, e) < 0)
        return -1;
    in->limit = (uint32_t)limit;
    if (order && *order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return err_set(e, ERR_INVALID, "validation error: query parameter 'order' must be asc or desc");
    in->ascending = order && strcmp(order, "asc") == 0;
    if (template && *template) {
        char *ref = call_alloc(c, TEMPLATE_REF_MAX + 1);
        if (template_ref_parse(template, ref, e) < 0)
            return -1;
        if (template_ref_tagged(ref))
            return err_set(e, ERR_INVALID, "the filter 'template' takes an ID or an alias without a tag");
        in->template_id = ref;
    }
    if (cursor && strlen(cursor) > 512)
        return err_set(e, ERR_INVALID, "Invalid next token");
    in->cursor = (char *)(cursor ? cursor : "");
    return 0;
}

static void send_list(struct call *c)
{
    struct listing *l = c->state;
    call_master(c, MASTER_SANDBOXES "List", &l->request.base, &cube__master__v1__list_reply__descriptor,
                UPSTREAM_READ, on_listed, NULL);
}

static void on_template(struct call *c, const ProtobufCMessage *m)
{
    struct listing *l = c->state;
    l->request.template_id = call_strdup(c, ((const Cube__Master__V1__Template *)m)->template_id);
    send_list(c);
}

/* A name that no template has is a filter that nothing passes. */
static void on_template_failed(struct call *c, const struct err *e)
{
    if (e->code != ERR_NOT_FOUND) {
        call_fail(c, e);
        return;
    }
    call_json(c);
    buf_puts(&c->w->out, "[]");
    call_send_json(c, 200);
}

void handle_sandbox_list_v2(struct call *c)
{
    struct err e = {0};
    struct listing *l = c->state = call_alloc(c, sizeof *l);
    cube__master__v1__list_request__init(&l->request);
    if (list_parse(c, &l->request, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    l->request.team_id = c->caller.team_id;
    l->total = l->request.running;
    if (!*l->request.template_id) {
        send_list(c);
        return;
    }
    Cube__Master__V1__GetTemplateRequest in = CUBE__MASTER__V1__GET_TEMPLATE_REQUEST__INIT;
    in.name = l->request.template_id;
    in.team_id = c->caller.team_id;
    call_master(c, MASTER_CATALOG "GetTemplate", &in.base, &cube__master__v1__template__descriptor,
                UPSTREAM_READ, on_template, on_template_failed);
}

void handle_sandbox_list_v1(struct call *c)
{
    struct err e = {0};
    Cube__Master__V1__ListRequest in = CUBE__MASTER__V1__LIST_REQUEST__INIT;
    if (list_metadata(c, &in, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    in.team_id = c->caller.team_id;
    in.running = true;
    call_master(c, MASTER_SANDBOXES "List", &in.base, &cube__master__v1__list_reply__descriptor,
                UPSTREAM_READ, on_listed, NULL);
}

/* ---- metrics ---- */

static void on_metrics(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__MetricsReply *r = (const Cube__Master__V1__MetricsReply *)m;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_points; i++)
        present_metric(&w, r->points[i]);
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

void handle_sandbox_metrics(struct call *c)
{
    struct err e = {0};
    int64_t start, end;
    Cube__Master__V1__MetricsRequest in = CUBE__MASTER__V1__METRICS_REQUEST__INIT;
    char *id = (char *)path_sandbox_id(c);
    if (!id)
        return;
    if (query_int(&c->query, "start", 0, INT32_MAX * 2LL, 0, &start, &e) < 0 ||
        query_int(&c->query, "end", 0, INT32_MAX * 2LL, 0, &end, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    if (end && start > end) {
        call_error(c, ERR_INVALID, "validation error: 'start' is after 'end'");
        return;
    }
    in.n_sandbox_ids = 1;
    in.sandbox_ids = &id;
    in.team_id = c->caller.team_id;
    in.start_ms = start * 1000;
    in.end_ms = end ? end * 1000 + 999 : 0;
    call_master(c, MASTER_SANDBOXES "Metrics", &in.base, &cube__master__v1__metrics_reply__descriptor,
                UPSTREAM_READ, on_metrics, NULL);
}

struct metrics_ids {
    size_t n;
    char *ids[METRICS_MAX_IDS];
};

static void on_many_metrics(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__MetricsReply *r = (const Cube__Master__V1__MetricsReply *)m;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_key(&w, "sandboxes");
    jsonw_obj(&w);
    const struct metrics_ids *asked = c->state;
    for (size_t i = 0; i < asked->n; i++) {
        const Cube__Master__V1__MetricPoint *newest = NULL;
        for (size_t k = 0; k < r->n_points; k++)
            if (strcmp(r->points[k]->sandbox_id, asked->ids[i]) == 0 &&
                (!newest || r->points[k]->ts_ms >= newest->ts_ms))
                newest = r->points[k];
        if (!newest)
            continue;
        jsonw_key(&w, asked->ids[i]);
        present_metric(&w, newest);
    }
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_sandbox_metrics_many(struct call *c)
{
    struct err e = {0};
    Cube__Master__V1__MetricsRequest in = CUBE__MASTER__V1__METRICS_REQUEST__INIT;
    const char *list = query_get(&c->query, "sandbox_ids");
    if (!list || !*list) {
        call_error(c, ERR_INVALID, "validation error: query parameter 'sandbox_ids' is required");
        return;
    }
    struct metrics_ids *asked = c->state = call_alloc(c, sizeof *asked);
    asked->n = 0;
    for (char *text = call_strdup(c, list); text;) {
        char *id = strsep(&text, ",");
        if (asked->n == METRICS_MAX_IDS) {
            call_error(c, ERR_INVALID, "validation error: 'sandbox_ids' names more than %d sandboxes",
                       METRICS_MAX_IDS);
            return;
        }
        char *clean = call_alloc(c, 24);
        if (sandbox_id_parse(id, clean, &e) == 0) {
            asked->ids[asked->n++] = clean;
        } else if (e.code == ERR_INVALID) {
            call_fail(c, &e);
            return;
        }
    }
    in.n_sandbox_ids = asked->n;
    in.sandbox_ids = asked->ids;
    in.team_id = c->caller.team_id;
    in.start_ms = clock_realtime_ms() - NEWEST_WITHIN_MS;
    call_master(c, MASTER_SANDBOXES "Metrics", &in.base, &cube__master__v1__metrics_reply__descriptor,
                UPSTREAM_READ, on_many_metrics, NULL);
}
