/* Owns the mapping between a record's hash in Redis and its C form. Invariant: a field that is absent reads
 * as zero or
 * "", and whatever does not fit is cut, never overrun. */
#include "master/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum sandbox_state state_parse(const char *name, size_t n)
{
    for (int i = 1; i < STATE_COUNT; i++)
        if (strlen(state_table[i].name) == n && memcmp(state_table[i].name, name, n) == 0)
            return i;
    return STATE_NONE;
}

enum field_kind { TEXT, U64, I64, FLAG, STATE, SPEC };

/* One row per field of the hash that C reads. */
static const struct {
    const char *name;
    enum field_kind kind;
    size_t offset, size;
} fields[] = {
#define LEASE_SLACK_MS 1000 /* reports and extensions lag behind the activity that they tell of */

#define F(name, kind, member)                                                                                \
    {                                                                                                        \
        name, kind, offsetof(struct record, member), sizeof(((struct record *)0)->member)                    \
    }
    F("state", STATE, state),
    F("gen", U64, gen),
    F("rev", U64, rev),
    F("node", TEXT, node),
    F("team", TEXT, team),
    F("owner", TEXT, owner),
    F("op", TEXT, op),
    F("envd", TEXT, envd),
    F("isolation", TEXT, isolation),
    F("snapshot", TEXT, snapshot),
    F("reason", TEXT, reason),
    F("created", I64, created_ms),
    F("started", I64, started_ms),
    F("end", I64, end_ms),
    F("auto_pause", FLAG, auto_pause),
    F("fs_only", FLAG, filesystem_only),
    F("unresponsive", FLAG, unresponsive),
    F("unconfirmed", FLAG, unconfirmed),
    F("idle", I64, idle_ms),
    F("spec", SPEC, spec),
#undef F
};

static void field_read(struct record *r, size_t row, const char *v, size_t n)
{
    void *at = (char *)r + fields[row].offset;
    switch (fields[row].kind) {
    case TEXT:
        if (n >= fields[row].size)
            n = fields[row].size - 1;
        memcpy(at, v, n);
        ((char *)at)[n] = 0;
        break;
    case U64:
        *(uint64_t *)at = strtoull(v, NULL, 10);
        break;
    case I64:
        *(int64_t *)at = strtoll(v, NULL, 10);
        break;
    case FLAG:
        *(bool *)at = n == 1 && *v == '1';
        break;
    case STATE:
        *(enum sandbox_state *)at = state_parse(v, n);
        break;
    case SPEC:
        if (!r->spec)
            r->spec = cube__v1__sandbox_spec__unpack(NULL, n, (const uint8_t *)v);
        break;
    }
}

_Static_assert(sizeof fields / sizeof *fields == RECORD_FIELDS, "RECORD_FIELDS counts the table");

const char *record_field(size_t i)
{
    return fields[i].name;
}

static int record_check(struct record *out, struct err *e)
{
    if (!out->state || !out->gen || !out->spec || !out->spec->limits) {
        record_free(out);
        return err_set(e, ERR_INTERNAL, "reading the record of a sandbox: it is malformed");
    }
    snprintf(out->id, sizeof out->id, "%s", out->spec->sandbox_id);
    return 0;
}

int record_parse(const redisReply *hash, struct record *out, struct err *e)
{
    *out = (struct record){0};
    if (hash->type != REDIS_REPLY_ARRAY || hash->elements == 0)
        return err_set(e, ERR_NOT_FOUND, "sandbox not found");
    for (size_t i = 0; i + 1 < hash->elements; i += 2) {
        const redisReply *k = hash->element[i], *v = hash->element[i + 1];
        if (k->type != REDIS_REPLY_STRING || v->type != REDIS_REPLY_STRING)
            continue;
        for (size_t row = 0; row < RECORD_FIELDS; row++)
            if (strcmp(k->str, fields[row].name) == 0) {
                field_read(out, row, v->str, v->len);
                break;
            }
    }
    return record_check(out, e);
}

int record_parse_values(const redisReply *values, struct record *out, struct err *e)
{
    *out = (struct record){0};
    if (values->type != REDIS_REPLY_ARRAY || values->elements != RECORD_FIELDS)
        return err_set(e, ERR_NOT_FOUND, "sandbox not found");
    for (size_t row = 0; row < RECORD_FIELDS; row++)
        if (values->element[row]->type == REDIS_REPLY_STRING)
            field_read(out, row, values->element[row]->str, values->element[row]->len);
    return record_check(out, e);
}

void record_parse_activity(struct record *r, const char *line, size_t n)
{
    char text[160];
    if (n == 0 || n >= sizeof text)
        return;
    memcpy(text, line, n);
    text[n] = 0;
    int healthy;
    unsigned cpu, rss;
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNu32 " %u %u %" SCNd64 " %d %15s", &r->last_activity_ms,
               &r->awake_since_ms, &r->open_streams, &cpu, &rss, &r->last_answer_ms, &healthy, r->awake) != 8)
        return;
    r->healthy = healthy != 0;
    if (strcmp(r->awake, "-") == 0)
        r->awake[0] = 0;
}

void record_free(struct record *r)
{
    if (r->spec)
        cube__v1__sandbox_spec__free_unpacked(r->spec, NULL);
    r->spec = NULL;
}

const char *spec_metadata(const Cube__V1__SandboxSpec *spec, const char *key)
{
    for (size_t i = 0; i < spec->n_metadata; i++)
        if (strcmp(spec->metadata[i]->key, key) == 0)
            return spec->metadata[i]->value;
    return NULL;
}

void record_message(const struct record *r, struct record_tokens *tokens, Cube__V1__Sandbox *out)
{
    cube__v1__sandbox__init(out);
    out->spec = r->spec;
    out->state = (Cube__V1__SandboxState)r->state;
    out->gen = r->gen;
    out->rev = r->rev;
    out->node_id = (char *)r->node;
    out->created_ms = r->created_ms;
    out->started_ms = r->started_ms;
    out->end_ms = r->end_ms;
    out->envd_version = (char *)r->envd;
    out->reason = (char *)r->reason;
    out->isolation = (char *)r->isolation;
    out->op = (char *)r->op;
    out->snapshot_id = (char *)r->snapshot;
    out->filesystem_only = r->filesystem_only;
    out->guest_unresponsive = r->unresponsive;
    out->awake = (char *)r->awake;
    out->awake_since_ms = r->awake_since_ms;
    out->last_activity_ms = r->last_activity_ms;
    out->open_streams = r->open_streams;
    out->healthy = r->healthy;
    if (r->idle_ms > 0 && r->state == STATE_RUNNING) {
        int64_t quiet = r->last_activity_ms + r->idle_ms;
        out->pauses_at_ms = quiet > r->end_ms ? quiet : r->end_ms;
        int64_t since = r->last_activity_ms > r->started_ms ? r->last_activity_ms : r->started_ms;
        if (!r->awake[0] && r->end_ms > since + r->idle_ms + LEASE_SLACK_MS)
            out->awake = (char *)"lease"; /* only a timeout that was set explicitly reaches so far */
    }
    if (tokens && r->spec->secure)
        out->envd_token = tokens->envd;
    if (tokens && r->spec->private_traffic)
        out->traffic_token = tokens->traffic;
}
