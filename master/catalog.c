/* Owns keys, teams and templates: the Catalog service. Invariant: an answered write is in Redis and in the journal; keys
 * are known by their digest only. */
#include "master/cell.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "master/ops.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cube__Master__V1__Team Team;
typedef Cube__Master__V1__Template Template;
typedef Cube__Master__V1__Key Key;

static bool name_ok(const char *s, size_t max, const char *extra)
{
    size_t n = strlen(s);
    if (n == 0 || n > max)
        return false;
    for (const char *p = s; *p; p++)
        if (!islower((unsigned char)*p) && !isdigit((unsigned char)*p) && !strchr(extra, *p))
            return false;
    return true;
}

static const char *field(const redisReply *hash, const char *name)
{
    for (size_t i = 0; i + 1 < hash->elements; i += 2)
        if (strcmp(hash->element[i]->str, name) == 0)
            return hash->element[i + 1]->str;
    return "";
}

static char *copy(const char *s)
{
    char *c = strdup(s);
    if (!c)
        abort();
    return c;
}

static void set(char **at, const char *s)
{
    *at = copy(s);
}

static int int_parse(const redisReply *r, void *out, struct err *e)
{
    *(int64_t *)out = r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
    return 0;
}

/* ---- teams ---- */

static Team *team_new(const redisReply *hash, const char *id)
{
    Team *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    cube__master__v1__team__init(t);
    set(&t->team_id, id);
    set(&t->name, field(hash, "name"));
    set(&t->slug, field(hash, "slug"));
    t->blocked = strcmp(field(hash, "blocked"), "1") == 0;
    t->max_sandboxes = (uint32_t)strtoul(field(hash, "max_sandboxes"), NULL, 10);
    t->max_vcpus = (uint32_t)strtoul(field(hash, "max_vcpus"), NULL, 10);
    t->max_memory_mib = strtoull(field(hash, "max_memory_mib"), NULL, 10);
    t->creates_per_s = (uint32_t)strtoul(field(hash, "creates_per_s"), NULL, 10);
    t->max_timeout_ms = strtoll(field(hash, "max_timeout_ms"), NULL, 10);
    return t;
}

static int team_write(struct master *m, const char *mode, const Team *t, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    int64_t done = 0;
    db_args_start(&a, m);
    db_arg(&a, mode);
    db_arg(&a, "team");
    db_arg(&a, t->team_id);
    const struct {
        const char *name, *text;
        int64_t number;
    } rows[] = {
        {"name", t->name, 0},
        {"slug", t->slug, 0},
        {"blocked", NULL, t->blocked},
        {"max_sandboxes", NULL, t->max_sandboxes},
        {"max_vcpus", NULL, t->max_vcpus},
        {"max_memory_mib", NULL, (int64_t)t->max_memory_mib},
        {"creates_per_s", NULL, t->creates_per_s},
        {"max_timeout_ms", NULL, t->max_timeout_ms},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        db_arg(&a, rows[i].name);
        if (rows[i].text)
            db_arg(&a, rows[i].text);
        else
            db_arg_int(&a, rows[i].number);
    }
    return db_eval(m, &script_catalog, &a, int_parse, &done, e);
}

static void serve_put_team(struct request *r)
{
    Team *t = (Team *)r->in;
    struct err e = {0};
    if (strlen(t->team_id) > TEAM_ID_MAX || !name_ok(t->team_id, TEAM_ID_MAX, "-_") || (*t->slug && !name_ok(t->slug, 63, "-_")) ||
        strlen(t->name) > 256 || t->max_memory_mib > INT64_MAX / 2 || t->max_timeout_ms < 0) {
        err_set(&e, ERR_INVALID, "a team has an ID and a slug of 1 to 63 of [a-z0-9_-], and a name of at most 256 bytes");
        request_fail(r, &e);
        return;
    }
    if (!*t->slug) {
        if (t->slug != protobuf_c_empty_string)
            free(t->slug);
        t->slug = copy(t->team_id);
    }
    size_t n = cube__master__v1__team__get_packed_size(t);
    _cleanup_free_ uint8_t *bytes = malloc(n + 1);
    if (!bytes)
        abort();
    cube__master__v1__team__pack(t, bytes);
    if (team_write(r->m, "force", t, &e) < 0 || journal_append(r->m->journal, "team", bytes, n, &e) < 0)
        request_fail(r, &e);
    else
        request_reply(r, &t->base);
}

struct team_get {
    const char *id;
    Team *team;
};

static int team_parse(const redisReply *r, void *out, struct err *e)
{
    struct team_get *g = out;
    if (r->type != REDIS_REPLY_ARRAY || r->elements == 0)
        return err_set(e, ERR_NOT_FOUND, "team %s not found", g->id);
    g->team = team_new(r, g->id);
    return 0;
}

