/* Owns teams and API keys. Invariant: a key's text is in memory only while its one answer is written; the
 * master gets the digest and the mask. */
#include "api/auth.h"
#include "api/handlers.h"
#include "api/server.h"
#include "lib/base/ids.h"
#include "lib/net/crypto.h"

#include <stdio.h>
#include <string.h>

#define KEY_PREFIX "e2b_"
#define KEY_HEX 40
#define KEY_LEN (sizeof KEY_PREFIX - 1 + KEY_HEX)
#define MASK_HEAD 2 /* characters of the value that a mask shows at each end */
#define MASK_TAIL 4

struct new_key {
    char text[KEY_LEN + 1];
    bool shown; /* the API made it, so the answer carries it */
};

/* "ab...cdef": head and tail of the value behind the prefix. */
static void mask_write(struct jsonw *w, const char *mask)
{
    const char *dots = strstr(mask, "...");
    jsonw_key(w, "mask");
    jsonw_obj(w);
    jsonw_kstr(w, "prefix", KEY_PREFIX);
    jsonw_kint(w, "valueLength", KEY_HEX);
    jsonw_key(w, "maskedValuePrefix");
    jsonw_strn(w, mask, dots ? (size_t)(dots - mask) : 0);
    jsonw_kstr(w, "maskedValueSuffix", dots ? dots + 3 : "");
    jsonw_obj_end(w);
}

static void key_write(struct jsonw *w, const Cube__Master__V1__Key *k, const char *text, bool ours)
{
    jsonw_obj(w);
    jsonw_kstr(w, "id", k->key_id);
    jsonw_kstr(w, "name", k->name);
    if (text)
        jsonw_kstr(w, "key", text);
    mask_write(w, k->mask);
    jsonw_key(w, "createdAt");
    jsonw_time_ms(w, k->created_ms);
    jsonw_kstr(w, "createdBy", NULL);
    jsonw_kstr(w, "lastUsed", NULL);
    if (ours) {
        jsonw_kstr(w, "teamID", k->team_id);
        jsonw_kbool(w, "admin", k->admin);
    }
    jsonw_obj_end(w);
}

/* ---- create ---- */

static void on_key_created(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__CreateKeyReply *r = (const Cube__Master__V1__CreateKeyReply *)m;
    struct new_key *k = c->state;
    struct jsonw w = call_json(c);
    key_write(&w, r->key, k->shown ? k->text : NULL, c->route->auth == ROUTE_AUTH_ADMIN);
    explicit_bzero(k->text, sizeof k->text);
    call_send_json(c, 201);
}

static bool key_well_formed(const char *s)
{
    return strncmp(s, KEY_PREFIX, sizeof KEY_PREFIX - 1) == 0 && strlen(s) == KEY_LEN &&
           strspn(s + sizeof KEY_PREFIX - 1, "0123456789abcdef") == KEY_HEX;
}

/* The name of a key in the body; NULL after it ended the call. */
static const char *body_key_name(struct call *c)
{
    struct err e = {0};
    const char *name = NULL;
    if (body_str(c->body, "", "name", 128, &name, &e) < 0)
        call_fail(c, &e);
    else if (!name || !*name)
        call_error(c, ERR_INVALID, "validation error: property 'name' is missing");
    else
        return name;
    return NULL;
}

static void create_key(struct call *c, const char *team, const char *given, bool admin)
{
    const char *name = body_key_name(c);
    if (!name)
        return;
    struct new_key *k = c->state = call_alloc(c, sizeof *k);
    k->shown = !given;
    uint8_t random[KEY_HEX / 2];
    random_bytes(random, sizeof random);
    memcpy(k->text, KEY_PREFIX, sizeof KEY_PREFIX);
    hex_encode(random, sizeof random, k->text + sizeof KEY_PREFIX - 1);
    if (given)
        memcpy(k->text, given, KEY_LEN + 1);
    char digest[65], mask[16];
    sha256_hex(k->text, KEY_LEN, digest);
    snprintf(mask, sizeof mask, "%.*s...%s", MASK_HEAD, k->text + sizeof KEY_PREFIX - 1,
             k->text + KEY_LEN - MASK_TAIL);
    Cube__Master__V1__CreateKeyRequest in = CUBE__MASTER__V1__CREATE_KEY_REQUEST__INIT;
    in.team_id = (char *)team;
    in.name = (char *)name;
    in.key_sha256 = digest;
    in.mask = mask;
    in.admin = admin;
    call_master(c, MASTER_CATALOG "CreateKey", &in.base, &cube__master__v1__create_key_reply__descriptor, 0,
                on_key_created, NULL);
}

void handle_key_create(struct call *c)
{
    static const char *const known[] = {"name", NULL};
    body_unknown(c->body, "", known, &c->unknown);
    create_key(c, c->caller.team_id, NULL, false);
}

