/* The journal's file, for those who read and write it (internal.md §3). */
#pragma once

#include "lib/base/err.h"
#include "master/record.h"

#include <stdio.h>

#define JOURNAL_ID_LEN 20

struct journal {
    char *path;
    char id[JOURNAL_ID_LEN + 1];
    bool fresh;                     /* this process made it */
    char (*nodes)[NODE_ID_MAX + 1]; /* names that are in the file */
    size_t node_count;
};

/** One entry; the payload is followed by a NUL that does not count. */
typedef void (*journal_entry_cb)(const char *kind, const uint8_t *payload, size_t n, void *data);

/** Calls `each` for every whole entry. ERR_NOT_FOUND when there is no file, ERR_INVALID when it is no
 * journal. */
int journal_read(const char *path, char id[JOURNAL_ID_LEN + 1], journal_entry_cb each, void *data,
                 struct err *e);
int journal_read_stream(FILE *f, const char *name, char id[JOURNAL_ID_LEN + 1], journal_entry_cb each,
                        void *data, struct err *e);

/** Keeps the name of an entry of kind "node" and drops that of an "unnode"; `data` is the journal. */
void journal_note_node(const char *kind, const uint8_t *payload, size_t n, void *data);

struct journal *journal_open(const char *path,
                             struct err *e); /* makes it when it is missing; checks every line */
const char *journal_id(const struct journal *j);
bool journal_fresh(const struct journal *j);
/** Appends one entry and makes it durable; blocking, catalog writes are rare. */
int journal_append(struct journal *j, const char *kind, const void *payload, size_t n, struct err *e);
