/* Opens listening sockets from their textual addresses. */
#include "lib/dp/io.h"

#include "lib/base/cleanup.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int address_parse(const char *address, struct sockaddr_storage *out, socklen_t *len, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        un->sun_family = AF_UNIX;
        if (strlen(address + 5) >= sizeof un->sun_path)
            return err_set(e, ERR_INVALID, "address %s: the path is too long", address);
        strcpy(un->sun_path, address + 5);
        *len = sizeof *un;
        return 0;
    }
    char host[64];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host)
        return err_set(e, ERR_INVALID, "address %s: expected HOST:PORT", address);
    size_t n = (size_t)(colon - address);
    const char *p = address;
    if (n >= 2 && p[0] == '[' && p[n - 1] == ']') {
        p++;
        n -= 2;
    }
    memcpy(host, p, n);
    host[n] = 0;
    char *end;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end || colon[1] == 0 || port > 65535)
        return err_set(e, ERR_INVALID, "address %s: bad port", address);
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *len = sizeof *v4;
        return 0;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *len = sizeof *v6;
        return 0;
    }
    return err_set(e, ERR_INVALID, "address %s: the host must be a number", address);
}

int dp_listen(const char *address, bool reuseport, struct err *e)
{
    struct sockaddr_storage sa;
    socklen_t len = 0;
    if (address_parse(address, &sa, &len, e) != 0)
        return -1;
    _cleanup_close_ int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "opening a socket for %s", address);
    int one = 1;
    if (sa.ss_family == AF_UNIX) {
        unlink(((struct sockaddr_un *)&sa)->sun_path);
    } else {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* inherited by accepted sockets */
        dp_io_limit_sending(fd);
        dp_io_unpaced(fd, (struct sockaddr *)&sa);
        if (reuseport && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0)
            return err_sys(e, ERR_INTERNAL, "sharing %s between threads", address);
    }
    if (bind(fd, (struct sockaddr *)&sa, len) != 0)
        return err_sys(e, ERR_UNAVAILABLE, "binding %s", address);
    if (listen(fd, 4096) != 0)
        return err_sys(e, ERR_UNAVAILABLE, "listening on %s", address);
    return fd_steal(&fd);
}
