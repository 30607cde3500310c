/* Owns the way back from the journal: its final state is gathered and written into Redis where entries are
 * missing. Invariant: what was deleted later is not brought back, and what Redis still has is not touched. */
#include "master/cell.h"
#include "master/journal.h"

#include "lib/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void node_entry(struct master *m, const char *kind, const char *node)
{
    struct err e = {0};
    if (journal_append(m->journal, kind, node, strlen(node), &e) < 0)
        log_fail(&e, "remembering node %s", node);
    journal_note_node(kind, (const uint8_t *)node, strlen(node), m->journal);
}

void journal_node(struct master *m, const char *node, bool returned)
{
    struct journal *j = m->journal;
    for (size_t i = 0; !returned && i < j->node_count; i++)
        if (strcmp(j->nodes[i], node) == 0)
            return;
    node_entry(m, "node", node);
}

void journal_node_lost(struct master *m, const char *node)
{
    node_entry(m, "unnode", node);
}

void journal_nodes(struct master *m, void (*each)(const char *node, void *data), void *data)
{
    for (size_t i = 0; i < m->journal->node_count; i++)
        each(m->journal->nodes[i], data);
}

struct entry {
    char *kind, *name; /* `name`: what a later entry replaces */
    uint8_t *payload;
    size_t n;
    bool dead;
    size_t before; /* 1 + the place of the entry before it in its bucket; 0 = none */
};

#define BUCKETS 65536

struct final_state {
    struct entry *v;
    size_t n, cap;
    size_t *buckets; /* 1 + the place of each bucket's newest entry */
    struct journal *j;
};

static size_t *bucket_of(struct final_state *s, const char *name)
{
    return &s->buckets[sched_hash(name) % BUCKETS];
}

/* A journal only grows, so this must not cost more with each entry: earlier ones of a name are found by its
 * hash. */
static void bury(struct final_state *s, const char *kind, const char *name)
{
    for (size_t at = *bucket_of(s, name); at; at = s->v[at - 1].before)
        if (strcmp(s->v[at - 1].kind, kind) == 0 && strcmp(s->v[at - 1].name, name) == 0) {
            if (s->v[at - 1].dead)
                return; /* so are all before it */
            s->v[at - 1].dead = true;
        }
}

static void gather(const char *kind, const uint8_t *payload, size_t n, void *data)
{
    struct final_state *s = data;
    char name[256] = "";
    const char *as = kind;
    journal_note_node(kind, payload, n, s->j);
    if (strcmp(kind, "key") == 0 && n > 64) {
        snprintf(name, sizeof name, "%.64s", (const char *)payload);
    } else if (strcmp(kind, "team") == 0) {
        Cube__Master__V1__Team *t = cube__master__v1__team__unpack(NULL, n, payload);
        snprintf(name, sizeof name, "%s", t ? t->team_id : "");
        if (t)
            cube__master__v1__team__free_unpacked(t, NULL);
    } else if (strcmp(kind, "template") == 0) {
        Cube__Master__V1__Template *t = cube__master__v1__template__unpack(NULL, n, payload);
        snprintf(name, sizeof name, "%s", t ? t->template_id : "");
        if (t)
            cube__master__v1__template__free_unpacked(t, NULL);
    } else if (strcmp(kind, "unkey") == 0 || strcmp(kind, "untemplate") == 0) {
        as = kind + 2;
        snprintf(name, sizeof name, "%s", (const char *)payload);
    } else {
        return;
    }
    bury(s, as, name);
    if (as != kind || !*name)
        return;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        if (!s->v)
            abort();
    }
    struct entry *e = &s->v[s->n++];
    *e = (struct entry){.kind = strdup(kind), .name = strdup(name), .payload = malloc(n + 1), .n = n};
    if (!e->kind || !e->name || !e->payload)
        abort();
    memcpy(e->payload, payload, n);
    e->payload[n] = 0;
    size_t *bucket = bucket_of(s, name);
    e->before = *bucket;
    *bucket = s->n;
}

int journal_replay(struct master *m, struct err *e)
{
    struct final_state s = {.j = m->journal, .buckets = calloc(BUCKETS, sizeof *s.buckets)};
    if (!s.buckets)
        abort();
    char id[JOURNAL_ID_LEN + 1];
    m->journal->node_count = 0; /* other masters may have met more nodes, or lost some */
    int rc = journal_read(m->journal->path, id, gather, &s, e);
    size_t written = 0;
    for (int pass = 0; pass < 2; pass++) /* teams first: a key needs its team */
        for (size_t i = 0; i < s.n && rc == 0; i++) {
            bool team = strcmp(s.v[i].kind, "team") == 0;
            if (s.v[i].dead || team != (pass == 0))
                continue;
            rc = catalog_replay(m, s.v[i].kind, s.v[i].payload, s.v[i].n, e);
            written += rc == 0;
        }
    for (size_t i = 0; i < s.n; i++) {
        free(s.v[i].kind);
        free(s.v[i].name);
        free(s.v[i].payload);
    }
    free(s.v);
    free(s.buckets);
    if (rc == 0 && written)
        log_info("the catalog was replayed from its journal: %zu entries", written);
    return rc;
}
