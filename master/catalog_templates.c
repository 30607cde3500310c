/* Owns the templates and snapshots of the Catalog service: their names, who sees them, writes and lists.
 * Invariant: a name resolves to what its team may see or to nothing (contracts/e2b.md §1.5). */
#include "master/catalog.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "master/cell.h"
#include "master/ops.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cube__Master__V1__Template Template;

bool catalog_name_ok(const char *s, size_t max, const char *extra)
{
    size_t n = strlen(s);
    if (n == 0 || n > max)
        return false;
    for (const char *p = s; *p; p++)
        if (!islower((unsigned char)*p) && !isdigit((unsigned char)*p) && !strchr(extra, *p))
            return false;
    return true;
}

int catalog_int_parse(const redisReply *r, void *out, struct err *e)
{
    *(int64_t *)out = r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
    return 0;
}

/* `most` 0: not known here. */
static int snapshots_full(int64_t most, struct err *e)
{
    char limit[32] = "";
    if (most)
        snprintf(limit, sizeof limit, " (%" PRId64 ")", most);
    err_set(e, ERR_RATE_LIMITED, "the team's limit of snapshots is reached%s, those of living forks included",
            limit);
    return err_remedy(e, "delete snapshots: DELETE /templates/{snapshotID}");
}

int catalog_template_write(struct master *m, const char *mode, const Template *t, const uint8_t *packed,
                           size_t n, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    int64_t done = 0;
    db_args_start(&a, m);
    db_arg(&a, mode);
    db_arg(&a, "template");
    db_arg(&a, t->template_id);
    db_arg(&a, t->team_id);
    db_arg(&a, t->public_ ? "1" : "0");
    db_arg_bytes(&a, packed, n);
    db_arg_int(&a, t->created_ms);
    db_arg(&a, t->fork ? "fork" : *t->source_sandbox ? "snapshot" : "built");
    db_arg(&a, t->node_id);
    for (size_t i = 0; i < t->n_aliases; i++) /* global names are kept below an empty namespace */
        db_arg_printf(&a, "%s%s", strchr(t->aliases[i], '/') ? "" : "/", t->aliases[i]);
    if (db_eval(m, &script_catalog, &a, catalog_int_parse, &done, e) < 0)
        return -1;
    return done < 0 ? snapshots_full(0, e) : 0;
}

struct room {
    int64_t used, most;
};

static int room_parse(const redisReply *r, void *out, struct err *e)
{
    struct room *room = out;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2)
        return err_set(e, ERR_INTERNAL, "counting snapshots: unexpected answer");
    *room = (struct room){r->element[0]->integer, r->element[1]->integer};
    return 0;
}

int catalog_snapshot_room(struct master *m, const char *team, struct err *e)
{
    struct room room = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "snapshots");
    db_arg(&a, team);
    if (db_eval(m, &script_catalog_get, &a, room_parse, &room, e) < 0)
        return -1;
    return room.used < room.most ? 0 : snapshots_full(room.most, e);
}

static int template_check(const Template *t, struct err *e)
{
    if (!catalog_name_ok(t->template_id, TEMPLATE_ID_MAX, "-_:/."))
        return err_set(e, ERR_INVALID, "a template ID is 1 to %d of [a-z0-9._:/-]", TEMPLATE_ID_MAX);
    if (strlen(t->team_id) > TEAM_ID_MAX || t->n_aliases > 64)
        return err_set(e, ERR_INVALID, "template %s: a team ID of at most 63 bytes and at most 64 names",
                       t->template_id);
    for (size_t i = 0; i < t->n_aliases; i++)
        if (!catalog_name_ok(t->aliases[i], TEMPLATE_ID_MAX, "-_:/."))
            return err_set(e, ERR_INVALID, "template %s: a name is 1 to %d of [a-z0-9._:/-]", t->template_id,
                           TEMPLATE_ID_MAX);
    if (!t->limits || !t->limits->vcpus || t->limits->vcpus > 1024 || t->limits->memory_mib < 16)
        return err_set(e, ERR_INVALID,
                       "template %s: vCPUs (1 to 1024) and memory (at least 16 MiB) are needed",
                       t->template_id);
    return 0;
}

/* `done`: -2 when sandboxes use it. */
static int template_remove(struct master *m, const char *id, int64_t *done, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "untemplate");
    db_arg(&a, id);
    db_arg_int(&a, m->now_ms());
    return db_eval(m, &script_catalog, &a, catalog_int_parse, done, e);
}