void handle_admin_key_create(struct call *c)
{
    static const char *const known[] = {"name", NULL};
    body_unknown(c->body, "", known, &c->unknown);
    create_key(c, c->match.args[0], NULL, false);
}

void handle_cube_key_create(struct call *c)
{
    static const char *const known[] = {"teamID", "name", "key", "admin", NULL};
    struct err e = {0};
    const char *team = "default", *key = NULL;
    bool admin = false;
    if (body_str(c->body, "", "teamID", 63, &team, &e) < 0 ||
        body_str(c->body, "", "key", 256, &key, &e) < 0 ||
        body_bool(c->body, "", "admin", &admin, NULL, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    if (key && !key_well_formed(key)) {
        call_error(c, ERR_INVALID, "validation error: 'key' must be e2b_ and 40 lower-case hex digits");
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    create_key(c, team, key, admin);
}

/* ---- list and delete ---- */

static void on_keys(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListKeysReply *r = (const Cube__Master__V1__ListKeysReply *)m;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_keys; i++)
        key_write(&w, r->keys[i], NULL, c->route->auth == ROUTE_AUTH_ADMIN);
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

static void list_keys(struct call *c, const char *team)
{
    Cube__Master__V1__ListKeysRequest in = CUBE__MASTER__V1__LIST_KEYS_REQUEST__INIT;
    in.team_id = (char *)team;
    call_master(c, MASTER_CATALOG "ListKeys", &in.base, &cube__master__v1__list_keys_reply__descriptor,
                UPSTREAM_READ, on_keys, NULL);
}

static const char *query_team(struct call *c)
{
    const char *team = query_get(&c->query, "teamID");
    return team && *team ? team : "default";
}

void handle_key_list(struct call *c)
{
    list_keys(c, c->caller.team_id);
}

void handle_cube_key_list(struct call *c)
{
    list_keys(c, query_team(c));
}

static void on_key_deleted(struct call *c, const ProtobufCMessage *m)
{
    key_cache_clear(c->w->keys);
    call_send_empty(c, 204);
}

static void delete_key(struct call *c, const char *team, const char *key_id)
{
    Cube__Master__V1__DeleteKeyRequest in = CUBE__MASTER__V1__DELETE_KEY_REQUEST__INIT;
    in.team_id = (char *)team;
    in.key_id = (char *)key_id;
    call_master(c, MASTER_CATALOG "DeleteKey", &in.base, &cube__master__v1__empty__descriptor, 0,
                on_key_deleted, NULL);
}

void handle_key_delete(struct call *c)
{
    delete_key(c, c->caller.team_id, c->match.args[0]);
}

void handle_admin_key_delete(struct call *c)
{
    delete_key(c, c->match.args[0], c->match.args[1]);
}

void handle_cube_key_delete(struct call *c)
{
    delete_key(c, query_team(c), c->match.args[0]);
}

static void on_key_renamed(struct call *c, const ProtobufCMessage *m)
{
    struct jsonw w = call_json(c);
    key_write(&w, ((const Cube__Master__V1__CreateKeyReply *)m)->key, NULL, false);
    call_send_json(c, 200);
}

void handle_key_rename(struct call *c)
{
    static const char *const known[] = {"name", NULL};
    const char *name = body_key_name(c);
    if (!name)
        return;
    body_unknown(c->body, "", known, &c->unknown);
    Cube__Master__V1__RenameKeyRequest in = CUBE__MASTER__V1__RENAME_KEY_REQUEST__INIT;
    in.team_id = c->caller.team_id;
    in.key_id = (char *)c->match.args[0];
    in.name = (char *)name;
    call_master(c, MASTER_CATALOG "RenameKey", &in.base, &cube__master__v1__create_key_reply__descriptor, 0,
                on_key_renamed, NULL);
}

/* ---- teams ---- */

static void on_running_counts(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__RunningCountsReply *r = (const Cube__Master__V1__RunningCountsReply *)m;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    for (size_t i = 0; i < r->n_counts; i++)
        jsonw_kint(&w, r->counts[i]->team_id, r->counts[i]->sandboxes);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_admin_running_counts(struct call *c)
{
    Cube__Master__V1__Empty in = CUBE__MASTER__V1__EMPTY__INIT;
    call_master(c, MASTER_CATALOG "RunningCounts", &in.base,
                &cube__master__v1__running_counts_reply__descriptor, UPSTREAM_READ, on_running_counts, NULL);
}

/* The CLI's login takes `apiKey` of the default team for its later calls; only the caller knows his key, so
 * it is the one he presented. */
void handle_team_list(struct call *c)
{
    const char *key = call_header(c, "x-api-key"), *bearer = call_header(c, "authorization");
    if (!key && bearer && strncasecmp(bearer, "bearer ", 7) == 0)
        key = bearer + 7;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    jsonw_obj(&w);
    jsonw_kstr(&w, "teamID", c->caller.team_id);
    jsonw_kstr(&w, "name", c->caller.team_name[0] ? c->caller.team_name : c->caller.team_id);
    jsonw_kstr(&w, "apiKey", key ? key : "");
    jsonw_kbool(&w, "isDefault", true);
    jsonw_obj_end(&w);
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

static void access_tokens_are_gone(struct call *c)
{
    struct err e = {0};
    err_set(&e, ERR_NOT_FOUND, "access tokens are gone");
    err_remedy(&e, "use an API key: POST /api-keys");
    call_fail_as(c, 410, &e);
}

void handle_access_token_create(struct call *c)
{
    access_tokens_are_gone(c);
}

void handle_access_token_delete(struct call *c)
{
    access_tokens_are_gone(c);
}

static void on_team(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__Team *t = (const Cube__Master__V1__Team *)m;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_kstr(&w, "teamID", t->team_id);
    jsonw_kstr(&w, "name", t->name);
    jsonw_kstr(&w, "slug", t->slug);
    jsonw_kbool(&w, "blocked", t->blocked);
    jsonw_kint(&w, "maxSandboxes", t->max_sandboxes);
    jsonw_kint(&w, "maxVcpus", t->max_vcpus);
    jsonw_kint(&w, "maxMemoryMB", (int64_t)t->max_memory_mib);
    jsonw_kint(&w, "createsPerSecond", t->creates_per_s);
    jsonw_kint(&w, "maxSnapshots", t->max_snapshots);
    jsonw_kint(&w, "maxTimeout", t->max_timeout_ms / 1000);
    jsonw_kint(&w, "idle", t->idle_ms / 1000);
    jsonw_obj_end(&w);
    call_send_json(c, c->route->status);
}

void handle_cube_team_get(struct call *c)
{
    Cube__Master__V1__GetTeamRequest in = CUBE__MASTER__V1__GET_TEAM_REQUEST__INIT;
    in.team_id = (char *)c->match.args[0];
    call_master(c, MASTER_CATALOG "GetTeam", &in.base, &cube__master__v1__team__descriptor, UPSTREAM_READ,
                on_team, NULL);
}

static bool team_name_ok(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n >= 1 && n <= 63 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-_") == n;
}

void handle_cube_team_put(struct call *c)
{
    static const char *const known[] = {"teamID",       "name",     "slug",         "blocked",
                                        "maxSandboxes", "maxVcpus", "maxMemoryMB",  "createsPerSecond",
                                        "maxTimeout",   "idle",     "maxSnapshots", NULL};
    struct err e = {0};
    int64_t sandboxes = 0, vcpus = 0, memory = 0, creates = 0, timeout = 0, idle = 0, snapshots = 0;
    bool blocked = false;
    const char *id = NULL, *name = NULL, *slug = NULL;
    const int64_t max = INT32_MAX;
    if (body_str(c->body, "", "teamID", 63, &id, &e) < 0 ||
        body_str(c->body, "", "name", 127, &name, &e) < 0 ||
        body_str(c->body, "", "slug", 63, &slug, &e) < 0 ||
        body_bool(c->body, "", "blocked", &blocked, NULL, &e) < 0 ||
        body_int(c->body, "", "maxSandboxes", 0, max, &sandboxes, NULL, &e) < 0 ||
        body_int(c->body, "", "maxVcpus", 0, max, &vcpus, NULL, &e) < 0 ||
        body_int(c->body, "", "maxMemoryMB", 0, max, &memory, NULL, &e) < 0 ||
        body_int(c->body, "", "createsPerSecond", 0, max, &creates, NULL, &e) < 0 ||
        body_int(c->body, "", "maxSnapshots", 0, max, &snapshots, NULL, &e) < 0 ||
        body_int(c->body, "", "maxTimeout", 0, max, &timeout, NULL, &e) < 0 ||
        body_int(c->body, "", "idle", 0, 30 * 86400, &idle, NULL, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    slug = slug ? slug : id;
    if (!team_name_ok(id) || !team_name_ok(slug)) {
        call_error(
            c, ERR_INVALID,
            "validation error: 'teamID' and 'slug' must be 1 to 63 characters of a-z, 0-9, '-' and '_'");
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    Cube__Master__V1__Team in = CUBE__MASTER__V1__TEAM__INIT;
    in.team_id = (char *)id;
    in.name = (char *)(name ? name : id);
    in.slug = (char *)slug;
    in.blocked = blocked;
    in.max_sandboxes = (uint32_t)sandboxes;
    in.max_vcpus = (uint32_t)vcpus;
    in.max_memory_mib = (uint64_t)memory;
    in.creates_per_s = (uint32_t)creates;
    in.max_snapshots = (uint32_t)snapshots;
    in.max_timeout_ms = timeout * 1000;
    in.idle_ms = idle * 1000;
    call_master(c, MASTER_CATALOG "PutTeam", &in.base, &cube__master__v1__team__descriptor, 0, on_team, NULL);
}
