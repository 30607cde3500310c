/* Removal of trees. Invariants: nothing outside the tree is touched (each step is relative to an open
 * directory and follows no link); descriptors and memory are bounded however deep the tree is: what lies
 * deeper than LEVELS is moved up to the top of the tree and removed from there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "lib/base/cleanup.h"

#define LEVELS 48

struct level {
    DIR *d;
    char name[FS_NAME]; /* in the level above */
};

struct removal {
    int base; /* holds the tree */
    int depth;
    bool moved; /* something was moved to the top since its scan began */
    struct level level[LEVELS];
};

static int above(const struct removal *r)
{
    return r->depth > 1 ? dirfd(r->level[r->depth - 2].d) : r->base;
}

/* `errno` is that of the attempt to unlink it: EPERM stays when it is no directory. */
static int level_enter(struct removal *r, int in, const char *name)
{
    int refused = errno, fd = fs_openat(in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        else if (errno == ENOTDIR && refused == EPERM)
            errno = EPERM;
        return -1;
    }
    struct level *l = &r->level[r->depth++];
    l->d = d;
    snprintf(l->name, sizeof(l->name), "%s", name);
    return 0;
}

/* The innermost directory is empty, or should be. Returns 0 or -1 with errno. */
static int level_leave(struct removal *r)
{
    struct level *l = &r->level[r->depth - 1];
    if (unlinkat(above(r), l->name, AT_REMOVEDIR) < 0 && errno != ENOENT) {
        if (errno != ENOTEMPTY || r->depth != 1 || !r->moved)
            return -1;
        r->moved = false; /* the rest of the deep part is here now */
        rewinddir(l->d);
        return 0;
    }
    closedir(l->d);
    r->depth--;
    return 0;
}

static int directory_take(struct removal *r, int in, const char *name)
{
    uint64_t random = 0;
    char top[40];
    if (r->depth < LEVELS)
        return level_enter(r, in, name);
    if (getrandom(&random, sizeof(random), 0) < 0)
        return -1;
    snprintf(top, sizeof(top), ".cube-%016llx", (unsigned long long)random);
    if (renameat(in, name, dirfd(r->level[0].d), top) < 0)
        return errno == ENOENT ? 0 : -1;
    r->moved = true;
    return 0;
}

/* One entry, or the end of the innermost directory. Returns 0 or -1 with errno. */
static int step(struct removal *r)
{
    struct level *l = &r->level[r->depth - 1];
    errno = 0;
    struct dirent *de = readdir(l->d);
    if (!de)
        return errno ? -1 : level_leave(r);
    if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
        return 0;
    if (de->d_type != DT_DIR && (unlinkat(dirfd(l->d), de->d_name, 0) == 0 || errno == ENOENT))
        return 0;
    if (de->d_type != DT_DIR && errno != EISDIR && errno != EPERM)
        return -1;
    return directory_take(r, dirfd(l->d), de->d_name);
}

int fs_remove(const char *path, struct err *e)
{
    char name[FS_NAME];
    struct removal *r = calloc(1, sizeof(*r));
    _cleanup_free_ void *memory = r;
    struct err missing = {0};
    _cleanup_close_ int base = fs_parent(path, name, &missing);
    if (base < 0 && (missing.sys == ENOENT || missing.sys == ENOTDIR))
        return 0;
    if (base < 0) {
        *e = missing;
        return -1;
    }
    if (!r)
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (unlinkat(base, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_sys(e, ERR_FORBIDDEN, "removing '%s'", path);
    r->base = base;
    int rc = level_enter(r, base, name);
    while (rc == 0 && r->depth)
        rc = step(r);
    int sys = errno;
    while (r->depth)
        closedir(r->level[--r->depth].d);
    errno = sys;
    return rc < 0 ? err_sys(e, ERR_FORBIDDEN, "removing '%s'", path) : 0;
}
