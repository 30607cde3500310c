/* Owns keys and teams of the Catalog service, and the replay of its journal. Invariant: an answered write is
 * in Redis and in the journal; keys are known by their digest only. */
#include "master/cell.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "master/catalog.h"
#include "master/ops.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cube__Master__V1__Team Team;
typedef Cube__Master__V1__Key Key;

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
    t->max_snapshots = (uint32_t)strtoul(field(hash, "max_snapshots"), NULL, 10);
    t->idle_ms = strtoll(field(hash, "idle_ms"), NULL, 10);
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
        {"idle_ms", NULL, t->idle_ms},
        {"max_snapshots", NULL, t->max_snapshots},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        db_arg(&a, rows[i].name);
        if (rows[i].text)
            db_arg(&a, rows[i].text);
        else
            db_arg_int(&a, rows[i].number);
    }
    if (db_eval(m, &script_catalog, &a, catalog_int_parse, &done, e) < 0)
        return -1;
    return done < 0 ? err_set(e, ERR_CONFLICT, "the slug '%s' belongs to another team", t->slug) : 0;
}

static void serve_put_team(struct request *r)
{
    Team *t = (Team *)r->in;
    struct err e = {0};
    if (strlen(t->team_id) > TEAM_ID_MAX || !catalog_name_ok(t->team_id, TEAM_ID_MAX, "-_") ||
        (*t->slug && !catalog_name_ok(t->slug, 63, "-_")) || strlen(t->name) > 256 ||
        t->max_memory_mib > INT64_MAX / 2 || t->max_timeout_ms < 0 || t->idle_ms < 0 ||
        t->idle_ms > IDLE_MS_MAX) {
        err_set(&e, ERR_INVALID,
                "a team has an ID and a slug of 1 to 63 of [a-z0-9_-], and a name of at most 256 bytes");
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

static int key_write(struct master *m, const char *mode, const char *digest, const Key *k, int64_t *done,
                     struct err *e)
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
    return db_eval(m, &script_catalog, &a, catalog_int_parse, done, e);
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

static int digest_parse(const redisReply *r, void *out, struct err *e)
{
    if (r->type != REDIS_REPLY_STRING || r->len != 64)
        return err_set(e, ERR_NOT_FOUND, "no such key");
    memcpy(out, r->str, 65);
    return 0;
}

static void key_remove(struct master *m, const Key *k)
{
    struct err e = {0};
    char digest[65];
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "unkey");
    db_arg(&a, k->team_id);
    db_arg(&a, k->key_id);
    if (db_eval(m, &script_catalog, &a, digest_parse, digest, &e) < 0)
        log_fail(&e, "taking back key %s, which could not be written down", k->key_id);
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
    else if (key_write(r->m, "force", q->key_sha256, &k, &done, &e) == 0 && done < -1)
        err_set(&e, ERR_CONFLICT, "the team has as many API keys as a team may have; delete some first");
    else if (!e.code && done < 0)
        err_set(&e, ERR_NOT_FOUND, "team %.63s not found", q->team_id);
    else if (!e.code && done == 1 && key_journal(r->m, q->key_sha256, &k, &e) < 0)
        key_remove(r->m, &k); /* what the journal does not have would be gone after a loss of data */
    struct key_get known = {0};
    if (!e.code && done == 0 && key_find(r->m, q->key_sha256, &known, &e) == 0) {
        if (strcmp(known.key->team_id, q->team_id) != 0)
            err_set(&e, ERR_CONFLICT, "this key exists and belongs to another team");
        else /* who made it may have died before this */
            key_journal(r->m, q->key_sha256, known.key, &e);
    }
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

static int key_digest(struct master *m, const char *team, const char *key_id, char digest[65], struct err *e)
{
    char name[32 + TEAM_ID_MAX];
    if (strlen(team) > TEAM_ID_MAX)
        return err_set(e, ERR_NOT_FOUND, "no such key");
    snprintf(name, sizeof name, "%s:keys:%s", m->prefix, team);
    return db_command(m, 3, (const char *[]){"HGET", name, key_id}, digest_parse, digest, e);
}

/* The journal first: who dies between the two, or cannot write it, leaves a key that works and can be revoked
 * again. The other way round it would be gone for whoever asks, and come back with a replay. */
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
    if (key_digest(r->m, q->team_id, q->key_id, digest, &e) < 0 ||
        journal_append(r->m->journal, "unkey", digest, 64, &e) < 0 ||
        db_eval(r->m, &script_catalog, &a, digest_parse, digest, &e) < 0) {
        request_fail(r, &e);
        return;
    }
    Cube__Master__V1__Empty reply = CUBE__MASTER__V1__EMPTY__INIT;
    request_reply(r, &reply.base);
}

/* The new name is a new entry of the key in the journal: the last one is replayed. */
static void serve_rename_key(struct request *r)
{
    Cube__Master__V1__RenameKeyRequest *q = (Cube__Master__V1__RenameKeyRequest *)r->in;
    char digest[65];
    struct err e = {0};
    struct key_get g = {0};
    if (strlen(q->name) > 256) {
        err_set(&e, ERR_INVALID, "a key's name has at most 256 bytes");
        request_fail(r, &e);
        return;
    }
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    db_arg(&a, "force");
    db_arg(&a, "rename");
    db_arg(&a, q->team_id);
    db_arg(&a, q->key_id);
    db_arg(&a, q->name);
    if (db_eval(r->m, &script_catalog, &a, digest_parse, digest, &e) < 0 ||
        key_find(r->m, digest, &g, &e) < 0 || key_journal(r->m, digest, g.key, &e) < 0) {
        request_fail(r, &e);
    } else {
        Cube__Master__V1__CreateKeyReply reply = CUBE__MASTER__V1__CREATE_KEY_REPLY__INIT;
        reply.key = g.key;
        request_reply(r, &reply.base);
    }
    key_get_free(&g);
}

static int counts_parse(const redisReply *r, void *out, struct err *e)
{
    Cube__Master__V1__RunningCountsReply *reply = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "counting sandboxes: unexpected answer");
    reply->counts = calloc(r->elements + 1, sizeof *reply->counts);
    for (size_t i = 0; reply->counts && i < r->elements; i++) {
        const redisReply *row = r->element[i];
        if (row->type != REDIS_REPLY_ARRAY || row->elements != 2)
            continue;
        Cube__Master__V1__TeamCount *t = calloc(1, sizeof *t);
        if (!t)
            break;
        cube__master__v1__team_count__init(t);
        t->team_id = strdup(row->element[0]->str ? row->element[0]->str : "");
        t->sandboxes = (uint32_t)strtoul(row->element[1]->str ? row->element[1]->str : "0", NULL, 10);
        reply->counts[reply->n_counts++] = t;
    }
    return reply->counts ? 0 : err_set(e, ERR_INTERNAL, "counting sandboxes: out of memory");
}