int catalog_team(struct master *m, const char *id, Cube__Master__V1__Team **out, struct err *e)
{
    struct team_get g = {.id = id};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "team");
    db_arg(&a, id);
    int rc = db_eval(m, &script_catalog_get, &a, team_parse, &g, e);
    *out = g.team;
    return rc;
}

static void serve_get_team(struct request *r)
{
    Team *t = NULL;
    struct err e = {0};
    if (catalog_team(r->m, ((Cube__Master__V1__GetTeamRequest *)r->in)->team_id, &t, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    request_reply(r, &t->base);
    cube__master__v1__team__free_unpacked(t, NULL);
}

/* ---- keys ---- */

static Key *key_new(const redisReply *hash)
{
    Key *k = calloc(1, sizeof *k);
    if (!k)
        abort();
    cube__master__v1__key__init(k);
    set(&k->key_id, field(hash, "id"));
    set(&k->team_id, field(hash, "team"));
    set(&k->name, field(hash, "name"));
    set(&k->mask, field(hash, "mask"));
    k->created_ms = strtoll(field(hash, "created"), NULL, 10);
    k->admin = strcmp(field(hash, "admin"), "1") == 0;
    return k;
}

struct key_get {
    Key *key;
    Team *team;
};

static int key_parse(const redisReply *r, void *out, struct err *e)
{
    struct key_get *g = out;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2)
        return err_set(e, ERR_UNAUTHENTICATED, "the API key is not known");
    g->key = key_new(r->element[0]);
    g->team = team_new(r->element[1], g->key->team_id);
    return 0;
}

static void key_get_free(struct key_get *g)
{
    if (g->key)
        cube__master__v1__key__free_unpacked(g->key, NULL);
    if (g->team)
        cube__master__v1__team__free_unpacked(g->team, NULL);
}

static bool digest_ok(const char *s)
{
    return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

static int key_find(struct master *m, const char *digest, struct key_get *g, struct err *e)
{
    if (!digest_ok(digest))
        return err_set(e, ERR_INVALID, "a key is named by 64 lower-case hex digits of its SHA-256");
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "key");
    db_arg(&a, digest);
    return db_eval(m, &script_catalog_get, &a, key_parse, g, e);
}

static void serve_check_key(struct request *r)
{
    Cube__Master__V1__CheckKeyRequest *q = (Cube__Master__V1__CheckKeyRequest *)r->in;
    struct key_get g = {0};
    struct err e = {0};
    if (key_find(r->m, q->key_sha256, &g, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__CheckKeyReply reply = CUBE__MASTER__V1__CHECK_KEY_REPLY__INIT;
    reply.team = g.team;
    reply.key_id = g.key->key_id;
    reply.admin = g.key->admin;
    request_reply(r, &reply.base);
    key_get_free(&g);
}

static int key_write(struct master *m, const char *mode, const char *digest, const Key *k, int64_t *done, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, mode);
    db_arg(&a, "key");
    db_arg(&a, digest);
    db_arg(&a, k->key_id);
    db_arg(&a, k->team_id);
    db_arg(&a, k->name);
    db_arg(&a, k->mask);
    db_arg(&a, k->admin ? "1" : "0");
    db_arg_int(&a, k->created_ms);
    return db_eval(m, &script_catalog, &a, int_parse, done, e);
}

static int key_journal(struct master *m, const char *digest, const Key *k, struct err *e)
{
    size_t n = cube__master__v1__key__get_packed_size(k);
    _cleanup_free_ uint8_t *bytes = malloc(64 + n);
    if (!bytes)
        abort();
    memcpy(bytes, digest, 64);
    cube__master__v1__key__pack(k, bytes + 64);
    return journal_append(m->journal, "key", bytes, 64 + n, e);
}

static void serve_create_key(struct request *r)
{
    Cube__Master__V1__CreateKeyRequest *q = (Cube__Master__V1__CreateKeyRequest *)r->in;
    struct err e = {0};
    char id[37];
    int64_t done = 0;
    Key k = CUBE__MASTER__V1__KEY__INIT;
    id_uuid(id);
    k.key_id = id;
    k.team_id = q->team_id;
    k.name = q->name;
    k.mask = q->mask;
    k.admin = q->admin;
    k.created_ms = r->m->now_ms();
    if (!digest_ok(q->key_sha256))
        err_set(&e, ERR_INVALID, "a key is named by 64 lower-case hex digits of its SHA-256");
    else if (strlen(q->name) > 256 || strlen(q->mask) > 256)
        err_set(&e, ERR_INVALID, "a key's name has at most 256 bytes");
    else if (key_write(r->m, "force", q->key_sha256, &k, &done, &e) == 0 && done < 0)
        err_set(&e, ERR_NOT_FOUND, "team %.63s not found", q->team_id);
    else if (!e.code && done == 1)
        key_journal(r->m, q->key_sha256, &k, &e);
    struct key_get known = {0};
    if (!e.code && done == 0 && key_find(r->m, q->key_sha256, &known, &e) == 0 && strcmp(known.key->team_id, q->team_id) != 0)
        err_set(&e, ERR_CONFLICT, "this key exists and belongs to another team");
    if (e.code) {
        request_fail(r, &e);
    } else {
        Cube__Master__V1__CreateKeyReply reply = CUBE__MASTER__V1__CREATE_KEY_REPLY__INIT;
        reply.key = known.key ? known.key : &k;
        request_reply(r, &reply.base);
    }
    key_get_free(&known);
}

struct key_list {
    Key **keys;
    size_t n;
};

static int keys_parse(const redisReply *r, void *out, struct err *e)
{
    struct key_list *l = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "listing keys: unexpected answer");
    l->keys = calloc(r->elements + 1, sizeof *l->keys);
    if (!l->keys)
        abort();
    for (size_t i = 0; i < r->elements; i++)
        if (r->element[i]->type == REDIS_REPLY_ARRAY && r->element[i]->elements)
            l->keys[l->n++] = key_new(r->element[i]);
    return 0;
}

static void serve_list_keys(struct request *r)
{
    Cube__Master__V1__ListKeysRequest *q = (Cube__Master__V1__ListKeysRequest *)r->in;
    struct key_list l = {0};
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    db_arg(&a, "keys");
    db_arg(&a, q->team_id);
    if (db_eval(r->m, &script_catalog_get, &a, keys_parse, &l, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__ListKeysReply reply = CUBE__MASTER__V1__LIST_KEYS_REPLY__INIT;
    reply.keys = l.keys;
    reply.n_keys = l.n;
    request_reply(r, &reply.base);
    for (size_t i = 0; i < l.n; i++)
        cube__master__v1__key__free_unpacked(l.keys[i], NULL);
    free(l.keys);
}

static int digest_parse(const redisReply *r, void *out, struct err *e)
{
    if (r->type != REDIS_REPLY_STRING || r->len != 64)
        return err_set(e, ERR_NOT_FOUND, "no such key");
    memcpy(out, r->str, 65);
    return 0;
}

static void serve_delete_key(struct request *r)
{
    Cube__Master__V1__DeleteKeyRequest *q = (Cube__Master__V1__DeleteKeyRequest *)r->in;
    char digest[65];
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    db_arg(&a, "force");
    db_arg(&a, "unkey");
    db_arg(&a, q->team_id);
    db_arg(&a, q->key_id);
    if (db_eval(r->m, &script_catalog, &a, digest_parse, digest, &e) < 0 ||
        journal_append(r->m->journal, "unkey", digest, 64, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__Empty reply = CUBE__MASTER__V1__EMPTY__INIT;
    request_reply(r, &reply.base);
}

/* ---- templates ---- */

static int template_write(struct master *m, const char *mode, const Template *t, const uint8_t *packed, size_t n, struct err *e)
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
    for (size_t i = 0; i < t->n_aliases; i++) /* global names are kept below an empty namespace */
        db_arg_printf(&a, "%s%s", strchr(t->aliases[i], '/') ? "" : "/", t->aliases[i]);
    return db_eval(m, &script_catalog, &a, int_parse, &done, e);
}

static int template_check(const Template *t, struct err *e)
{
    if (!name_ok(t->template_id, TEMPLATE_ID_MAX, "-_:/."))
        return err_set(e, ERR_INVALID, "a template ID is 1 to %d of [a-z0-9._:/-]", TEMPLATE_ID_MAX);
    if (strlen(t->team_id) > TEAM_ID_MAX || t->n_aliases > 64)
        return err_set(e, ERR_INVALID, "template %s: a team ID of at most 63 bytes and at most 64 names", t->template_id);
    for (size_t i = 0; i < t->n_aliases; i++)
        if (!name_ok(t->aliases[i], TEMPLATE_ID_MAX, "-_:/."))
            return err_set(e, ERR_INVALID, "template %s: a name is 1 to %d of [a-z0-9._:/-]", t->template_id, TEMPLATE_ID_MAX);
    if (!t->limits || !t->limits->vcpus || t->limits->vcpus > 1024 || t->limits->memory_mib < 16)
        return err_set(e, ERR_INVALID, "template %s: vCPUs (1 to 1024) and memory (at least 16 MiB) are needed", t->template_id);
    return 0;
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
    if (template_write(m, "force", t, bytes, n, e) < 0)
        return -1;
    return journal_append(m->journal, "template", bytes, n, e);
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
    Template *t = cube__master__v1__template__unpack(NULL, row->element[0]->len, (const uint8_t *)row->element[0]->str);
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
    if (strcmp(what, "ok") == 0 && r->elements == 3 && (g->t = template_read(r->element[2])))
        return 0;
    if (strcmp(what, "tag") == 0)
        return err_set(e, ERR_NOT_FOUND, "tag '%.60s' does not exist for template '%.120s'", g->tag, g->name);
    if (strcmp(what, "forbidden") == 0)
        return err_set(e, ERR_FORBIDDEN, "template '%.120s' belongs to another team", g->name);
    return err_set(e, ERR_NOT_FOUND, "template '%.120s' not found", g->name);
}

int catalog_template(struct master *m, const char *team, const char *name, Cube__Master__V1__Template **out, struct err *e)
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
    if (!name_ok(text, TEMPLATE_ID_MAX, "-_/.") || (tag && *tag && !name_ok(tag, 128, "-_.")))
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

static void serve_get_template(struct request *r)
{
    Cube__Master__V1__GetTemplateRequest *q = (Cube__Master__V1__GetTemplateRequest *)r->in;
    Template *t = NULL;
    struct err e = {0};
    if (catalog_template(r->m, q->team_id, q->name, &t, &e) < 0) {
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
        if (t && (l->snapshots ? *t->source_sandbox != 0 : *t->source_sandbox == 0))
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
        _cleanup_db_args_ struct db_args a;
        db_args_start(&a, r->m);
        db_arg(&a, "force");
        db_arg(&a, "untemplate");
        db_arg(&a, t->template_id);
        if (db_eval(r->m, &script_catalog, &a, int_parse, &done, &e) == 0)
            journal_append(r->m->journal, "untemplate", t->template_id, strlen(t->template_id), &e);
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

int catalog_replay(struct master *m, const char *kind, const uint8_t *payload, size_t n, struct err *e)
{
    int rc = 0;
    int64_t done;
    if (strcmp(kind, "team") == 0) {
        Team *t = cube__master__v1__team__unpack(NULL, n, payload);
        if (t) {
            rc = team_write(m, "absent", t, e);
            cube__master__v1__team__free_unpacked(t, NULL);
        }
    } else if (strcmp(kind, "key") == 0 && n > 64) {
        char digest[65] = "";
        memcpy(digest, payload, 64);
        Key *k = digest_ok(digest) ? cube__master__v1__key__unpack(NULL, n - 64, payload + 64) : NULL;
        if (k) {
            rc = key_write(m, "absent", digest, k, &done, e);
            cube__master__v1__key__free_unpacked(k, NULL);
        }
    } else if (strcmp(kind, "template") == 0) {
        Template *t = cube__master__v1__template__unpack(NULL, n, payload);
        if (t) {
            rc = template_write(m, "absent", t, payload, n, e);
            cube__master__v1__template__free_unpacked(t, NULL);
        }
    }
    return rc;
}

REQUEST_START(serve_check_key)
REQUEST_START(serve_create_key)
REQUEST_START(serve_list_keys)
REQUEST_START(serve_delete_key)
REQUEST_START(serve_put_team)
REQUEST_START(serve_get_team)
REQUEST_START(serve_put_template)
REQUEST_START(serve_get_template)
REQUEST_START(serve_list_templates)
REQUEST_START(serve_delete_template)

#define METHOD(name, in_type, out_type, fn)                                                                  \
    {.path = "/cube.master.v1.Catalog/" name,                                                                \
     .in = &cube__master__v1__##in_type##__descriptor,                                                       \
     .out = &cube__master__v1__##out_type##__descriptor,                                                     \
     .roles = RPC_ROLE_API | RPC_ROLE_ADMIN,                                                                 \
     .start = start_##fn}

const struct rpc_method catalog_methods[] = {
    METHOD("CheckKey", check_key_request, check_key_reply, serve_check_key),
    METHOD("CreateKey", create_key_request, create_key_reply, serve_create_key),
    METHOD("ListKeys", list_keys_request, list_keys_reply, serve_list_keys),
    METHOD("DeleteKey", delete_key_request, empty, serve_delete_key),
    METHOD("PutTeam", team, team, serve_put_team),
    METHOD("GetTeam", get_team_request, team, serve_get_team),
    METHOD("PutTemplate", template, template, serve_put_template),
    METHOD("GetTemplate", get_template_request, template, serve_get_template),
    METHOD("ListTemplates", list_templates_request, list_templates_reply, serve_list_templates),
    METHOD("DeleteTemplate", get_template_request, empty, serve_delete_template),
    {0},
};
