/* See seqpacket.h. */
#include "lib/base/seqpacket.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG 16

static int address(const char *path, struct sockaddr_un *a, struct err *e)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a->sun_path)
        return err_set(e, ERR_INVALID, "socket path %s is too long", path);
    strcpy(a->sun_path, path);
    return 0;
}

int seqpacket_listen(const char *path, uid_t uid, gid_t gid, struct err *e)
{
    struct sockaddr_un a;

    if (address(path, &a, e) < 0)
        return -1;
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    unlink(path);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 || chmod(path, 0600) < 0 ||
        chown(path, uid, gid) < 0 || listen(s, BACKLOG) < 0)
        return err_sys(e, ERR_INTERNAL, "listen on %s", path);
    return fd_steal(&s);
}

int seqpacket_connect(const char *path, struct err *e)
{
    struct sockaddr_un a;

    if (address(path, &a, e) < 0)
        return -1;
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof a) < 0)
        return err_sys(e, ERR_INTERNAL, "connect to %s", path);
    return fd_steal(&s);
}

int seqpacket_send(int fd, const void *data, size_t n, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * SEQPACKET_FDS_MAX)];
    } anc = {0};
    struct iovec iov = {(void *)data, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds > SEQPACKET_FDS_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (nfds) {
        m.msg_control = anc.bytes;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}
