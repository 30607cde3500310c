/* The sockets that cube-envd serves. Invariant: they are open from boot on and never closed, so no program of
 * the sandbox can take the port while envd is being restarted, and clients of that moment wait instead of
 * being refused. */
#include "guest/init/listeners.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#define ENVD_PORT 49983
#define BACKLOG 1024

static int listen_on(const void *addr, socklen_t n)
{
    int family = ((const struct sockaddr *)addr)->sa_family, one = 1;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, addr, n) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    close(fd);
    return -1;
}

int listeners_open(int out[LISTENERS_MAX], struct err *e)
{
    struct sockaddr_vm vm = {.svm_family = AF_VSOCK, .svm_port = ENVD_PORT, .svm_cid = VMADDR_CID_ANY};
    struct sockaddr_in a4 = {
        .sin_family = AF_INET, .sin_port = htons(ENVD_PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 a6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(ENVD_PORT), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int n = 0;
    if ((out[n++] = listen_on(&vm, sizeof(vm))) < 0)
        return err_sys(e, ERR_INTERNAL, "listening on vsock port %d", ENVD_PORT);
    if ((out[n++] = listen_on(&a4, sizeof(a4))) < 0)
        return err_sys(e, ERR_INTERNAL, "listening on 127.0.0.1:%d", ENVD_PORT);
    if ((out[n] = listen_on(&a6, sizeof(a6))) >= 0) /* a kernel without IPv6 has no ::1 */
        n++;
    return n;
}
