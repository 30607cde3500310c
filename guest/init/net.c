/* rtnetlink, as much of it as one interface needs. Invariant: each request waits for the kernel's
 * acknowledgement, so success means that the setting is in force. */
#include "guest/init/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdbool.h>
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

struct plan {
    struct in_addr address, gateway;
    unsigned char prefix;
    uint32_t mtu;
    int index;
};

static int plan_make(const char *address, const char *gateway, uint32_t mtu, struct plan *p, struct err *e)
{
    char ip[32];
    const char *slash = strchr(address, '/');
    long prefix = slash ? strtol(slash + 1, NULL, 10) : 32;
    *p = (struct plan){.mtu = mtu};
    snprintf(ip, sizeof(ip), "%.*s", (int)(slash ? slash - address : (long)strlen(address)), address);
    if (inet_pton(AF_INET, ip, &p->address) != 1 || prefix < 0 || prefix > 32 ||
        (*gateway && inet_pton(AF_INET, gateway, &p->gateway) != 1))
        return err_set(e, ERR_INVALID, "network address '%s' or gateway '%s' is malformed", address, gateway);
    p->prefix = (unsigned char)prefix;
    p->index = (int)if_nametoindex("eth0");
    return p->index ? 0 : err_sys(e, ERR_UNSUPPORTED, "looking for eth0");
}

/* The kernel tells this socket of each change to links, addresses and routes: while it has told nothing since
 * we set them, what we set is in force, and no clone has to set it again. */
static int changes = -1;

static void changes_watch(void)
{
    struct sockaddr_nl a = {.nl_family = AF_NETLINK,
                            .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE};
    if (changes >= 0)
        return;
    changes = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (changes >= 0 && bind(changes, (struct sockaddr *)&a, sizeof(a)) < 0) {
        close(changes);
        changes = -1;
    }
}

/* A link reports its carrier as well; that is no change of what we set. */
static bool link_as_set(const struct nlmsghdr *h, uint32_t mtu)
{
    const struct ifinfomsg *info = NLMSG_DATA(h);
    int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*info));
    if (h->nlmsg_type != RTM_NEWLINK || left < 0 || !(info->ifi_flags & IFF_UP))
        return false;
    for (const struct rtattr *a = IFLA_RTA(info); RTA_OK(a, left); a = RTA_NEXT(a, left))
        if (a->rta_type == IFLA_MTU && RTA_PAYLOAD(a) == 4 && memcmp(RTA_DATA(a), &mtu, 4) != 0)
            return false;
    return true;
}

/* Whether something changed since the last call; an overflow counts as a change. */
static bool changed(uint32_t mtu)
{
    static union {
        struct nlmsghdr head;
        char bytes[8192];
    } m;
    bool any = changes < 0;
    while (changes >= 0) {
        ssize_t n = recv(changes, &m, sizeof(m), MSG_DONTWAIT);
        if (n < 0 && errno != ENOBUFS)
            break;
        any |= n < 0;
        for (const struct nlmsghdr *h = &m.head; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n))
            any |= !link_as_set(h, mtu);
    }
    return any;
}

int net_configure(const char *address, const char *gateway, uint32_t mtu, struct err *e)
{
    static char in_force[96];
    char wanted[96];
    struct plan p;
    snprintf(wanted, sizeof(wanted), "%.32s %.32s %u", address, gateway, mtu);
    if (!changed(mtu) && strcmp(wanted, in_force) == 0)
        return 0;
    in_force[0] = 0;
    if (plan_make(address, gateway, mtu, &p, e) < 0)
        return -1;
    changes_watch();
    if (link_up(p.index, mtu) < 0)
        return err_sys(e, ERR_INTERNAL, "bringing eth0 up");
    if (address_set(p.index, p.address, p.prefix) < 0)
        return err_sys(e, ERR_INTERNAL, "giving eth0 the address %s", address);
    if (*gateway && route_set(p.index, p.gateway) < 0)
        return err_sys(e, ERR_INTERNAL, "setting the default route to %s", gateway);
    changed(mtu); /* what we did ourselves */
    memcpy(in_force, wanted, sizeof(in_force));
    return 0;
}
