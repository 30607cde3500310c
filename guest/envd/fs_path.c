/* From a path to a directory descriptor and a name. Invariants: no link of /proc that leads to a descriptor
 * of this daemon is followed; when acting as root for somebody else (strict), no symlink at all is followed,
 * whoever swaps one in meanwhile: every step is one openat2 or relative to what one returned. */
#include "guest/envd/fs_path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fsid.h"
#include "guest/envd/state.h"
#include "lib/base/cleanup.h"

static __thread bool strict;

bool fs_strict(void)
{
    return strict;
}

int fs_openat(int dirfd, const char *name, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags | O_CLOEXEC,
        .mode = flags & (O_CREAT | __O_TMPFILE) ? mode : 0,
        .resolve = RESOLVE_NO_MAGICLINKS | (strict ? RESOLVE_NO_SYMLINKS : 0),
    };
    for (;;) {
        int fd = (int)syscall(SYS_openat2, dirfd, name, &how, sizeof(how));
        if (fd < 0 && errno == EINTR)
            continue;
        if (fd >= 0 || errno != ENOSYS)
            return fd;
        /* Only outside a sandbox (valgrind, an old container): what needs openat2 to be safe is not done. */
        errno = ELOOP;
        return strict ? -1 : openat(dirfd, name, flags | O_CLOEXEC, mode);
    }
}

int fs_open(const char *path, int flags)
{
    return fs_openat(AT_FDCWD, path, flags, 0);
}

/* Splits at the last slash. Returns the name, or NULL for "/" and what ends in "." or "..". */
static const char *path_split(const char *path, char dir[PATH_MAX])
{
    snprintf(dir, PATH_MAX, "%s", path);
    char *slash = strrchr(dir, '/');
    const char *name = path + (slash ? slash - dir + 1 : 0);
    if (!slash || !*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return NULL;
    *slash = 0;
    return name;
}

static int name_take(const char *path, char dir[PATH_MAX], char name[FS_NAME], struct err *e)
{
    const char *last = path_split(path, dir);
    errno = !last ? EISDIR : strlen(last) >= FS_NAME ? ENAMETOOLONG : 0;
    if (errno)
        return err_sys(e, ERR_INVALID, "path '%s'", path);
    strcpy(name, last);
    return 0;
}

int fs_parent(const char *path, char name[FS_NAME], struct err *e)
{
    char dir[PATH_MAX];
    if (name_take(path, dir, name, e) < 0)
        return -1;
    int fd = fs_open(*dir ? dir : "/", O_PATH | O_DIRECTORY);
    return fd < 0 ? err_sys(e, ERR_NOT_FOUND, "path '%s'", path) : fd;
}

/* Where unshare is forbidden (Docker's default filter) all threads share one working directory: then one of
 * them at a time may stand somewhere. */
static pthread_mutex_t shared_directory = PTHREAD_MUTEX_INITIALIZER;
static __thread enum { UNKNOWN, OWN, SHARED } standing;
static __thread bool entered;

int fs_enter(int dirfd, const char *path, struct err *e)
{
    if (standing == UNKNOWN)
        standing = unshare(CLONE_FS) == 0 ? OWN : SHARED;
    if (!entered && standing == SHARED)
        pthread_mutex_lock(&shared_directory);
    entered = true;
    if (fchdir(dirfd) == 0)
        return 0;
    err_sys(e, ERR_FORBIDDEN, "path '%s'", path);
    fs_leave();
    return -1;
}

void fs_leave(void)
{
    if (!entered)
        return;
    int away =
        chdir("/"); /* refused only where "/" cannot be searched: the next fs_enter goes on from here */
    (void)away;
    entered = false;
    if (standing == SHARED)
        pthread_mutex_unlock(&shared_directory);
}

int fs_mkdirat(int dirfd, const char *name, const struct user *owner)
{
    if (mkdirat(dirfd, name, 0755) < 0)
        return -1;
    if (geteuid() == 0 && fchownat(dirfd, name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) < 0 &&
        errno != EPERM)
        return -1;
    return 0;
}

int fs_parent_make(const char *path, const struct user *owner, char name[FS_NAME], struct err *e)
{
    char dir[PATH_MAX], whole[PATH_MAX];
    if (name_take(path, dir, name, e) < 0)
        return -1;
    snprintf(whole, sizeof(whole), "%s", dir);
    _cleanup_close_ int fd = -1;
    while ((fd = fs_open(*dir ? dir : "/", O_PATH | O_DIRECTORY)) < 0) {
        char *slash = strrchr(dir, '/');
        if (errno != ENOENT || !slash)
            return err_sys(e, ERR_INVALID, "parent '%s'", dir);
        *slash = 0; /* what exists of it */
    }
    for (char *at = whole + strlen(dir); *at;) {
        char *part = at + 1; /* `at` is at a slash */
        at = part + strcspn(part, "/");
        char after = *at;
        *at = 0;
        if (fs_mkdirat(fd, part, owner) < 0 && errno != EEXIST)
            return err_sys(e, ERR_FORBIDDEN, "creating directory '%s'", whole);
        int next = fs_openat(fd, part, O_PATH | O_DIRECTORY, 0);
        if (next < 0)
            return err_sys(e, ERR_INVALID, "parent '%s'", whole);
        close(fd);
        fd = next;
        *at = after;
    }
    return fd_steal(&fd);
}

int fs_as_user(const struct user *u, int (*op)(void *arg, struct err *e), void *arg, struct err *e)
{
    bool other = fsid_enter(u);
    int rc = op(arg, e);
    if (!other)
        return rc;
    fsid_leave();
    if (rc == 0 || (e->sys != EACCES && e->sys != EPERM))
        return rc;
    struct err refused = *e;
    *e = (struct err){0};
    strict = true;
    rc = op(arg, e);
    strict = false;
    if (rc == 0)
        __atomic_add_fetch(&state.root_fallbacks, 1, __ATOMIC_RELAXED);
    else if (e->sys == ELOOP)
        *e = refused; /* a link lies on the way: only the user's own rights count */
    return rc;
}
