/* Paths as directory descriptor and name: what all file operations resolve with. */
#pragma once

#include "guest/common/users.h"
#include "lib/base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#define FS_NAME 256 /* NAME_MAX and its NUL */

/** Whether this thread acts as root for somebody else (fs_as_user): then no symlink may be followed. */
bool fs_strict(void);

/** openat2 with the rules of fs_path.c; always O_CLOEXEC. Returns a descriptor or -1 with errno (ELOOP: a
 * link). */
int fs_openat(int dirfd, const char *name, int flags, mode_t mode);
int fs_open(const char *path, int flags);

/** The directory that holds `path` (O_PATH descriptor, the caller closes it) and its last component in
 * `name`. Returns -1 with an error; EISDIR for "/". */
int fs_parent(const char *path, char name[FS_NAME], struct err *e);

/** The same, making missing directories on the way: 0755, owned by `owner`. */
int fs_parent_make(const char *path, const struct user *owner, char name[FS_NAME], struct err *e);

/** Makes a directory the working directory of this thread alone (workers have their own, jobs.c), and "/"
 * again: extended attributes have no *at() calls, and short names are quicker. */
int fs_enter(int dirfd, const char *path, struct err *e);
void fs_leave(void);

/** One directory, 0755, owned by `owner`. Returns 0 or -1 with errno. */
int fs_mkdirat(int dirfd, const char *name, const struct user *owner);

/** Runs `op(arg)` as the user; when that is refused (EACCES, EPERM), again as root, as the contract's
 * original always does, but then without following any symlink, and counts it (state.root_fallbacks). */
int fs_as_user(const struct user *u, int (*op)(void *arg, struct err *e), void *arg, struct err *e);
