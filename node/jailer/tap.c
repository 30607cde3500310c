/* TAP devices. A TAP lives as long as somebody has its descriptor open: the node's pool, then the VM. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define TAP_MTU 1450 /* internal.md §8 */

/* The host itself must not speak on it: no IPv6 autoconfiguration. */
static void quiet(const char *name)
{
    char path[100];

    snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", name);
    textfile_write(path, "1"); /* no such file when the host has no IPv6 */
}

static int link_up(const char *name, uint32_t *ifindex, struct err *e)
{
    struct ifreq r = {.ifr_flags = 0};
    _cleanup_close_ int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    strcpy(r.ifr_name, name);
    if (s < 0 || ioctl(s, SIOCGIFINDEX, &r) < 0)
        return err_sys(e, ERR_INTERNAL, "find TAP %s", name);
    *ifindex = (uint32_t)r.ifr_ifindex;
    r.ifr_mtu = TAP_MTU;
    if (ioctl(s, SIOCSIFMTU, &r) < 0)
        return err_sys(e, ERR_INTERNAL, "set the MTU of TAP %s", name);
    r.ifr_flags = IFF_UP | IFF_NOARP;
    if (ioctl(s, SIOCSIFFLAGS, &r) < 0)
        return err_sys(e, ERR_INTERNAL, "bring TAP %s up", name);
    return 0;
}

int tap_make(const char *name, uint32_t *ifindex, struct err *e)
{
    _cleanup_close_ int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};

    if (fd < 0)
        return err_sys(e, ERR_UNSUPPORTED, "open /dev/net/tun");
    strcpy(r.ifr_name, name);
    if (ioctl(fd, TUNSETIFF, &r) < 0)
        return err_sys(e, errno == EBUSY ? ERR_CONFLICT : ERR_INTERNAL, "make TAP %s", name);
    quiet(name);
    if (link_up(name, ifindex, e) < 0)
        return -1;
    return fd_steal(&fd);
}

int tap_drop(const char *name, struct err *e)
{
    struct {
        struct nlmsghdr h;
        struct ifinfomsg i;
    } q = {.h = {.nlmsg_len = sizeof q,
                 .nlmsg_type = RTM_DELLINK,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
                 .nlmsg_seq = 1}};
    struct {
        struct nlmsghdr h;
        struct nlmsgerr err;
        char rest[256];
    } a;
    _cleanup_close_ int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    q.i.ifi_index = (int)if_nametoindex(name);
    if (q.i.ifi_index == 0)
        return 0;
    if (s < 0 || send(s, &q, sizeof q, 0) < 0 ||
        recv(s, &a, sizeof a, 0) < (ssize_t)(sizeof a.h + sizeof a.err))
        return err_sys(e, ERR_INTERNAL, "remove TAP %s", name);
    if (a.h.nlmsg_type == NLMSG_ERROR && a.err.error && a.err.error != -ENODEV) {
        errno = -a.err.error;
        return err_sys(e, ERR_INTERNAL, "remove TAP %s", name);
    }
    return 0;
}
