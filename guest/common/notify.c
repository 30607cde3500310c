/* Messages between cube-envd and cube-init. Invariant: what does not parse is dropped together with its
 * descriptors. */
#include "guest/common/notify.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* While a message is built, s[i] are the starts inside data, and the end is behind the last one. */
static size_t used(const struct notify_msg *m)
{
    if (!m->n_strings)
        return 1;
    const char *last = m->s[m->n_strings - 1];
    return (size_t)(last - m->data) + strlen(last) + 1;
}

void notify_start(struct notify_msg *m, char type)
{
    m->type = type;
    m->data[0] = type;
    m->n_strings = m->n_fds = 0;
}

bool notify_add(struct notify_msg *m, const char *s)
{
    size_t at = used(m), n = strlen(s);
    if (m->n_strings == NOTIFY_STRINGS || at + n + 1 > NOTIFY_MAX)
        return false;
    memcpy(m->data + at, s, n + 1);
    m->s[m->n_strings++] = m->data + at;
    return true;
}

int notify_send(int fd, const struct notify_msg *m)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * NOTIFY_FDS)];
    } control = {0};
    struct iovec iov = {(void *)m->data, used(m)};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (m->n_fds) {
        h.msg_control = control.bytes;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)m->n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)m->n_fds);
        memcpy(CMSG_DATA(c), m->fds, sizeof(int) * (size_t)m->n_fds);
    }
    return sendmsg(fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

int notify_recv(int fd, struct notify_msg *m)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * NOTIFY_FDS)];
    } control;
    struct iovec iov = {m->data, NOTIFY_MAX};
    struct msghdr h = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0)
        return -1;
    m->n_fds = m->n_strings = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            m->n_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(m->fds, CMSG_DATA(c), sizeof(int) * (size_t)m->n_fds);
        }
    m->type = m->data[0];
    m->data[n] = 0;
    for (char *p = m->data + 1; p < m->data + n && m->n_strings < NOTIFY_STRINGS; p += strlen(p) + 1)
        m->s[m->n_strings++] = p;
    return 1;
}
