/* What a socket address says of where it leads, without asking the host. */
#include "lib/base/sockaddr.h"

#include <arpa/inet.h>
#include <netinet/in.h>

bool sockaddr_is_local(const struct sockaddr *a)
{
    if (a->sa_family == AF_UNIX)
        return true;
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (a->sa_family != AF_INET6)
        return false;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == IN_LOOPBACKNET);
}
