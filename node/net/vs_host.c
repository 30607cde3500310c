/* Owns the host's side of the sandbox network, by rtnetlink. Invariant: everything is idempotent, so that a
 * restart meets what a former process made. */
#include "node/net/vs_host.h"
#include "lib/base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define PORTS_PATH "/proc/sys/net/ipv4/ip_local_reserved_ports"

struct request {
    struct nlmsghdr h;
    char body[512];
};

static void *put(struct request *r, const void *p, size_t n)
{
    void *at = (char *)r + NLMSG_ALIGN(r->h.nlmsg_len);
    if (p)
        memcpy(at, p, n);
    r->h.nlmsg_len = NLMSG_ALIGN(r->h.nlmsg_len) + (uint32_t)n;
    return at;
}

static struct rtattr *attr(struct request *r, unsigned short type, const void *p, size_t n)
{
    struct rtattr a = {.rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(n)};
    struct rtattr *at = put(r, &a, sizeof a);
    if (n)
        put(r, p, n);
    return at;
}

static void attr_end(struct request *r, struct rtattr *start)
{
    start->rta_len = (unsigned short)((char *)r + r->h.nlmsg_len - (char *)start);
}

/* Sends one request and reads its acknowledgement; `allowed` is an errno that counts as success. */
static int talk(struct request *r, int allowed, const char *what, struct err *e)
{
    struct {
        struct nlmsghdr h;
        struct nlmsgerr err;
        char rest[512];
    } answer;
    _cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    r->h.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
    if (fd < 0 || send(fd, r, r->h.nlmsg_len, 0) < 0 ||
        recv(fd, &answer, sizeof answer, 0) < (ssize_t)(sizeof answer.h + sizeof(int)))
        return err_sys(e, ERR_INTERNAL, "%s", what);
    errno = answer.h.nlmsg_type == NLMSG_ERROR ? -answer.err.error : EPROTO;
    return errno == 0 || errno == allowed ? 0 : err_sys(e, ERR_INTERNAL, "%s", what);
}

static int make_pair(const char *near, const char *far, struct err *e)
{
    struct request r = {.h = {.nlmsg_len = NLMSG_HDRLEN,
                              .nlmsg_type = RTM_NEWLINK,
                              .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC};
    put(&r, &info, sizeof info);
    attr(&r, IFLA_IFNAME, near, strlen(near) + 1);
    struct rtattr *link = attr(&r, IFLA_LINKINFO, NULL, 0);
    attr(&r, IFLA_INFO_KIND, "veth", 4);
    struct rtattr *data = attr(&r, IFLA_INFO_DATA, NULL, 0);
    struct rtattr *peer = attr(&r, VETH_INFO_PEER, NULL, 0);
    put(&r, &info, sizeof info);
    attr(&r, IFLA_IFNAME, far, strlen(far) + 1);
    attr_end(&r, peer);
    attr_end(&r, data);
    attr_end(&r, link);
    return talk(&r, EEXIST, "making the service pair", e);
}

static int add_address(const char *name, uint32_t ip, uint8_t bits, struct err *e)
{
    struct request r = {.h = {.nlmsg_len = NLMSG_HDRLEN,
                              .nlmsg_type = RTM_NEWADDR,
                              .nlmsg_flags = NLM_F_CREATE | NLM_F_REPLACE}};
    struct ifaddrmsg m = {.ifa_family = AF_INET,
                          .ifa_prefixlen = bits,
                          .ifa_scope = RT_SCOPE_LINK,
                          .ifa_index = if_nametoindex(name)};
    put(&r, &m, sizeof m);
    attr(&r, IFA_LOCAL, &ip, 4);
    attr(&r, IFA_ADDRESS, &ip, 4);
    return talk(&r, EEXIST, "giving the service pair its address", e);
}

static int write_sysctl(const char *path, const char *text, struct err *e)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        return err_sys(e, ERR_INTERNAL, "writing %s", path);
    return 0;
}

/* Quiet: no IPv6, no ARP (every address of the net lies behind the far end), no reverse-path check of what
 * CubeVS redirects here. */
static int bring_up(const char *name, struct err *e)
{
    char path[100];
    struct ifreq r = {0};
    _cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", name);
    if (access(path, F_OK) == 0 && write_sysctl(path, "1", e) < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%s/rp_filter", name);
    if (write_sysctl(path, "0", e) < 0)
        return -1;
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    r.ifr_flags = IFF_UP | IFF_NOARP;
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &r) < 0)
        return err_sys(e, ERR_INTERNAL, "bringing %s up", name);
    return 0;
}

int vs_host_pair(const char *near, const char *far, uint32_t ip, uint8_t bits, struct err *e)
{
    if (make_pair(near, far, e) < 0 || bring_up(near, e) < 0 || bring_up(far, e) < 0)
        return -1;
    return add_address(near, ip, bits, e);
}

int vs_host_pair_remove(const char *near, struct err *e)
{
    struct request r = {.h = {.nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = RTM_DELLINK}};
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC, .ifi_index = (int)if_nametoindex(near)};
    if (info.ifi_index == 0)
        return 0;
    put(&r, &info, sizeof info);
    return talk(&r, ENODEV, "removing the service pair", e);
}

int vs_host_reserve_ports(struct vs_ports p, struct err *e)
{
    char have[2048] = "", want[32], text[2100];
    _cleanup_fclose_ FILE *f = fopen(PORTS_PATH, "re");
    if (!f)
        return err_sys(e, ERR_INTERNAL, "reading %s", PORTS_PATH);
    if (fgets(have, sizeof have, f))
        have[strcspn(have, "\n")] = '\0';
    snprintf(want, sizeof want, "%u-%u", p.first, p.last);
    if (strstr(have, want))
        return 0;
    snprintf(text, sizeof text, "%s%s%s", have, have[0] ? "," : "", want);
    return write_sysctl(PORTS_PATH, text, e);
}

int vs_host_uplink(char out[16], struct err *e)
{
    char line[256], name[16];
    unsigned long destination, mask;
    _cleanup_fclose_ FILE *f = fopen("/proc/net/route", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%15s %lx %*x %*x %*d %*d %*d %lx", name, &destination, &mask) != 3 || destination ||
            mask)
            continue;
        strcpy(out, name);
        return 0;
    }
    err_set(e, ERR_UNAVAILABLE, "this host has no IPv4 default route");
    return err_remedy(e, "name the interface in node.uplink, or set it to none");
}

void vs_host_route(const char *uplink, struct vs_route *out)
{
    char line[256], name[16];
    unsigned long destination, gateway, mask;
    unsigned flags, networks = 0, gateways = 0, others = 0;
    *out = (struct vs_route){0};
    _cleanup_fclose_ FILE *f = fopen("/proc/net/route", "re");
    while (f &&
           fgets(line, sizeof line, f)) { /* addresses are printed as the machine reads the network's bytes */
        if (sscanf(line, "%15s %lx %lx %x %*d %*d %*d %lx", name, &destination, &gateway, &flags, &mask) !=
                5 ||
            strcmp(name, uplink) != 0)
            continue;
        if (!destination && !mask && gateway) {
            out->gateway = (uint32_t)gateway;
            gateways++;
        } else if (!gateway) {
            out->net = (uint32_t)destination;
            out->mask = (uint32_t)mask;
            networks++;
        } else {
            others++;
        }
    }
    if (networks != 1 || gateways != 1 || others || (out->gateway & out->mask) != out->net)
        *out = (struct vs_route){0};
}
