/* See textfile.h. */
#include "lib/base/textfile.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int textfile_write(const char *path, const char *text)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = (ssize_t)strlen(text);

    return fd >= 0 && write(fd, text, (size_t)n) == n ? 0 : -1;
}

ssize_t textfile_read(const char *path, char *buf, size_t room)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, room - 1);

    if (n >= 0)
        buf[n] = 0;
    return n;
}

int textfile_replace(const char *path, const char *text, struct err *e)
{
    char temp[300];

    snprintf(temp, sizeof temp, "%s.new", path);
    _cleanup_close_ int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || rename(temp, path) < 0)
        return err_sys(e, ERR_INTERNAL, "write %s", path);
    return 0;
}

int dir_make(const char *path, mode_t mode, uid_t uid, gid_t gid, struct err *e)
{
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "make directory %s", path);
    if (chmod(path, mode) < 0 || chown(path, uid, gid) < 0)
        return err_sys(e, ERR_INTERNAL, "set the owner of %s", path);
    return 0;
}

uint64_t proc_start_time(pid_t pid)
{
    char path[40], text[1024];
    unsigned long long t = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (textfile_read(path, text, sizeof text) <= 0)
        return 0;
    const char *p = strrchr(text, ')'); /* the name before it may hold anything */
    if (!p)
        return 0;
    /* Fields 3 to 21, then 22. */
    if (sscanf(p + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &t) != 1)
        return 0;
    return p[2] == 'Z' || p[2] == 'X' ? 0 : t;
}
