/* The node's store: a directory of immutable artifacts, each a directory (or one file) that is whole or
 * absent (DESIGN.md §3.6, internal.md §7, docs/storage-format.md). */
#pragma once

#include "lib/base/err.h"
#include "node/store/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct store {
    int fd;     /* the store's directory */
    char *path; /* for messages and tools */
};

/** Opens (and makes) the store. Errors: ERR_STORAGE_FULL, ERR_INTERNAL. */
int store_open(const char *path, struct store *out, struct err *e);
void store_close(struct store *s);

/** Removes what unfinished publications left behind; those of a living process are locked and stay. Returns
 * the number removed. */
int store_sweep(struct store *s);

/** Whether an artifact is there. UNKNOWN: the store could not be asked (an I/O error); never treat it as
 * missing. */
enum presence { PRESENT, MISSING, PRESENCE_UNKNOWN };
enum presence store_presence(const struct store *s, const char *artifact);

/** Opens a file of an artifact read-only ("tpl/<id>", "root.ext4"). ERR_NOT_FOUND when it is not there. */
int store_open_file(const struct store *s, const char *artifact, const char *file, struct err *e);

/** Takes an artifact out of sight in one step, without waiting: `away` names what is left for `tree_remove`
 * (a sweep finds it, too), "" when there was none, which is success. */
#define STORE_AWAY_LEN 32
int store_hide(struct store *s, const char *artifact, char away[STORE_AWAY_LEN], struct err *e);

/** The same, and removes what is left. Blocks. */
int store_remove(struct store *s, const char *artifact, struct err *e);

/** Names of the artifacts below a directory such as "tpl", freed with `store_names_free`. */
int store_list(const struct store *s, const char *dir, char ***names, size_t *count, struct err *e);
void store_names_free(char **names, size_t count);

/** Free and total bytes of the file system below. */
int store_space(const struct store *s, uint64_t *free_bytes, uint64_t *total_bytes, struct err *e);

/** An artifact in the making: a directory below "tmp", locked by us. */
struct draft {
    struct store *store;
    char name[48];
    int fd; /* -1 = none */
};
int draft_open(struct store *s, struct draft *out, struct err *e);

/** A new file in the draft, mode 0600, open for reading and writing. */
int draft_create(struct draft *d, const char *file, struct err *e);

/** Makes everything durable, writes the manifest (files without a hash are hashed now) and publishes under
 * `artifact`. When the artifact exists already the draft is dropped and that is success: content is named by
 * what it is. The draft is closed. Blocks: call it through fiber_offload. */
int draft_publish(struct draft *d, struct manifest *m, const char *artifact, struct err *e);

/** Removes an unpublished draft; does nothing after draft_publish. */
void draft_drop(struct draft *d);
#define _cleanup_draft_ __attribute__((cleanup(draft_drop)))

/** Removes a directory tree or a file relative to `dir`; does not follow symbolic links. */
int tree_remove(int dir, const char *name, struct err *e);

/** Replaces `name` in `dir` by `data` in one step. With `durable` both file and directory are flushed. */
int file_replace(int dir, const char *name, const void *data, size_t n, bool durable, struct err *e);

/** Reads a whole file of at most `max` bytes; the result is NUL-terminated and the caller's. */
int file_read(int dir, const char *name, size_t max, char **out, size_t *n, struct err *e);
