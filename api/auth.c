/* Owns authentication. Invariants: a key is never stored, logged or compared as text, only its SHA-256 is, in
 * constant time; what the cache says is never older than key_ttl; unknown keys cannot push known ones out of
 * the cache; an address that tries many of them soon costs nobody anything. */
#include "api/auth.h"

#include "api/handlers.h"
#include "api/limit.h"
#include "api/server.h"
#include "lib/base/ids.h"
#include "lib/net/crypto.h"
#include "proto/master.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN_SLOTS 4096
#define UNKNOWN_SLOTS 1024
#define UNKNOWN_TTL_MS 1000
#define KEY_MAX 256

struct known {
    uint8_t digest[32];
    int64_t until_ms;
    struct caller caller;
};
struct unknown_key {
    uint8_t digest[32];
    int64_t until_ms;
};
struct key_cache {
    struct known known[KNOWN_SLOTS];
    struct unknown_key unknown[UNKNOWN_SLOTS];
};

/* What a check in flight needs to know when the answer comes. */
struct checking {
    uint8_t digest[32];
    char *key;  /* its text, for the operator's service; wiped when the check ends */
    bool admin; /* the service's word */
};

struct key_cache *key_cache_new(void)
{
    return calloc(1, sizeof(struct key_cache));
}

void key_cache_free(struct key_cache *k)
{
    free(k);
}

void key_cache_clear(struct key_cache *k)
{
    for (int i = 0; i < KNOWN_SLOTS; i++)
        k->known[i].until_ms = 0;
}

static unsigned slot(const uint8_t digest[32], unsigned slots)
{
    return ((unsigned)digest[0] << 8 | digest[1]) % slots;
}

static void proceed(struct call *c)
{
    if (c->route->auth == ROUTE_AUTH_ADMIN && !c->caller.admin) {
        call_error(c, ERR_FORBIDDEN, "this key may not use the operator's routes");
        return;
    }
    server_authorized(c);
}

static void caller_set(struct caller *to, const Cube__Master__V1__Team *team, const char *key_id, bool admin)
{
    memset(to, 0, sizeof *to);
    snprintf(to->team_id, sizeof to->team_id, "%s", team->team_id);
    snprintf(to->team_name, sizeof to->team_name, "%s", team->name);
    snprintf(to->team_slug, sizeof to->team_slug, "%s", team->slug);
    snprintf(to->key_id, sizeof to->key_id, "%s", key_id);
    to->admin = admin;
    to->max_timeout_ms = team->max_timeout_ms;
}

static void refuse(struct call *c, const char *why)
{
    call_add_header(c, "www-authenticate", "ApiKey");
    call_error(c, ERR_UNAUTHENTICATED, "%s", why);
}

static void wipe(struct checking *s)
{
    explicit_bzero(s->key, strlen(s->key));
}

static void accept_team(struct call *c, const Cube__Master__V1__Team *team, const char *key_id, bool admin)
{
    struct checking *s = c->state;
    wipe(s);
    if (team->blocked) {
        call_error(c, ERR_FORBIDDEN, "team '%s' is blocked", team->team_id);
        return;
    }
    caller_set(&c->caller, team, key_id, admin);
    struct known *k = &c->w->keys->known[slot(s->digest, KNOWN_SLOTS)];
    memcpy(k->digest, s->digest, sizeof k->digest);
    k->until_ms = loop_now_ms(c->w->loop) + c->w->api->key_ttl_ms;
    k->caller = c->caller;
    c->state = NULL;
    proceed(c);
}

static void on_key(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__CheckKeyReply *r = (const Cube__Master__V1__CheckKeyReply *)m;
    if (r->team)
        accept_team(c, r->team, r->key_id, r->admin);
    else
        call_error(c, ERR_INTERNAL, "checking the API key: the master named no team");
}

static void refuse_key(struct call *c)
{
    struct checking *s = c->state;
    wipe(s);
    struct unknown_key *u = &c->w->keys->unknown[slot(s->digest, UNKNOWN_SLOTS)];
    memcpy(u->digest, s->digest, sizeof u->digest);
    u->until_ms = loop_now_ms(c->w->loop) + UNKNOWN_TTL_MS;
    limit_wrong_key(c);
    refuse(c, "Invalid API key");
}

/* ---- the operator's service ---- */

static void on_service_team(struct call *c, const ProtobufCMessage *m)
{
    const struct checking *s = c->state;
    accept_team(c, (const Cube__Master__V1__Team *)m, "", s->admin);
}