int catalog_put_template(struct master *m, Cube__Master__V1__Template *t, struct err *e)
{
    int64_t now = m->now_ms();
    if (template_check(t, e) < 0)
        return -1;
    t->updated_ms = now;
    if (!t->created_ms)
        t->created_ms = now;
    size_t n = cube__master__v1__template__get_packed_size(t);
    _cleanup_free_ uint8_t *bytes = malloc(n + 1);
    if (!bytes)
        abort();
    cube__master__v1__template__pack(t, bytes);
    if (catalog_template_write(m, "force", t, bytes, n, e) < 0)
        return -1;
    if (journal_append(m->journal, "template", bytes, n, e) == 0)
        return 0;
    struct err why = {0};
    int64_t done;
    if (*t->source_sandbox && template_remove(m, t->template_id, &done, &why) < 0)
        log_fail(&why, "taking back snapshot %s, which could not be written down", t->template_id);
    return -1;
}

static void serve_put_template(struct request *r)
{
    struct err e = {0};
    if (catalog_put_template(r->m, (Template *)r->in, &e) < 0)
        request_fail(r, &e);
    else
        request_reply(r, r->in);
}

/* `row`: pb, team, public, spawn_count, last_spawned. */
static Template *template_read(const redisReply *row)
{
    if (row->type != REDIS_REPLY_ARRAY || row->elements < 5 || row->element[0]->type != REDIS_REPLY_STRING)
        return NULL;
    Template *t =
        cube__master__v1__template__unpack(NULL, row->element[0]->len, (const uint8_t *)row->element[0]->str);
    if (!t)
        return NULL;
    t->spawn_count = row->element[3]->str ? strtoull(row->element[3]->str, NULL, 10) : 0;
    t->last_spawned_ms = row->element[4]->str ? strtoll(row->element[4]->str, NULL, 10) : 0;
    return t;
}

struct template_get {
    const char *name, *tag;
    Template *t;
};

static int template_parse(const redisReply *r, void *out, struct err *e)
{
    struct template_get *g = out;
    const char *what = r->type == REDIS_REPLY_ARRAY && r->elements ? r->element[0]->str : "";
    if (strcmp(what, "ok") == 0 && r->elements == 4 && (g->t = template_read(r->element[2]))) {
        if (!g->t->idle_ms && r->element[3]->str)
            g->t->idle_ms = strtoll(r->element[3]->str, NULL, 10);
        return 0;
    }
    if (strcmp(what, "tag") == 0)
        return err_set(e, ERR_NOT_FOUND, "tag '%.60s' does not exist for template '%.120s'", g->tag, g->name);
    if (strcmp(what, "forbidden") == 0)
        return err_set(e, ERR_FORBIDDEN, "template '%.120s' belongs to another team", g->name);
    return err_set(e, ERR_NOT_FOUND, "template '%.120s' not found", g->name);
}

static int template_find(struct master *m, const char *team, const char *name,
                         Cube__Master__V1__Template **out, struct err *e)
{
    char text[160];
    size_t n = strlen(name);
    while (n && isspace((unsigned char)name[n - 1]))
        n--;
    while (n && isspace((unsigned char)*name)) {
        name++;
        n--;
    }
    if (n == 0 || n >= sizeof text)
        return err_set(e, ERR_NOT_FOUND, "template '%.120s' not found", name);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)tolower((unsigned char)name[i]);
    text[n] = 0;
    char *tag = strchr(text, ':');
    if (tag)
        *tag++ = 0;
    if (!catalog_name_ok(text, TEMPLATE_ID_MAX, "-_/.") || (tag && *tag && !catalog_name_ok(tag, 128, "-_.")))
        return err_set(e, ERR_NOT_FOUND, "template '%.120s' not found", name);
    struct template_get g = {.name = text, .tag = tag ? tag : ""};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "template");
    db_arg(&a, team);
    db_arg(&a, ""); /* the script reads the team's slug */
    db_arg(&a, text);
    db_arg(&a, g.tag);
    int rc = db_eval(m, &script_catalog_get, &a, template_parse, &g, e);
    *out = g.t;
    return rc;
}

int catalog_template(struct master *m, const char *team, const char *name, Cube__Master__V1__Template **out,
                     struct err *e)
{
    if (template_find(m, team, name, out, e) == 0)
        return 0;
    return e->code == ERR_FORBIDDEN ? err_set(e, ERR_NOT_FOUND, "template '%.120s' not found", name) : -1;
}

