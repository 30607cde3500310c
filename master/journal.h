/* The journal's file, for those who read and write it (internal.md §3). */
#pragma once

#include "lib/base/err.h"
#include "master/record.h"

#include <stdio.h>

#define JOURNAL_ID_LEN 20
#define JOURNAL_HEADER "cube-journal 1 " /* and the ID: the first line */

struct buf;

struct journal {
    char *path;
    char id[JOURNAL_ID_LEN + 1];
    bool fresh;                     /* this process made it */
    char (*nodes)[NODE_ID_MAX + 1]; /* names that are in the file */
    size_t node_count;
    int64_t growth;     /* bytes after which it is rewritten without what is dead; set after opening */
    int64_t compact_at; /* the size at which that happens next */
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
/** One line of the file, added to `b`. */
void journal_line(struct buf *b, const char *kind, const void *payload, size_t n);
/** Appends one entry and makes it durable; blocking, catalog writes are rare. Rewrites the file when it has
 * grown by `growth` (at least by its own size), so that it stays within twice of what it says. */
int journal_append(struct journal *j, const char *kind, const void *payload, size_t n, struct err *e);

/** The rewriting; the caller holds the lock on the file, whose size is `size`. A failure is logged and leaves
 * it as it is. */
void journal_compact(struct journal *j, int64_t size);
