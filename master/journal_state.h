/* What a journal says in the end: its entries without those that a later one replaces or deletes. */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct journal_entry {
    char *kind;
    char *name; /* what a later entry replaces it by: a team, key, template, node or drop; "" = of no kind
                   known here */
    uint8_t *payload; /* followed by a NUL that does not count */
    size_t n;
    bool dead;
    size_t before; /* 1 + the place of the entry before it in its bucket; 0 = none */
};

struct journal_state {
    struct journal_entry *v; /* in the order of the file; the dead ones included */
    size_t n, cap;
    size_t *buckets; /* 1 + the place of each bucket's newest entry */
};

void journal_state_start(struct journal_state *s);
/** Takes one entry; a journal_entry_cb, `data` is the state. */
void journal_state_add(const char *kind, const uint8_t *payload, size_t n, void *data);
void journal_state_free(struct journal_state *s);

static inline void cleanup_journal_state(struct journal_state *s)
{
    journal_state_free(s);
}
#define _cleanup_journal_state_ __attribute__((cleanup(cleanup_journal_state)))
