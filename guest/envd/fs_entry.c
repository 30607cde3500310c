/* EntryInfo: stat, symlink target, metadata, owner names, and its encoding (contracts/e2b.md §4.4). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "lib/base/cleanup.h"

#define XATTR_PREFIX "user.e2b."

static enum entry_type type_of(mode_t mode)
{
    return S_ISDIR(mode) ? ENTRY_DIRECTORY : S_ISREG(mode) ? ENTRY_FILE : ENTRY_UNSPECIFIED;
}

static int metadata_read(const char *name, struct arena *a, struct pair **out, size_t *n)
{
    char list[8192];
    *n = 0;
    *out = NULL;
    ssize_t len = llistxattr(name, list, sizeof(list));
    if (len <= 0)
        return 0;
    size_t count = 0;
    for (char *k = list; k < list + len; k += strlen(k) + 1)
        count += !strncmp(k, XATTR_PREFIX, sizeof(XATTR_PREFIX) - 1);
    if (!count)
        return 0;
    *out = arena_alloc(a, count * sizeof(struct pair));
    if (!*out)
        return -1;
    for (char *k = list; k < list + len; k += strlen(k) + 1) {
        char value[4097];
        if (strncmp(k, XATTR_PREFIX, sizeof(XATTR_PREFIX) - 1))
            continue;
        ssize_t v = lgetxattr(name, k, value, sizeof(value) - 1);
        if (v < 0)
            continue;
        struct pair p = {arena_strndup(a, k + sizeof(XATTR_PREFIX) - 1, strlen(k) - sizeof(XATTR_PREFIX) + 1),
                         arena_strndup(a, value, (size_t)v)};
        if (!p.key || !p.value)
            return -1;
        (*out)[(*n)++] = p;
    }
    return 0;
}

int fs_metadata_write(int fd, const struct pair *v, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        char key[300];
        snprintf(key, sizeof(key), XATTR_PREFIX "%s", v[i].key);
        if (fsetxattr(fd, key, v[i].value, strlen(v[i].value), 0) < 0)
            return err_sys(e, ERR_INTERNAL, "storing metadata '%s'", v[i].key);
    }
    return 0;
}

int fs_stat(const char *name, const char *path, struct arena *a, struct entry *out, struct err *e)
{
    struct stat st, target;
    if (fstatat(AT_FDCWD, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, ERR_NOT_FOUND, "path '%s'", path);
    const char *slash = strrchr(path, '/');
    *out = (struct entry){
        .name = slash && slash[1] ? slash + 1 : path,
        .path = path,
        .type = type_of(st.st_mode),
        .size = st.st_size,
        .mode = st.st_mode & 07777,
        .raw_mode = st.st_mode,
        .uid = st.st_uid,
        .gid = st.st_gid,
        .mtime = st.st_mtim,
    };
    if (S_ISLNK(st.st_mode) && fs_strict()) {
        errno = ELOOP;
        return err_sys(e, ERR_FORBIDDEN, "path '%s'", path);
    }
    if (S_ISLNK(st.st_mode)) {
        out->is_symlink = true;
        out->type = ENTRY_UNSPECIFIED;
        if (fstatat(AT_FDCWD, name, &target, 0) == 0) {
            out->type = type_of(target.st_mode);
            out->mode = target.st_mode & 07777;
        }
        _cleanup_free_ char *real = realpath(path, NULL);
        char link[PATH_MAX];
        ssize_t n = real ? 0 : readlinkat(AT_FDCWD, name, link, sizeof(link));
        out->target = real    ? arena_strndup(a, real, strlen(real))
                      : n > 0 ? arena_strndup(a, link, (size_t)n)
                              : NULL;
    }
    if ((S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
        metadata_read(name, a, &out->metadata, &out->n_metadata) < 0)
        return err_set(e, ERR_TOO_LARGE, "too much metadata");
    return 0;
}

int entry_find(const char *path, struct arena *a, struct entry *out, struct err *e)
{
    char name[FS_NAME];
    if (!strcmp(path, "/"))
        return fs_stat(path, path, a, out, e);
    _cleanup_close_ int dir = fs_parent(path, name, e);
    if (dir < 0 || fs_enter(dir, path, e) < 0)
        return -1;
    int rc = fs_stat(name, path, a, out, e);
    fs_leave();
    return rc;
}

/* As Go's fs.FileMode prints it: one letter per special bit, then nine permission bits; 'L' for a symlink. */
static void permissions(const struct entry *e, char out[16])
{
    static const char bits[] = "rwxrwxrwx";
    char *p = out;
    mode_t m = e->raw_mode;
    if (S_ISDIR(m))
        *p++ = 'd';
    if (S_ISLNK(m))
        *p++ = 'L';
    if (S_ISBLK(m) || S_ISCHR(m))
        *p++ = 'D';
    if (S_ISFIFO(m))
        *p++ = 'p';
    if (S_ISSOCK(m))
        *p++ = 'S';
    if (m & S_ISUID && !S_ISLNK(m))
        *p++ = 'u';
    if (m & S_ISGID && !S_ISLNK(m))
        *p++ = 'g';
    if (S_ISCHR(m))
        *p++ = 'c';
    if (m & S_ISVTX && !S_ISLNK(m))
        *p++ = 't';
    if (p == out)
        *p++ = '-';
    for (int i = 0; i < 9; i++)
        *p++ = e->mode >> (8 - i) & 1 ? bits[i] : '-';
    *p = 0;
}

static const char *cached(struct name_cache *c, uint32_t id, void (*lookup)(uint32_t, char *))
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->id[i] == id)
            return c->name[i];
    unsigned at = c->n < 16 ? c->n++ : 15;
    c->id[at] = id;
    lookup(id, c->name[at]);
    return c->name[at];
}

void entry_write(struct msgw *w, const struct entry *e, struct name_cache *users, struct name_cache *groups)
{
    static const char *const types[] = {"FILE_TYPE_UNSPECIFIED", "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY",
                                        "FILE_TYPE_SYMLINK"};
    char perm[16];
    permissions(e, perm);
    msgw_str(w, "name", 1, e->name);
    if (e->type)
        msgw_enum(w, "type", 2, types[e->type], (int)e->type);
    msgw_str(w, "path", 3, e->path);
    msgw_i64(w, "size", 4, e->size);
    msgw_u32(w, "mode", 5, e->mode);
    msgw_str(w, "permissions", 6, perm);
    msgw_str(w, "owner", 7, cached(users, e->uid, user_name));
    msgw_str(w, "group", 8, cached(groups, e->gid, group_name));
    msgw_time(w, "modifiedTime", 9, e->mtime.tv_sec, (int32_t)e->mtime.tv_nsec);
    if (e->target)
        msgw_str(w, "symlinkTarget", 10, e->target);
    if (e->n_metadata)
        msgw_map(w, "metadata", 11, e->metadata, e->n_metadata);
    if (e->is_symlink)
        msgw_bool(w, "isSymlink", 12, true);
}
