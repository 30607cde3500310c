/* What the sandbox network needs of root: a BPF file system for cube-node's pins, and the name service's
 * sockets on a port below 1024. Both are made once and handed to programs without that right. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define DNS_PORT 53
#define DNS_BACKLOG 64

static void bpf_path(const struct options *o, char out[256])
{
    snprintf(out, 256, "%s/bpf", o->run_dir);
}

int host_bpf_mount(const struct options *o, struct err *e)
{
    char path[256];
    struct statfs fs;

    bpf_path(o, path);
    /* What an earlier jailer mounted stays: cube-node's pins are in it. */
    bool mounted = statfs(path, &fs) == 0 && fs.f_type == BPF_FS_MAGIC;
    if (!mounted && dir_make(path, 0700, 0, 0, e) < 0)
        return -1;
    if (!mounted && mount("bpf", path, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") < 0)
        return err_sys(e, ERR_UNSUPPORTED, "mount a BPF file system at %s", path);
    if (chown(path, (uid_t)o->node_uid, (gid_t)o->node_gid) < 0)
        return err_sys(e, ERR_INTERNAL, "give %s to cube-node", path);
    return 0;
}

void host_bpf_unmount(const struct options *o)
{
    char path[256];

    bpf_path(o, path);
    umount2(path, MNT_DETACH);
    rmdir(path);
}

static int bound_socket(const struct options *o, int type, struct err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(DNS_PORT)};
    int on = 1;
    _cleanup_close_ int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (inet_pton(AF_INET, o->dns_ip, &a.sin_addr) != 1)
        return err_set(e, ERR_INVALID, "jailer.dns_ip %s is no IPv4 address", o->dns_ip);
    /* Free bind: cube-node makes the interface with this address later. */
    if (fd < 0 || setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || (type == SOCK_STREAM && listen(fd, DNS_BACKLOG) < 0))
        return err_sys(e, ERR_INTERNAL, "bind port %d of %s", DNS_PORT, o->dns_ip);
    return fd_steal(&fd);
}

int host_dns_sockets(const struct options *o, int fds[2], struct err *e)
{
    static int kept[2] = {-1, -1};
    static const int types[2] = {SOCK_DGRAM, SOCK_STREAM};

    for (int i = 0; i < 2; i++) {
        if (kept[i] < 0)
            kept[i] = bound_socket(o, types[i], e);
        if (kept[i] < 0)
            return -1;
        fds[i] = fcntl(kept[i], F_DUPFD_CLOEXEC, 3);
        if (fds[i] < 0)
            return err_sys(e, ERR_INTERNAL, "duplicate a socket of the name service");
    }
    return 0;
}
