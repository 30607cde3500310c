/* Owns the way back from the journal: its end state is written into Redis where entries are missing.
 * Invariant: what was deleted later is not brought back, and what Redis still has is not touched. */
#include "master/cell.h"
#include "master/journal.h"
#include "master/journal_state.h"

#include "lib/base/log.h"

#include <stdio.h>
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

struct replay {
    struct journal *journal;
    struct journal_state state;
};

static void gather(const char *kind, const uint8_t *payload, size_t n, void *data)
{
    struct replay *x = data;
    journal_note_node(kind, payload, n, x->journal);
    journal_state_add(kind, payload, n, &x->state);
}

int journal_replay(struct master *m, struct err *e)
{
    struct replay x = {.journal = m->journal};
    const struct journal_state *s = &x.state;
    char id[JOURNAL_ID_LEN + 1];
    journal_state_start(&x.state);
    m->journal->node_count = 0; /* other masters may have met more nodes, or lost some */
    int rc = journal_read(m->journal->path, id, gather, &x, e);
    size_t written = 0;
    for (int pass = 0; pass < 2; pass++) /* teams first: a key needs its team */
        for (size_t i = 0; i < s->n && rc == 0; i++) {
            const struct journal_entry *v = &s->v[i];
            bool team = strcmp(v->kind, "team") == 0;
            if (v->dead || !*v->name || strcmp(v->kind, "node") == 0 || team != (pass == 0))
                continue;
            rc = catalog_replay(m, v->kind, v->payload, v->n, e);
            written += rc == 0;
        }
    journal_state_free(&x.state);
    if (rc == 0 && written)
        log_info("the catalog was replayed from its journal: %zu entries", written);
    return rc;
}
