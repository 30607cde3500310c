/* Gathers the end state of a journal. Invariant: what was deleted later does not come back, and an entry of a
 * kind that this version does not know is kept as it is. */
#include "master/journal_state.h"

#include "master/scheduler.h"
#include "proto/master.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 65536

void journal_state_start(struct journal_state *s)
{
    *s = (struct journal_state){.buckets = calloc(BUCKETS, sizeof *s->buckets)};
    if (!s->buckets)
        abort();
}

void journal_state_free(struct journal_state *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->v[i].kind);
        free(s->v[i].name);
        free(s->v[i].payload);
    }
    free(s->v);
    free(s->buckets);
    *s = (struct journal_state){0};
}

static size_t *bucket_of(struct journal_state *s, const char *name)
{
    return &s->buckets[sched_hash(name) % BUCKETS];
}

/* A journal grows between two rewritings, so this must not cost more with each entry: earlier ones of a name
 * are found by its hash. */
static void bury(struct journal_state *s, const char *kind, const char *name)
{
    for (size_t at = *bucket_of(s, name); at; at = s->v[at - 1].before)
        if (strcmp(s->v[at - 1].kind, kind) == 0 && strcmp(s->v[at - 1].name, name) == 0) {
            if (s->v[at - 1].dead)
                return; /* so are all before it */
            s->v[at - 1].dead = true;
        }
}

static void keep(struct journal_state *s, const char *kind, const char *name, const uint8_t *payload,
                 size_t n)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        if (!s->v)
            abort();
    }
    struct journal_entry *e = &s->v[s->n++];
    *e = (struct journal_entry){.kind = strdup(kind), .name = strdup(name), .payload = malloc(n + 1), .n = n};
    if (!e->kind || !e->name || !e->payload)
        abort();
    memcpy(e->payload, payload, n);
    e->payload[n] = 0;
    size_t *bucket = bucket_of(s, name);
    e->before = *bucket;
    *bucket = s->n;
}

/* "" for what has no name that could be read. */
static void name_of(const char *kind, const uint8_t *payload, size_t n, char *name, size_t cap)
{
    if (strcmp(kind, "key") == 0 && n > 64) {
        snprintf(name, cap, "%.64s", (const char *)payload);
    } else if (strcmp(kind, "team") == 0) {
        Cube__Master__V1__Team *t = cube__master__v1__team__unpack(NULL, n, payload);
        snprintf(name, cap, "%s", t ? t->team_id : "");
        if (t)
            cube__master__v1__team__free_unpacked(t, NULL);
    } else if (strcmp(kind, "template") == 0) {
        Cube__Master__V1__Template *t = cube__master__v1__template__unpack(NULL, n, payload);
        snprintf(name, cap, "%s", t ? t->template_id : "");
        if (t)
            cube__master__v1__template__free_unpacked(t, NULL);
    } else if (strcmp(kind, "node") == 0 || strcmp(kind, "drop") == 0) {
        snprintf(name, cap, "%s", (const char *)payload);
    }
}

void journal_state_add(const char *kind, const uint8_t *payload, size_t n, void *data)
{
    static const char *const deleting[] = {"unkey", "untemplate", "unnode", "undrop"};
    struct journal_state *s = data;
    char name[256] = "";
    for (size_t i = 0; i < sizeof deleting / sizeof *deleting; i++)
        if (strcmp(kind, deleting[i]) == 0) {
            snprintf(name, sizeof name, "%s", (const char *)payload);
            bury(s, kind + 2, name);
            return;
        }
    name_of(kind, payload, n, name, sizeof name);
    if (*name)
        bury(s, kind, name);
    keep(s, kind, name, payload, n);
}
