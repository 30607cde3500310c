/* Owns addresses and listening sockets; invariant: a listener accepts at most ACCEPT_BATCH connections per
 * turn of the loop, and rests when descriptors run out, so it can neither starve nor spin the loop. */
#include "lib/net/loop_impl.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPT_BATCH 32
#define REST_MS 100

struct loop_listener {
    struct loop *loop;
    h2o_socket_t *sock;
    bool raw;
    bool freed_inside, accepting;
    void (*accepted)(h2o_socket_t *sock, void *data);
    void *data;
    struct loop_timer rest;
    char path[108]; /* Unix path to remove at the end, or "" */
};

int loop_address_parse(const char *address, struct sockaddr_storage *out, socklen_t *len, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        const char *path = address + 5;
        if (path[0] != '/' || strlen(path) >= sizeof un->sun_path)
            return err_set(e, ERR_INVALID, "address %s: not an absolute path of at most %zu bytes", address,
                           sizeof un->sun_path - 1);
        un->sun_family = AF_UNIX;
        strcpy(un->sun_path, path);
        *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
        return 0;
    }
    const char *colon = strrchr(address, ':');
    char host[INET6_ADDRSTRLEN + 2];
    if (!colon || (size_t)(colon - address) >= sizeof host)
        return err_set(e, ERR_INVALID, "address %s: not of the form host:port", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    char *end;
    errno = 0;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end || errno || port > 65535)
        return err_set(e, ERR_INVALID, "address %s: the port is not a number from 0 to 65535", address);
    size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = '\0';
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons((uint16_t)port);
        *len = sizeof *in6;
        if (inet_pton(AF_INET6, host + 1, &in6->sin6_addr) == 1)
            return 0;
    } else {
        struct sockaddr_in *in = (struct sockaddr_in *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        *len = sizeof *in;
        if (inet_pton(AF_INET, host, &in->sin_addr) == 1)
            return 0;
    }
    return err_set(e, ERR_INVALID, "address %s: the host is not a numeric IPv4 address or [IPv6 address]",
                   address);
}

static void on_rested(struct loop_timer *t);
static void on_connection(h2o_socket_t *sock, const char *err);

static void rest(struct loop_listener *ln)
{
    log_warn("accepting connections: %m; resting %d ms", REST_MS);
    h2o_socket_read_stop(ln->sock);
    ln->rest.fire = on_rested;
    loop_timer_start(ln->loop, &ln->rest, REST_MS);
}

static void on_rested(struct loop_timer *t)
{
    struct loop_listener *ln = H2O_STRUCT_FROM_MEMBER(struct loop_listener, rest, t);
    h2o_socket_read_start(ln->sock, on_connection);
}

static void on_connection(h2o_socket_t *sock, const char *err)
{
    struct loop_listener *ln = sock->data;
    ln->accepting = true;
    for (int i = 0; i < ACCEPT_BATCH && !ln->freed_inside; i++) {
        int fd = accept4(h2o_socket_get_fd(ln->sock), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                rest(ln);
            break;
        }
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* fails on Unix sockets, harmlessly */
        int flags = H2O_SOCKET_FLAG_IS_ACCEPTED_CONNECTION | (ln->raw ? H2O_SOCKET_FLAG_DONT_READ : 0);
        ln->accepted(h2o_evloop_socket_create(ln->loop->h2o, fd, flags), ln->data);
    }
    ln->accepting = false;
    if (ln->freed_inside)
        free(ln);
}

struct loop_listener *loop_listen_fd(struct loop *l, int fd, bool raw,
                                     void (*accepted)(h2o_socket_t *, void *), void *data, struct err *e)
{
    struct loop_listener *ln = calloc(1, sizeof *ln);
    if (!ln) {
        close(fd);
        err_set(e, ERR_INTERNAL, "listening: out of memory");
        return NULL;
    }
    *ln = (struct loop_listener){.loop = l, .raw = raw, .accepted = accepted, .data = data};
    ln->sock = h2o_evloop_socket_create(l->h2o, fd, H2O_SOCKET_FLAG_DONT_READ);
    ln->sock->data = ln;
    h2o_socket_read_start(ln->sock, on_connection);
    return ln;
}

/* A Unix path that nobody answers on is left over from a process that was killed; one that answers is
 * somebody's. */
static int clear_stale_path(const struct sockaddr_storage *a, socklen_t len, struct err *e)
{
    const char *path = ((const struct sockaddr_un *)a)->sun_path;
    struct stat st;
    if (lstat(path, &st) < 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_CONFLICT, "listening on unix:%s: the path exists and is no socket", path);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)a, len) < 0 && errno == ECONNREFUSED)
        return unlink(path) < 0 ? err_sys(e, ERR_INTERNAL, "removing the stale socket %s", path) : 0;
    errno = EADDRINUSE;
    return err_sys(e, ERR_CONFLICT, "listening on unix:%s", path);
}

struct loop_listener *loop_listen(struct loop *l, const char *address, bool reuseport, bool raw,
                                  void (*accepted)(h2o_socket_t *sock, void *data), void *data, struct err *e)
{
    struct sockaddr_storage a;
    socklen_t len;
    if (loop_address_parse(address, &a, &len, e) < 0)
        return NULL;
    bool is_unix = a.ss_family == AF_UNIX;
    if (is_unix && clear_stale_path(&a, len, e) < 0)
        return NULL;
    _cleanup_close_ int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        err_sys(e, ERR_INTERNAL, "making a socket for %s", address);
        return NULL;
    }
    int on = 1;
    if (!is_unix)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (reuseport && !is_unix)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (a.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, SOMAXCONN) < 0) {
        err_sys(e, errno == EADDRINUSE ? ERR_CONFLICT : ERR_INTERNAL, "listening on %s", address);
        return NULL;
    }
    if (is_unix && chmod(((struct sockaddr_un *)&a)->sun_path, 0660) < 0) {
        err_sys(e, ERR_INTERNAL, "setting the mode of %s", address);
        return NULL;
    }
    struct loop_listener *ln = loop_listen_fd(l, fd_steal(&fd), raw, accepted, data, e);
    if (ln && is_unix)
        strcpy(ln->path, ((struct sockaddr_un *)&a)->sun_path);
    return ln;
}

int loop_listener_fd(struct loop_listener *ln)
{
    return h2o_socket_get_fd(ln->sock);
}

int loop_listener_port(struct loop_listener *ln)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    if (getsockname(loop_listener_fd(ln), (struct sockaddr *)&a, &len) < 0)
        return -1;
    if (a.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)&a)->sin_port);
    return a.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&a)->sin6_port) : -1;
}

void loop_listener_free(struct loop_listener *ln)
{
    if (!ln)
        return;
    loop_timer_stop(ln->loop, &ln->rest);
    h2o_socket_read_stop(ln->sock);
    h2o_socket_close(ln->sock);
    if (ln->path[0])
        unlink(ln->path);
    ln->freed_inside = true;
    if (!ln->accepting)
        free(ln);
}
