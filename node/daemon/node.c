/* Owns the directories of the node and the identity that the daemon runs under. Invariant: after
 * `node_become` the process has no capability but those of the network (internal.md §6), and every file of
 * the node belongs to it. */
#include "node/daemon/node.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"
#include "node/daemon/vm_spare.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define GROUPS_MAX 16

static int make_dir(const char *base, const char *name, mode_t mode, int *out, struct err *e)
{
    char path[512];
    if ((size_t)snprintf(path, sizeof path, "%s%s%s", base, *name ? "/" : "", name) >= sizeof path)
        return err_set(e, ERR_INVALID, "the path %s/%s is too long", base, name);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            if (mkdir(path, 0711) < 0 && errno != EEXIST)
                return err_sys(e, ERR_INTERNAL, "making directory %s", path);
            *p = '/';
        }
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making directory %s", path);
    *out = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    return *out < 0 ? err_sys(e, ERR_INTERNAL, "opening directory %s", path) : 0;
}

/* Everything below, and the directory itself. Few files: a store has a handful per artifact. */
static int give(int dir, const char *name, uid_t uid, gid_t gid, struct err *e)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_sys(e, ERR_INTERNAL, "looking at %s", name);
    if (st.st_uid != uid && fchownat(dir, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, ERR_INTERNAL, "giving %s to uid %u", name, uid);
    if (!S_ISDIR(st.st_mode))
        return 0;
    int fd = openat(dir, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return err_sys(e, ERR_INTERNAL, "reading %s", name);
    for (struct dirent *ent; (ent = readdir(d));)
        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0 &&
            give(fd, ent->d_name, uid, gid, e) < 0)
            return -1;
    return 0;
}

static int give_all(const struct node_config *cfg, uid_t uid, gid_t gid, struct err *e)
{
    const struct {
        const char *base, *name;
        mode_t mode;
    } dirs[] = {{cfg->store_dir, "", 0711},
                {cfg->state_dir, "sandboxes", 0700},
                {cfg->run_dir, "warm", 0711},
                {cfg->run_dir, "sb", 0711}};
    for (unsigned i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        _cleanup_close_ int fd = -1;
        if (make_dir(dirs[i].base, dirs[i].name, dirs[i].mode, &fd, e) < 0)
            return -1;
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d/.", fd);
        if (give(AT_FDCWD, path, uid, gid, e) < 0)
            return -1;
    }
    return 0;
}

/* CubeVS needs them; nothing else in this process does. */
static int keep_network_caps(struct err *e)
{
    static const int caps[] = {CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON};
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    for (unsigned i = 0; i < sizeof caps / sizeof *caps; i++) {
        data[caps[i] / 32].permitted |= 1u << (caps[i] % 32);
        data[caps[i] / 32].effective |= 1u << (caps[i] % 32);
    }
    return syscall(SYS_capset, &head, data) < 0 ? err_sys(e, ERR_INTERNAL, "keeping the network capabilities")
                                                : 0;
}

int node_become(const struct node_config *cfg, const char *user, struct err *e)
{
    unsigned uid, gid;
    int used = 0;
    if (sscanf(user, "%u:%u%n", &uid, &gid, &used) != 2 || (user[used] && user[used] != ','))
        return err_set(e, ERR_INVALID, "--user '%s' is not UID:GID[,GID…]", user);
    gid_t groups[GROUPS_MAX];
    int count = 0;
    if (cfg->relay_gid >= 0)
        groups[count++] = (gid_t)cfg->relay_gid;
    for (const char *p = user + used; *p == ',' && count < GROUPS_MAX;) {
        char *end;
        groups[count++] = (gid_t)strtoul(p + 1, &end, 10);
        p = end;
    }
    if (geteuid() != 0)
        return geteuid() == uid ? 0 : err_set(e, ERR_INVALID, "only root can become uid %u", uid);
    if (give_all(cfg, uid, gid, e) < 0)
        return -1;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setgroups((size_t)count, groups) < 0 ||
        setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        return err_sys(e, ERR_INTERNAL, "becoming uid %u", uid);
    if (keep_network_caps(e) < 0)
        return -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "giving up privileges");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* /proc/self stays ours after the change of uid */
    return 0;
}

static int read_boot_id(struct node *n, struct err *e)
{
    _cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, n->boot_id, 36);
    return got == 36 ? 0 : err_sys(e, ERR_INTERNAL, "reading the host's boot ID");
}

int node_open(struct node *n, struct err *e)
{
    const struct node_config *c = &n->cfg;
    if (store_open(c->store_dir, &n->store, e) < 0 ||
        make_dir(c->state_dir, "sandboxes", 0700, &n->sandboxes_fd, e) < 0 ||
        make_dir(c->store_dir, "vm", 0700, &n->vms_fd, e) < 0 || vm_spare_open(n, e) < 0 ||
        make_dir(c->run_dir, "warm", 0711, &n->warm_fd, e) < 0 ||
        make_dir(c->run_dir, "sb", 0711, &n->sb_fd, e) < 0 || read_boot_id(n, e) < 0)
        return -1;
    /* TAP names must not collide with those of another node on this host. */
    char hex[65];
    sha256_hex(c->id, strlen(c->id), hex);
    snprintf(n->tap_prefix, sizeof n->tap_prefix, "c%.4s", hex);
    return 0;
}