static void serve_running_counts(struct request *r)
{
    struct err e = {0};
    Cube__Master__V1__RunningCountsReply *reply = calloc(1, sizeof *reply);
    if (!reply)
        abort();
    cube__master__v1__running_counts_reply__init(reply);
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    db_arg(&a, "running");
    if (db_eval(r->m, &script_catalog_get, &a, counts_parse, reply, &e) < 0)
        request_fail(r, &e);
    else
        request_reply(r, &reply->base);
    cube__master__v1__running_counts_reply__free_unpacked(reply, NULL);
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
        Cube__Master__V1__Template *t = cube__master__v1__template__unpack(NULL, n, payload);
        if (t) {
            rc = catalog_template_write(m, "absent", t, payload, n, e);
            cube__master__v1__template__free_unpacked(t, NULL);
        }
    } else if (strcmp(kind, "drop") == 0) {
        char node[NODE_ID_MAX + 1], id[TEMPLATE_ID_MAX + 1];
        const char *space = memchr(payload, ' ', n);
        if (space &&
            snprintf(node, sizeof node, "%.*s", (int)(space - (const char *)payload), (const char *)payload) <
                (int)sizeof node &&
            snprintf(id, sizeof id, "%s", space + 1) < (int)sizeof id)
            rc = drops_note(m, node, id, m->now_ms(), e);
    }
    return rc;
}

REQUEST_START(serve_check_key)
REQUEST_START(serve_create_key)
REQUEST_START(serve_list_keys)
REQUEST_START(serve_delete_key)
REQUEST_START(serve_rename_key)
REQUEST_START(serve_running_counts)
REQUEST_START(serve_put_team)
REQUEST_START(serve_get_team)

#define METHOD(name, in_type, out_type, fn)                                                                  \
    {                                                                                                        \
        .path = "/cube.master.v1.Catalog/" name, .in = &cube__master__v1__##in_type##__descriptor,           \
        .out = &cube__master__v1__##out_type##__descriptor, .roles = RPC_ROLE_API | RPC_ROLE_ADMIN,          \
        .start = start_##fn                                                                                  \
    }

const struct rpc_method catalog_methods[] = {
    METHOD("CheckKey", check_key_request, check_key_reply, serve_check_key),
    METHOD("CreateKey", create_key_request, create_key_reply, serve_create_key),
    METHOD("ListKeys", list_keys_request, list_keys_reply, serve_list_keys),
    METHOD("DeleteKey", delete_key_request, empty, serve_delete_key),
    METHOD("RenameKey", rename_key_request, create_key_reply, serve_rename_key),
    METHOD("RunningCounts", empty, running_counts_reply, serve_running_counts),
    METHOD("PutTeam", team, team, serve_put_team),
    METHOD("GetTeam", get_team_request, team, serve_get_team),
    {0},
};
