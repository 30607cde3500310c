/* Directory operations. Invariant: they run with the user's identity on this thread, so the kernel itself
 * refuses what the user may not do, whatever symlinks lie on the way; removal is in fs_remove.c. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "lib/base/cleanup.h"

#define TREE_DEPTH_MAX 256

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of one directory, sorted (the contract's walk is lexical). */
static int names_read(int fd, struct arena *a, struct strings *out, struct err *e)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d) {
        if (copy >= 0)
            close(copy);
        return err_sys(e, ERR_INTERNAL, "reading directory");
    }
    size_t cap = 0;
    struct dirent *de;
    while ((de = readdir(d))) {
        if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
            continue;
        if (out->n == cap) {
            size_t want = cap ? cap * 2 : 64;
            const char **v = arena_alloc(a, want * sizeof(*v));
            if (!v)
                return err_set(e, ERR_TOO_LARGE, "directory is too large");
            if (out->n)
                memcpy(v, out->v, out->n * sizeof(*v));
            out->v = v;
            cap = want;
        }
        if (!(out->v[out->n++] = arena_strndup(a, de->d_name, strlen(de->d_name))))
            return err_set(e, ERR_TOO_LARGE, "directory is too large");
    }
    if (out->n)
        qsort(out->v, out->n, sizeof(*out->v), by_name);
    return 0;
}

static struct entry *entry_add(struct entries *l, struct arena *a)
{
    if (l->n == ENTRIES_MAX)
        return NULL;
    if (l->n == l->cap) {
        size_t want = l->cap ? l->cap * 2 : 64;
        struct entry *v = arena_alloc(a, want * sizeof(*v));
        if (!v)
            return NULL;
        if (l->n)
            memcpy(v, l->v, l->n * sizeof(*v));
        l->v = v;
        l->cap = want;
    }
    return &l->v[l->n++];
}

static int walk(int fd, const char *path, uint32_t depth, struct arena *a, struct entries *out, struct err *e)
{
    struct strings names = {0};
    if (names_read(fd, a, &names, e) < 0 || fs_enter(fd, path, e) < 0)
        return -1;
    size_t dir_len = strcmp(path, "/") ? strlen(path) : 0;
    for (size_t i = 0; i < names.n; i++) {
        size_t name_len = strlen(names.v[i]);
        char *full = arena_alloc(a, dir_len + name_len + 2);
        struct entry *entry = full ? entry_add(out, a) : NULL;
        if (!entry)
            return err_set(e, ERR_TOO_LARGE, "listing is larger than %d entries", ENTRIES_MAX);
        memcpy(full, path, dir_len);
        full[dir_len] = '/';
        memcpy(full + dir_len + 1, names.v[i], name_len + 1);
        if (fs_stat(names.v[i], full, a, entry, NULL) < 0) {
            out->n--; /* removed while we were listing */
            continue;
        }
        if (depth > 1 && S_ISDIR(entry->raw_mode)) {
            _cleanup_close_ int sub = fs_openat(fd, names.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
            if (sub < 0)
                continue; /* not ours to read, or gone */
            if (walk(sub, full, depth - 1, a, out, e) < 0 || fs_enter(fd, path, e) < 0)
                return -1;
        }
    }
    return 0;
}

int fs_list(const char *path, uint32_t depth, struct arena *a, struct entries *out, struct err *e)
{
    _cleanup_close_ int fd = fs_open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    if (fd < 0 && errno == ENOTDIR)
        return err_sys(e, ERR_INVALID, "path '%s' is not a directory", path);
    if (fd < 0)
        return err_sys(e, ERR_NOT_FOUND, "directory '%s'", path);
    if (!depth)
        depth = 1;
    int rc = walk(fd, path, depth > TREE_DEPTH_MAX ? TREE_DEPTH_MAX : depth, a, out, e);
    fs_leave();
    return rc;
}

int fs_mkdir(const char *path, const struct user *owner, struct err *e)
{
    char name[FS_NAME];
    struct stat st;
    _cleanup_close_ int there = fs_open(path, O_PATH);
    if (there >= 0 && fstat(there, &st) == 0) {
        errno = S_ISDIR(st.st_mode) ? EEXIST : ENOTDIR;
        return S_ISDIR(st.st_mode)
                   ? err_sys(e, ERR_CONFLICT, "directory already exists: '%s'", path)
                   : err_sys(e, ERR_INVALID, "path already exists but it is not a directory: '%s'", path);
    }
    _cleanup_close_ int dir = fs_parent_make(path, owner, name, e);
    if (dir < 0)
        return -1;
    return fs_mkdirat(dir, name, owner) < 0 ? err_sys(e, ERR_FORBIDDEN, "creating directory '%s'", path) : 0;
}

int fs_move(const char *from, const char *to, const struct user *owner, struct err *e)
{
    char from_name[FS_NAME], to_name[FS_NAME];
    struct stat st;
    _cleanup_close_ int from_dir = fs_parent(from, from_name, e);
    if (from_dir < 0)
        return -1;
    if (fstatat(from_dir, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, ERR_NOT_FOUND, "source '%s'", from);
    _cleanup_close_ int to_dir = fs_parent_make(to, owner, to_name, e);
    if (to_dir < 0)
        return -1;
    if (renameat(from_dir, from_name, to_dir, to_name) < 0)
        return err_sys(e, ERR_INVALID, "moving '%s' to '%s'", from, to);
    return 0;
}
