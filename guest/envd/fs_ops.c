/* Directory operations. Invariant: they run with the user's identity on this thread, so the kernel itself
 * refuses what the user may not do, whatever symlinks lie on the way. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fsid.h"
#include "guest/envd/state.h"
#include "lib/base/cleanup.h"

#define TREE_DEPTH_MAX 256

/* Whether the path can be walked without passing a symlink: only then is it the place that the caller named.
 */
static bool symlink_free(const char *path)
{
    char part[PATH_MAX];
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | O_NOFOLLOW, .resolve = RESOLVE_NO_SYMLINKS};
    snprintf(part, sizeof(part), "%s", path);
    for (;;) {
        _cleanup_close_ int fd = (int)syscall(SYS_openat2, AT_FDCWD, *part ? part : "/", &how, sizeof(how));
        if (fd >= 0) {
            struct stat st;
            return fstat(fd, &st) == 0 && !S_ISLNK(st.st_mode);
        }
        char *slash = strrchr(part, '/');
        if (errno != ENOENT || !slash)
            return false;
        *slash = 0; /* it does not exist yet: what does must be free of symlinks */
    }
}

int fs_as_user(const struct user *u, const char *path, int (*op)(void *arg, struct err *e), void *arg,
               struct err *e)
{
    bool other = fsid_enter(u);
    int rc = op(arg, e);
    if (!other)
        return rc;
    fsid_leave();
    if (rc == 0 || (e->sys != EACCES && e->sys != EPERM) || !symlink_free(path))
        return rc;
    *e = (struct err){0};
    rc = op(arg, e);
    if (rc == 0)
        __atomic_add_fetch(&state.root_fallbacks, 1, __ATOMIC_RELAXED);
    return rc;
}

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
    if (names_read(fd, a, &names, e) < 0)
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
        struct err gone = {0};
        if (fs_stat(fd, names.v[i], full, a, entry, &gone) < 0) {
            out->n--; /* removed while we were listing */
            continue;
        }
        if (depth > 1 && S_ISDIR(entry->raw_mode)) {
            _cleanup_close_ int sub = openat(fd, names.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (sub >= 0 && walk(sub, full, depth - 1, a, out, e) < 0)
                return -1;
        }
    }
    return 0;
}

int fs_list(const char *path, uint32_t depth, struct arena *a, struct entries *out, struct err *e)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOTDIR)
        return err_sys(e, ERR_INVALID, "path '%s' is not a directory", path);
    if (fd < 0)
        return err_sys(e, ERR_NOT_FOUND, "directory '%s'", path);
    if (!depth)
        depth = 1;
    return walk(fd, path, depth > TREE_DEPTH_MAX ? TREE_DEPTH_MAX : depth, a, out, e);
}

/* Makes one directory for the owner. Running as the owner it is theirs anyway; after a root fallback it is
 * given to them. */
static int mkdir_one(const char *path, const struct user *owner)
{
    if (mkdir(path, 0755) < 0)
        return -1;
    if (geteuid() == 0 && lchown(path, owner->uid, owner->gid) < 0 && errno != EPERM)
        return -1;
    return 0;
}

int fs_mkdir_parents(const char *path, const struct user *owner, struct err *e)
{
    char part[PATH_MAX];
    snprintf(part, sizeof(part), "%s", path);
    char *slash = strrchr(part, '/');
    if (!slash || slash == part)
        return 0;
    *slash = 0;
    struct stat st;
    if (stat(part, &st) == 0)
        return S_ISDIR(st.st_mode) ? 0 : (errno = ENOTDIR, err_sys(e, ERR_INVALID, "parent '%s'", part));
    if (errno != ENOENT)
        return err_sys(e, ERR_INVALID, "parent '%s'", part);
    if (fs_mkdir_parents(part, owner, e) < 0)
        return -1;
    if (mkdir_one(part, owner) < 0 && errno != EEXIST)
        return err_sys(e, ERR_FORBIDDEN, "creating directory '%s'", part);
    return 0;
}

int fs_mkdir(const char *path, const struct user *owner, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        errno = S_ISDIR(st.st_mode) ? EEXIST : ENOTDIR;
        return S_ISDIR(st.st_mode)
                   ? err_sys(e, ERR_CONFLICT, "directory already exists: '%s'", path)
                   : err_sys(e, ERR_INVALID, "path already exists but it is not a directory: '%s'", path);
    }
    if (fs_mkdir_parents(path, owner, e) < 0)
        return -1;
    if (mkdir_one(path, owner) < 0)
        return err_sys(e, ERR_FORBIDDEN, "creating directory '%s'", path);
    return 0;
}

int fs_move(const char *from, const char *to, const struct user *owner, struct err *e)
{
    struct stat st;
    if (lstat(from, &st) < 0)
        return err_sys(e, ERR_NOT_FOUND, "source '%s'", from);
    if (fs_mkdir_parents(to, owner, e) < 0)
        return -1;
    if (rename(from, to) < 0)
        return err_sys(e, ERR_INVALID, "moving '%s' to '%s'", from, to);
    return 0;
}

static int remove_at(int dirfd, const char *name, int depth, struct err *e)
{
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_sys(e, ERR_FORBIDDEN, "removing '%s'", name);
    _cleanup_close_ int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, ERR_FORBIDDEN, "removing '%s'", name);
    if (depth > TREE_DEPTH_MAX * 8) {
        errno = ELOOP;
        return err_sys(e, ERR_INVALID, "removing '%s'", name);
    }
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *de;
    while (d && (de = readdir(d)))
        if (strcmp(de->d_name, ".") && strcmp(de->d_name, "..") &&
            remove_at(fd, de->d_name, depth + 1, e) < 0)
            return -1;
    if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_sys(e, ERR_FORBIDDEN, "removing directory '%s'", name);
    return 0;
}

int fs_remove(const char *path, struct err *e)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(e, ERR_FORBIDDEN, "path '%s'", path);
    return remove_at(AT_FDCWD, path, 0, e);
}