/* The one that says `forbidden`: the check of an alias tells what is taken from what is free. */
static void serve_get_template(struct request *r)
{
    Cube__Master__V1__GetTemplateRequest *q = (Cube__Master__V1__GetTemplateRequest *)r->in;
    Template *t = NULL;
    struct err e = {0};
    if (template_find(r->m, q->team_id, q->name, &t, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    request_reply(r, &t->base);
    cube__master__v1__template__free_unpacked(t, NULL);
}

static int templates_parse(const redisReply *r, void *out, struct err *e)
{
    struct catalog_list *l = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "listing templates: unexpected answer");
    l->v = calloc(r->elements + 1, sizeof *l->v);
    if (!l->v)
        abort();
    for (size_t i = 0; i < r->elements; i++) {
        Template *t = r->element[i]->elements == 2 ? template_read(r->element[i]->element[1]) : NULL;
        if (t && (l->snapshots ? *t->source_sandbox && !t->fork : *t->source_sandbox == 0))
            l->v[l->n++] = t;
        else if (t)
            cube__master__v1__template__free_unpacked(t, NULL);
    }
    return 0;
}

static int by_creation(const void *a, const void *b)
{
    const Template *x = *(Template *const *)a, *y = *(Template *const *)b;
    if (x->created_ms != y->created_ms)
        return x->created_ms < y->created_ms ? 1 : -1;
    return strcmp(x->template_id, y->template_id);
}

int catalog_list(struct master *m, const char *team, struct catalog_list *l, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "templates");
    db_arg(&a, team);
    if (db_eval(m, &script_catalog_get, &a, templates_parse, l, e) < 0)
        return -1;
    qsort(l->v, l->n, sizeof *l->v, by_creation);
    return 0;
}

void catalog_list_free(struct catalog_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        cube__master__v1__template__free_unpacked(l->v[i], NULL);
    free(l->v);
}

static void serve_list_templates(struct request *r)
{
    struct catalog_list l = {0};
    struct err e = {0};
    if (catalog_list(r->m, ((Cube__Master__V1__ListTemplatesRequest *)r->in)->team_id, &l, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__ListTemplatesReply reply = CUBE__MASTER__V1__LIST_TEMPLATES_REPLY__INIT;
    reply.templates = l.v;
    reply.n_templates = l.n;
    request_reply(r, &reply.base);
    catalog_list_free(&l);
}

/* A deletion that could not be written down has not happened: it would come back with a replay. */
static void template_restore(struct master *m, const Template *t)
{
    struct err e = {0};
    size_t n = cube__master__v1__template__get_packed_size(t);
    _cleanup_free_ uint8_t *bytes = malloc(n + 1);
    if (!bytes)
        abort();
    cube__master__v1__template__pack(t, bytes);
    if (catalog_template_write(m, "absent", t, bytes, n, &e) < 0)
        log_fail(&e, "putting back %s, whose deletion could not be written down", t->template_id);
}

static void serve_delete_template(struct request *r)
{
    Cube__Master__V1__GetTemplateRequest *q = (Cube__Master__V1__GetTemplateRequest *)r->in;
    Template *t = NULL;
    struct err e = {0};
    int64_t done = 0;
    if (catalog_template(r->m, q->team_id, q->name, &t, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    if (*q->team_id && strcmp(t->team_id, q->team_id) != 0) {
        err_set(&e, ERR_FORBIDDEN, "template '%.120s' belongs to another team", q->name);
    } else {
        if (template_remove(r->m, t->template_id, &done, &e) == 0 && done < 0)
            err_set(&e, ERR_INVALID,
                    "template '%.120s' cannot be deleted: running or paused sandboxes use it", q->name);
        else if (!e.code &&
                 journal_append(r->m->journal, "untemplate", t->template_id, strlen(t->template_id), &e) < 0)
            template_restore(r->m, t);
        if (!e.code && *t->source_sandbox)
            snapshot_drop_later(r->m, t->node_id, t->template_id);
    }
    cube__master__v1__template__free_unpacked(t, NULL);
    if (e.code) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__Empty reply = CUBE__MASTER__V1__EMPTY__INIT;
    request_reply(r, &reply.base);
}

REQUEST_START(serve_put_template)
REQUEST_START(serve_get_template)
REQUEST_START(serve_list_templates)
REQUEST_START(serve_delete_template)

#define METHOD(name, in_type, out_type, fn)                                                                  \
    {                                                                                                        \
        .path = "/cube.master.v1.Catalog/" name, .in = &cube__master__v1__##in_type##__descriptor,           \
        .out = &cube__master__v1__##out_type##__descriptor, .roles = RPC_ROLE_API | RPC_ROLE_ADMIN,          \
        .start = start_##fn                                                                                  \
    }

const struct rpc_method templates_methods[] = {
    METHOD("PutTemplate", template, template, serve_put_template),
    METHOD("GetTemplate", get_template_request, template, serve_get_template),
    METHOD("ListTemplates", list_templates_request, list_templates_reply, serve_list_templates),
    METHOD("DeleteTemplate", get_template_request, empty, serve_delete_template),
    {0},
};
