/* File system operations as the contract defines them (contracts/e2b.md §3.4, §4.4), on paths that are
 * already absolute. All are called on worker threads, with the user's identity taken; they fill struct err
 * and its errno. */
#pragma once

#include "guest/common/arena.h"
#include "guest/common/users.h"
#include "guest/envd/codec.h"
#include "lib/base/err.h"

#include <sys/stat.h>

enum entry_type { ENTRY_UNSPECIFIED, ENTRY_FILE, ENTRY_DIRECTORY, ENTRY_SYMLINK };

struct entry {
    const char *name, *path;
    enum entry_type type;
    bool is_symlink;
    int64_t size;
    uint32_t mode;   /* permission bits of the target */
    mode_t raw_mode; /* for `permissions`: of the entry itself, with the target's bits */
    uid_t uid;
    gid_t gid;
    struct timespec mtime;
    const char *target; /* fully resolved, or NULL */
    struct pair *metadata;
    size_t n_metadata;
};

struct entries {
    struct entry *v;
    size_t n, cap;
};

#define ENTRIES_MAX 200000

/** lstat of `name` plus what the contract adds; `path` is the same entry's absolute path, `name` may be
 * relative to where this thread stands (fs_enter). Strings go into the arena. `e` may be NULL. */
int fs_stat(const char *name, const char *path, struct arena *a, struct entry *out, struct err *e);

/** The same for a path. */
int entry_find(const char *path, struct arena *a, struct entry *out, struct err *e);

int fs_list(const char *path, uint32_t depth, struct arena *a, struct entries *out, struct err *e);

/** mkdir -p; new directories belong to `owner`, 0755. EEXIST when the last one is there already. */
int fs_mkdir(const char *path, const struct user *owner, struct err *e);

int fs_move(const char *from, const char *to, const struct user *owner, struct err *e);

/** Removes a file or a whole tree, however deep; a missing path is success. */
int fs_remove(const char *path, struct err *e);

/** Stores metadata in an open file. */
int fs_metadata_write(int fd, const struct pair *v, size_t n, struct err *e);

/** Concatenates sources into destination (temporary file and rename) and removes them. */
int fs_compose(const char *const *sources, size_t n, const char *destination, const struct user *owner,
               struct err *e);

/** Writes EntryInfo; `names` caches uid and gid names over one listing. */
struct name_cache {
    uint32_t id[16];
    char name[16][64];
    unsigned n;
};
void entry_write(struct msgw *w, const struct entry *e, struct name_cache *users, struct name_cache *groups);

/** A file being written: a nameless or temporary one that appears at `path` when it is published. */
struct upload {
    int fd, dirfd;
    char name[256]; /* of the destination inside dirfd */
    char temp[32];  /* name of the temporary file inside dirfd, "" when it has none (O_TMPFILE) or writes in
                       place */
    bool in_place;  /* the destination itself is open: a device, a FIFO, or a directory we cannot create in */
    char path[PATH_MAX]; /* as the caller named it */
};

/** Whether a directory entry is of an upload that has not its own name yet, or not any more. */
bool fs_upload_name(const char *name);

/** Opens for writing at `path` (symlinks followed as the user; parents made). EISDIR: it is a directory. */
int upload_open(struct upload *u, const char *path, const struct user *owner, struct err *e);
/** Writes all of it; ERR_UNAVAILABLE when the reader of a FIFO does not take it for two seconds. */
int upload_write(struct upload *u, const char *data, size_t n, struct err *e);
int upload_publish(struct upload *u, const struct user *owner, const struct pair *metadata, size_t n_metadata,
                   struct err *e);

/** Closes; removes what was not published. */
void upload_close(struct upload *u);
