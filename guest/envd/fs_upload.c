/* Writing a file so that readers see the old one or the new one, and a cut upload leaves nothing. Invariant:
 * bytes go to a nameless file (O_TMPFILE, else a hidden temporary name) in the destination's own directory,
 * and only upload_publish gives it the name. Where that cannot work (devices, FIFOs, /proc, a directory the
 * user may not write but whose file they may), the destination is written in place. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "lib/base/cleanup.h"

#define LINKS_MAX 40   /* as the kernel's own limit */
#define READER_MS 2000 /* for the reader of a FIFO or device to make room */

#define TEMP_PREFIX ".cube-"

bool fs_upload_name(const char *name)
{
    size_t n = sizeof(TEMP_PREFIX) - 1;
    return !strncmp(name, TEMP_PREFIX, n) && strlen(name) == n + 16 &&
           strspn(name + n, "0123456789abcdef") == 16;
}

static void temp_name(char out[32])
{
    uint64_t r = 0;
    if (getrandom(&r, sizeof(r), 0) < 0)
        r = (uint64_t)(uintptr_t)out;
    snprintf(out, 32, TEMP_PREFIX "%016llx", (unsigned long long)r);
}

/* Follows symlinks of the last component, so that writing to a link writes what it points to. */
static int destination_resolve(struct upload *u, const char *path, const struct user *owner, struct err *e)
{
    char at[PATH_MAX], link[PATH_MAX], next[PATH_MAX * 2];
    snprintf(at, sizeof(at), "%s", path);
    for (int i = 0; i < LINKS_MAX; i++) {
        if (u->dirfd >= 0)
            close(u->dirfd);
        u->dirfd = fs_parent_make(at, owner, u->name, e);
        if (u->dirfd < 0)
            return -1;
        ssize_t n = readlinkat(u->dirfd, u->name, link, sizeof(link) - 1);
        if (n < 0)
            return 0; /* no symlink, or nothing there yet */
        struct statfs fs;
        if (fs_strict() || (fstatfs(u->dirfd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC))
            break; /* of somebody else's making, or a door to one of our own descriptors */
        link[n] = 0;
        if (link[0] == '/')
            snprintf(next, sizeof(next), "%s", link);
        else
            snprintf(next, sizeof(next), "%.*s/%s", (int)(strrchr(at, '/') - at), at, link);
        if (strlen(next) >= sizeof(at))
            break;
        strcpy(at, next);
    }
    errno = ELOOP;
    return err_sys(e, ERR_INVALID, "path '%s'", path);
}

static int open_in_place(struct upload *u, int flags)
{
    u->fd = openat(u->dirfd, u->name, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags);
    if (u->fd < 0)
        return -1;
    u->in_place = true;
    return 0; /* not made blocking: a FIFO that nobody reads must not hold a worker (upload_write waits) */
}

int upload_open(struct upload *u, const char *path, const struct user *owner, struct err *e)
{
    struct stat st;
    *u = (struct upload){.fd = -1, .dirfd = -1};
    snprintf(u->path, sizeof(u->path), "%s", path);
    if (destination_resolve(u, path, owner, e) < 0)
        return -1;
    bool exists = fstatat(u->dirfd, u->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (exists && S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        return err_sys(e, ERR_INVALID, "path is a directory: '%s'", path);
    }
    if (exists && !S_ISREG(st.st_mode))
        return open_in_place(u, 0) < 0 ? err_sys(e, ERR_INVALID, "opening '%s'", path) : 0;
    if (exists) { /* the right to write the file is asked of the file, not of its directory */
        _cleanup_close_ int probe = openat(u->dirfd, u->name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (probe < 0 && errno != ETXTBSY)
            return err_sys(e, ERR_FORBIDDEN, "opening '%s'", path);
    }
    u->fd = openat(u->dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (u->fd < 0) {
        temp_name(u->temp);
        u->fd = openat(u->dirfd, u->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (u->fd < 0)
            u->temp[0] = 0;
    }
    if (u->fd < 0 && (!exists || open_in_place(u, O_TRUNC) < 0))
        return err_sys(e, ERR_FORBIDDEN, "opening '%s'", path);
    if (exists && !u->in_place) {
        if (fchmod(u->fd, st.st_mode & 07777) < 0)
            return err_sys(e, ERR_INTERNAL, "setting the mode of '%s'", path);
    }
    return 0;
}

/* A name that cannot be replaced (a bind mount): copy the content into it. */
static int publish_by_copy(struct upload *u)
{
    struct stat st;
    char self[32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", u->fd);
    _cleanup_close_ int from = open(self, O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int to = openat(u->dirfd, u->name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    if (from < 0 || to < 0 || fstat(from, &st) < 0)
        return -1;
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(to, from, NULL, (size_t)left > (1u << 30) ? 1u << 30 : (size_t)left);
        if (n <= 0)
            return -1;
        left -= n;
    }
    return 0;
}

/* Whoever watches the directory sees a new file being made, and then, as it is no empty one, being written.
 */
static void written_tell(const struct upload *u)
{
    static const struct timespec modified[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    struct stat st;
    if (fstat(u->fd, &st) == 0 && st.st_size)
        (void)utimensat(u->dirfd, u->name, modified, AT_SYMLINK_NOFOLLOW);
}

static int name_give(struct upload *u)
{
    char self[32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", u->fd);
    int linked = u->temp[0] ? linkat(u->dirfd, u->temp, u->dirfd, u->name, 0)
                            : linkat(AT_FDCWD, self, u->dirfd, u->name, AT_SYMLINK_FOLLOW);
    if (linked == 0) { /* upload_close unlinks `temp` */
        written_tell(u);
        return 0;
    }
    if (!u->temp[0]) {
        if (errno != EEXIST)
            return -1;
        char temp[32]; /* there is one already: only rename replaces */
        temp_name(temp);
        if (linkat(AT_FDCWD, self, u->dirfd, temp, AT_SYMLINK_FOLLOW) < 0)
            return -1;
        strcpy(u->temp, temp);
    }
    /* Exchanged, the old file is removed under the temporary name. A rename over it would make ext4 write the
     * new one to the disk first (auto_da_alloc), ten times as slow. */
    if (renameat2(u->dirfd, u->temp, u->dirfd, u->name, RENAME_EXCHANGE) == 0)
        return 0; /* upload_close unlinks `temp` */
    if (renameat(u->dirfd, u->temp, u->dirfd, u->name) == 0) {
        u->temp[0] = 0;
        return 0;
    }
    return errno == EBUSY ? publish_by_copy(u) : -1;
}

int upload_publish(struct upload *u, const struct user *owner, const struct pair *metadata, size_t n,
                   struct err *e)
{
    struct stat st;
    if (fstat(u->fd, &st) == 0 && S_ISREG(st.st_mode) && geteuid() == 0) {
        mode_t mode = st.st_mode & 07777;
        bool moved = st.st_uid != owner->uid || st.st_gid != owner->gid;
        if (moved && fchown(u->fd, owner->uid, owner->gid) < 0 && !u->in_place)
            return err_sys(e, ERR_INTERNAL, "changing the owner of '%s'", u->path);
        if (moved && mode & 06000)
            mode &= 0777; /* set-id bits never pass to another owner */
        if (moved && !u->in_place && fchmod(u->fd, mode) < 0)
            return err_sys(e, ERR_INTERNAL, "setting the mode of '%s'", u->path);
    }
    if (n && fs_metadata_write(u->fd, metadata, n, e) < 0)
        return -1;
    if (!u->in_place && name_give(u) < 0)
        return err_sys(e, ERR_INTERNAL, "publishing '%s'", u->path);
    u->in_place = true; /* nothing left to undo */
    return 0;
}

void upload_close(struct upload *u)
{
    if (u->temp[0] && u->dirfd >= 0)
        unlinkat(u->dirfd, u->temp, 0);
    if (u->fd >= 0)
        close(u->fd);
    if (u->dirfd >= 0)
        close(u->dirfd);
    u->fd = u->dirfd = -1;
    u->temp[0] = 0;
}

int upload_write(struct upload *u, const char *data, size_t n, struct err *e)
{
    while (n) {
        ssize_t w = write(u->fd, data, n);
        struct pollfd room = {.fd = u->fd, .events = POLLOUT};
        if (w < 0 && (errno == EINTR || (errno == EAGAIN && poll(&room, 1, READER_MS) > 0)))
            continue;
        if (w < 0)
            return err_sys(e, errno == EAGAIN ? ERR_UNAVAILABLE : ERR_INTERNAL, "writing '%s'", u->path);
        data += w;
        n -= (size_t)w;
    }
    return 0;
}

static int append_all(int to, const char *path, struct err *e)
{
    struct stat st;
    _cleanup_close_ int from = fs_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (from < 0 || fstat(from, &st) < 0)
        return err_sys(e, ERR_NOT_FOUND, "source '%s'", path);
    if (!S_ISREG(st.st_mode)) {
        errno = EISDIR;
        return err_sys(e, ERR_INVALID, "source '%s' is not a regular file", path);
    }
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, 1u << 30, 0);
        if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS))
            n = sendfile(to, from, NULL, 1u << 30);
        if (n < 0)
            return err_sys(e, ERR_INTERNAL, "copying '%s'", path);
        if (n == 0)
            return 0;
    }
}

static void source_remove(const char *path, const char *destination)
{
    char name[FS_NAME];
    _cleanup_close_ int dir = strcmp(path, destination) ? fs_parent(path, name, NULL) : -1;
    if (dir >= 0)
        unlinkat(dir, name, 0);
}

int fs_compose(const char *const *sources, size_t n, const char *destination, const struct user *owner,
               struct err *e)
{
    struct upload u;
    int rc = upload_open(&u, destination, owner, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = append_all(u.fd, sources[i], e);
    if (rc == 0)
        rc = upload_publish(&u, owner, NULL, 0, e);
    upload_close(&u);
    for (size_t i = 0; rc == 0 && i < n; i++)
        source_remove(sources[i], destination);
    return rc;
}