static void get_team(struct call *c, const char *team, call_reply_cb *reply)
{
    Cube__Master__V1__GetTeamRequest in = CUBE__MASTER__V1__GET_TEAM_REQUEST__INIT;
    in.team_id = (char *)team;
    call_master(c, MASTER_CATALOG "GetTeam", &in.base, &cube__master__v1__team__descriptor, UPSTREAM_READ,
                reply, NULL);
}

static void on_service_answer(struct call *c, const char *team_id, bool admin, const struct err *e)
{
    struct checking *s = c->state;
    if (e && e->code == ERR_UNAUTHENTICATED) {
        refuse_key(c);
        return;
    }
    if (e) {
        call_fail(c, e);
        return;
    }
    s->admin = admin;
    get_team(c, team_id, on_service_team);
}

static void on_key_failed(struct call *c, const struct err *e)
{
    const struct checking *s = c->state;
    if (e->code != ERR_NOT_FOUND && e->code != ERR_UNAUTHENTICATED)
        call_fail(c, e);
    else if (*c->w->api->auth_url.host)
        callback_ask(c, s->key, on_service_answer);
    else
        refuse_key(c);
}

static void check_key(struct call *c, const char *key)
{
    size_t n = strlen(key);
    if (n == 0 || n > KEY_MAX) {
        refuse(c, "Invalid API key");
        return;
    }
    struct checking *s = call_alloc(c, sizeof *s);
    s->key = call_strdup(c, key);
    sha256(key, n, s->digest);
    int64_t now = loop_now_ms(c->w->loop);
    const struct known *k = &c->w->keys->known[slot(s->digest, KNOWN_SLOTS)];
    if (k->until_ms > now && secret_equal(k->digest, s->digest, sizeof s->digest)) {
        c->caller = k->caller;
        proceed(c);
        return;
    }
    const struct unknown_key *u = &c->w->keys->unknown[slot(s->digest, UNKNOWN_SLOTS)];
    if (u->until_ms > now && secret_equal(u->digest, s->digest, sizeof s->digest)) {
        refuse(c, "Invalid API key");
        return;
    }
    /* One that was good when it was asked about last is asked about again, whatever others at its address
     * do. */
    if (!secret_equal(k->digest, s->digest, sizeof s->digest) && limit_wrong_keys_check(c) < 0)
        return;
    char hex[65];
    hex_encode(s->digest, sizeof s->digest, hex);
    c->state = s;
    Cube__Master__V1__CheckKeyRequest in = CUBE__MASTER__V1__CHECK_KEY_REQUEST__INIT;
    in.key_sha256 = hex;
    call_master(c, MASTER_CATALOG "CheckKey", &in.base, &cube__master__v1__check_key_reply__descriptor,
                UPSTREAM_READ, on_key, on_key_failed);
}

/* The operator acting for a team: X-Admin-Token with X-Team-ID (contracts/e2b.md §1.2). */
static void on_team(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__Team *team = (const Cube__Master__V1__Team *)m;
    caller_set(&c->caller, team, "", true);
    proceed(c);
}

static void check_admin(struct call *c, const char *token)
{
    uint8_t digest[32];
    sha256(token, strlen(token), digest);
    if (!c->w->api->has_admin_token || !secret_equal(digest, c->w->api->admin_sha256, sizeof digest)) {
        refuse(c, "Invalid admin token");
        return;
    }
    const char *team = call_header(c, "x-team-id");
    if (!team || c->route->auth == ROUTE_AUTH_ADMIN) {
        c->caller.admin = true;
        if (c->route->auth == ROUTE_AUTH_KEY)
            refuse(c, "the admin token needs X-Team-ID here");
        else
            proceed(c);
        return;
    }
    get_team(c, team, on_team);
}

void auth_check(struct call *c)
{
    if (c->route->auth == ROUTE_AUTH_NONE) {
        server_authorized(c);
        return;
    }
    const char *token = call_header(c, "x-admin-token");
    if (token) {
        check_admin(c, token);
        return;
    }
    const char *key = call_header(c, "x-api-key");
    const char *bearer = key ? NULL : call_header(c, "authorization");
    if (bearer && strncasecmp(bearer, "bearer ", 7) == 0)
        key = bearer + 7;
    if (!key) {
        refuse(c, c->route->auth == ROUTE_AUTH_ADMIN ? "the header X-Admin-Token is missing"
                                                     : "the header X-API-Key is missing");
        return;
    }
    check_key(c, key);
}
