/* rtnetlink, as much of it as one interface needs. Invariant: each request waits for the kernel's
 * acknowledgement, so success means that the setting is in force. */
#include "guest/init/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

struct request {
    struct nlmsghdr head;
    union {
        struct ifinfomsg link;
        struct ifaddrmsg addr;
        struct rtmsg route;
    };
    char attributes[128];
};

static void attribute(struct request *r, unsigned short type, const void *data, size_t n)
{
    struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->head.nlmsg_len));
    a->rta_type = type;
    a->rta_len = (unsigned short)RTA_LENGTH(n);
    memcpy(RTA_DATA(a), data, n);
    r->head.nlmsg_len = NLMSG_ALIGN(r->head.nlmsg_len) + RTA_ALIGN(a->rta_len);
}

/* Sends and waits for the acknowledgement. Returns 0 or -1 with errno. */
static int transact(struct request *r)
{
    struct {
        struct nlmsghdr head;
        struct nlmsgerr err;
        char rest[512];
    } answer;
    _cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    r->head.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
    if (fd < 0 || send(fd, r, r->head.nlmsg_len, 0) < 0)
        return -1;
    ssize_t n = recv(fd, &answer, sizeof(answer), 0);
    if (n < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) || answer.head.nlmsg_type != NLMSG_ERROR) {
        errno = EPROTO;
        return -1;
    }
    if (!answer.err.error)
        return 0;
    errno = -answer.err.error;
    return -1;
}

static int link_up(int index, uint32_t mtu)
{
    struct request r = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)), .nlmsg_type = RTM_NEWLINK}};
    r.link = (struct ifinfomsg){.ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    if (mtu)
        attribute(&r, IFLA_MTU, &mtu, sizeof(mtu));
    return transact(&r);
}

static int address_set(int index, struct in_addr address, unsigned char prefix)
{
    struct request r = {.head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifaddrmsg)),
                                 .nlmsg_type = RTM_NEWADDR,
                                 .nlmsg_flags = NLM_F_CREATE | NLM_F_REPLACE}};
    r.addr = (struct ifaddrmsg){.ifa_family = AF_INET, .ifa_prefixlen = prefix, .ifa_index = (unsigned)index};
    attribute(&r, IFA_LOCAL, &address, sizeof(address));
    attribute(&r, IFA_ADDRESS, &address, sizeof(address));
    return transact(&r);
}

static int route_set(int index, struct in_addr gateway)
{
    struct request r = {.head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg)),
                                 .nlmsg_type = RTM_NEWROUTE,
                                 .nlmsg_flags = NLM_F_CREATE | NLM_F_REPLACE}};
    r.route = (struct rtmsg){.rtm_family = AF_INET,
                             .rtm_table = RT_TABLE_MAIN,
                             .rtm_protocol = RTPROT_BOOT,
                             .rtm_scope = RT_SCOPE_UNIVERSE,
                             .rtm_type = RTN_UNICAST};
    attribute(&r, RTA_GATEWAY, &gateway, sizeof(gateway));
    attribute(&r, RTA_OIF, &index, sizeof(index));
    return transact(&r);
}

int net_loopback_up(struct err *e)
{
    return link_up((int)if_nametoindex("lo"), 0) < 0 ? err_sys(e, ERR_INTERNAL, "bringing lo up") : 0;
}

int net_configure(const char *address, const char *gateway, uint32_t mtu, struct err *e)
{
    char ip[32];
    struct in_addr a, g;
    const char *slash = strchr(address, '/');
    long prefix = slash ? strtol(slash + 1, NULL, 10) : 32;
    snprintf(ip, sizeof(ip), "%.*s", (int)(slash ? slash - address : (long)strlen(address)), address);
    if (inet_pton(AF_INET, ip, &a) != 1 || prefix < 0 || prefix > 32 ||
        (*gateway && inet_pton(AF_INET, gateway, &g) != 1))
        return err_set(e, ERR_INVALID, "network address '%s' or gateway '%s' is malformed", address, gateway);
    int index = (int)if_nametoindex("eth0");
    if (!index)
        return err_sys(e, ERR_UNSUPPORTED, "looking for eth0");
    if (link_up(index, mtu) < 0)
        return err_sys(e, ERR_INTERNAL, "bringing eth0 up");
    if (address_set(index, a, (unsigned char)prefix) < 0)
        return err_sys(e, ERR_INTERNAL, "giving eth0 the address %s", address);
    if (*gateway && route_set(index, g) < 0)
        return err_sys(e, ERR_INTERNAL, "setting the default route to %s", gateway);
    return 0;
}
