/* Mounts. Invariants: the tools disk is only ever read; the sandbox's root gets nothing but mount points it
 * lacks; after the pivot the tools disk has no path any more, so user code cannot reach it. */
#include "guest/init/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#define ROOT_DEVICE "/dev/vda"
#define NEW_ROOT "/mnt"

static bool read_only;

bool mounts_read_only(void)
{
    return read_only;
}

static bool cmdline_has(const char *word)
{
    char text[4096] = " ";
    _cleanup_close_ int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text + 1, sizeof(text) - 3);
    if (n <= 0)
        return false;
    for (char *p = text; *p; p++)
        if (*p == '\n' || *p == '\t')
            *p = ' ';
    strcat(text, " ");
    char padded[128];
    snprintf(padded, sizeof(padded), " %s ", word);
    return strstr(text, padded) != NULL;
}

static int root_mount(struct err *e)
{
    bool want_ro = cmdline_has("cube.root=ro");
    unsigned long flags = MS_NOATIME;
    if (!want_ro && mount(ROOT_DEVICE, NEW_ROOT, "ext4", flags, "") == 0)
        return 0;
    int sys = errno;
    if (mount(ROOT_DEVICE, NEW_ROOT, "ext4", flags | MS_RDONLY, "") == 0) {
        read_only = true;
        if (!want_ro)
            log_warn("the root is mounted read-only: %s", strerror(sys));
        return 0;
    }
    return err_sys(e, ERR_INTERNAL, "mounting " ROOT_DEVICE);
}

/* runc's way: the old root is stacked on the new one, and detached. The descriptors in `tools` keep it alive.
 */
static int root_pivot(struct err *e)
{
    if (chdir(NEW_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        return err_sys(e, ERR_INTERNAL, "pivoting into the root");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return err_sys(e, ERR_INTERNAL, "leaving the tools disk");
    return 0;
}

struct point {
    const char *path, *type, *options;
    unsigned long flags;
    mode_t mode;
    bool only_ro; /* only on a read-only root */
};

static const struct point points[] = {
    {"/proc", "proc", "", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555, false},
    {"/sys", "sysfs", "", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555, false},
    {"/dev", "devtmpfs", "mode=755", MS_NOSUID, 0755, false},
    {"/dev/pts", "devpts", "mode=620,ptmxmode=666,gid=5", MS_NOSUID | MS_NOEXEC, 0755, false},
    {"/dev/shm", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, 01777, false},
    {"/dev/mqueue", "mqueue", "", MS_NOSUID | MS_NODEV | MS_NOEXEC, 01777, false},
    {"/run", "tmpfs", "mode=755,size=25%", MS_NOSUID | MS_NODEV, 0755, false},
    {"/sys/fs/cgroup", "cgroup2", "nsdelegate", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755, false},
    {"/tmp", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, 01777, true},
    {"/var/tmp", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, 01777, true},
    {"/workspace", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, 01777, true},
};

static void points_mount(void)
{
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
        const struct point *p = &points[i];
        if (p->only_ro && !read_only)
            continue;
        if (mkdir(p->path, p->mode) == 0 && chmod(p->path, p->mode) < 0)
            log_warn("mode of %s: %s", p->path, strerror(errno));
        if (mount(p->type, p->path, p->type, p->flags, p->options) < 0 && errno != EBUSY &&
            !(p->only_ro && errno == ENOENT))
            log_warn("mounting %s on %s: %s", p->type, p->path, strerror(errno));
    }
    if (!read_only && mkdir("/tmp", 01777) == 0 && chmod("/tmp", 01777) < 0)
        log_warn("mode of /tmp: %s", strerror(errno));
}

static void dev_links(void)
{
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"},
                                           {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++)
        if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
            log_warn("linking %s: %s", links[i][1], strerror(errno));
}

static int tool_open(const char *path, struct err *e)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        err_sys(e, ERR_INTERNAL, "opening %s on the tools disk", path);
    return fd;
}

int mounts_setup(struct tools *tools, struct err *e)
{
    /* The kernel mounts devtmpfs on the tools disk's /dev by itself only when it is configured to. */
    if (access("/dev/null", F_OK) < 0)
        mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    mount("proc", "/proc", "proc", 0, "");
    tools->envd = tool_open("/cube-envd", e);
    tools->gateway = tool_open("/cube-gateway", e);
    if (tools->envd < 0 || tools->gateway < 0 || root_mount(e) < 0 || root_pivot(e) < 0)
        return -1;
    points_mount();
    dev_links();
    if (mkdir("/run/cube", 0755) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making /run/cube");
    return 0;
}

/* In one go: compared, written over what is there, cut afterwards. A file that is emptied first gives its
 * block back, and to find a new one ext4 reads its bitmaps from the disk while a create waits. */
static int write_whole(const char *path, const char *text)
{
    char now[4096];
    size_t n = strlen(text);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0)
        return -1;
    ssize_t had = pread(fd, now, sizeof(now), 0);
    if (had == (ssize_t)n && !memcmp(now, text, n))
        return 0;
    if (pwrite(fd, text, n, 0) != (ssize_t)n)
        return -1;
    return had > (ssize_t)n || had == sizeof(now) ? ftruncate(fd, (off_t)n) : 0;
}

static bool same_content(const char *path, const char *text)
{
    char now[4096];
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, now, sizeof(now));
    return n >= 0 && (size_t)n == strlen(text) && !memcmp(now, text, (size_t)n);
}

/* /etc/resolv.conf is often a link into /run, where this boot has nothing yet. */
static void link_target_make(const char *path)
{
    char target[512], part[1024];
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    if (n <= 0)
        return;
    target[n] = 0;
    const char *at = strstr(target, "run/");
    if (!at)
        return;
    snprintf(part, sizeof(part), "/%s", at);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0755);
        *slash = '/';
    }
}

int file_publish(const char *path, const char *text)
{
    char copy[256];
    if (write_whole(path, text) == 0)
        return 0;
    if (errno == ENOENT) {
        link_target_make(path);
        if (write_whole(path, text) == 0)
            return 0;
    }
    if (errno != EROFS || access(path, F_OK) < 0)
        return -1;
    if (same_content(path, text))
        return 0;
    snprintf(copy, sizeof(copy), "/run/cube/%s", strrchr(path, '/') + 1);
    if (write_whole(copy, text) < 0)
        return -1;
    return mount(copy, path, NULL, MS_BIND, NULL);
}
