/* Owns the choice of ports among nodes that share an uplink. Invariant: what is chosen meets no range that a
 * filter on the uplink claims under another priority; the kernel's list of filters is the only record, so a
 * range is taken exactly as long as somebody's packets are translated with it. */
#include "node/net/vs_ports.h"
#include "lib/base/cleanup.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define PORTS_MIN 256
#define CLAIMS_MAX 64
#define WAIT_MS 2000
#define PROGRAM "from_world"
#define INGRESS TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)

/* The first is what a host with one node uses; the small ones are for more nodes on one host, where each
 * still has 1024 connections to each remote endpoint. */
static const struct vs_ports choices[] = {{40000, 56383}, {57344, 58367}, {58368, 59391},
                                          {59392, 60415}, {60416, 61439}, {61440, 62463},
                                          {62464, 63487}, {63488, 64511}, {64512, 65535}};

struct claim {
    uint32_t priority, handle;
};

int vs_ports_parse(const char *s, struct vs_ports *out, struct err *e)
{
    unsigned first, last;
    int n = 0;
    *out = (struct vs_ports){0};
    if (strcmp(s, "auto") == 0)
        return 0;
    if (sscanf(s, "%5u-%5u%n", &first, &last, &n) != 2 || s[n] || first < 1024 || last > 65535 ||
        last < first || last - first + 1 < PORTS_MIN)
        return err_set(e, ERR_INVALID, "'%s' is no range of ports (\"40000-56383\": above 1023, at least %d)",
                       s, PORTS_MIN);
    *out = (struct vs_ports){(uint16_t)first, (uint16_t)last};
    return 0;
}

uint32_t vs_ports_handle(struct vs_ports p)
{
    return (uint32_t)p.first << 16 | p.last;
}

static struct vs_ports ports_of(uint32_t handle)
{
    return (struct vs_ports){(uint16_t)(handle >> 16), (uint16_t)handle};
}

static bool meet(struct vs_ports a, struct vs_ports b)
{
    return a.first <= b.last && b.first <= a.last;
}

/* Whether a dumped filter is a node's: kind bpf, with the name of our program. */
static bool is_ours(struct rtattr *a, int len)
{
    bool bpf = false, named = false;
    for (; RTA_OK(a, len); a = RTA_NEXT(a, len)) {
        if (a->rta_type == TCA_KIND)
            bpf = strncmp(RTA_DATA(a), "bpf", RTA_PAYLOAD(a)) == 0;
        if (a->rta_type != TCA_OPTIONS)
            continue;
        int inner = (int)RTA_PAYLOAD(a);
        for (struct rtattr *o = RTA_DATA(a); RTA_OK(o, inner); o = RTA_NEXT(o, inner))
            if ((o->rta_type & NLA_TYPE_MASK) == TCA_BPF_NAME)
                named = strncmp(RTA_DATA(o), PROGRAM, sizeof PROGRAM - 1) == 0;
    }
    return bpf && named;
}

/* Every node's filter on the uplink's ingress. An uplink without clsact has none. */
static int list_claims(unsigned uplink, struct claim out[CLAIMS_MAX], size_t *n, struct err *e)
{
    struct {
        struct nlmsghdr h;
        struct tcmsg t;
    } ask = {.h = {.nlmsg_len = sizeof ask,
                   .nlmsg_type = RTM_GETTFILTER,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
             .t = {.tcm_family = AF_UNSPEC, .tcm_ifindex = (int)uplink, .tcm_parent = INGRESS}};
    _cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    *n = 0;
    if (fd < 0 || send(fd, &ask, sizeof ask, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "listing the filters of the uplink");
    for (;;) {
        union {
            struct nlmsghdr h;
            char bytes[32768];
        } in;
        ssize_t got = recv(fd, &in, sizeof in, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_sys(e, ERR_INTERNAL, "listing the filters of the uplink");
        int len = (int)got;
        for (struct nlmsghdr *h = &in.h; NLMSG_OK(h, len); h = NLMSG_NEXT(h, len)) {
            if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
                return 0;
            struct tcmsg *t = NLMSG_DATA(h);
            if (h->nlmsg_type != RTM_NEWTFILTER || h->nlmsg_len < NLMSG_LENGTH(sizeof *t) || !t->tcm_handle)
                continue;
            struct rtattr *first = (void *)((char *)t + NLMSG_ALIGN(sizeof *t));
            if (is_ours(first, (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof *t))) && *n < CLAIMS_MAX)
                out[(*n)++] = (struct claim){t->tcm_info >> 16, t->tcm_handle};
        }
    }
}

/* An abstract socket of this network namespace is the lock: it dies with its holder. Another user of the host
 * could hold it for ever, so after a while we go on without: it guards only two starts in the same moment. */
static int hold_choice(unsigned uplink)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "cube-net-ports-%u", uplink);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (int ms = 0; fd >= 0; ms += 20) {
        if (bind(fd, (struct sockaddr *)&a,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
            return fd;
        if (errno != EADDRINUSE || ms >= WAIT_MS)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static const struct claim *other_claim(const struct claim *c, size_t n, uint32_t priority, struct vs_ports p)
{
    for (size_t i = 0; i < n; i++)
        if (c[i].priority != priority && meet(ports_of(c[i].handle), p))
            return &c[i];
    return NULL;
}

static int choose(unsigned uplink, uint32_t priority, struct vs_ports wanted, struct vs_ports *out,
                  struct err *e)
{
    struct claim c[CLAIMS_MAX];
    const struct claim *other = NULL;
    size_t n;
    if (list_claims(uplink, c, &n, e) < 0)
        return -1;
    *out = wanted;
    if (wanted.first) {
        if (!(other = other_claim(c, n, priority, wanted)))
            return 0;
    } else {
        for (size_t i = 0; i < n; i++)
            if (c[i].priority == priority && c[i].handle >> 16) {
                *out = ports_of(c[i].handle); /* its sessions go on */
                return 0;
            }
        for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
            if (!(other = other_claim(c, n, priority, choices[i]))) {
                *out = choices[i];
                return 0;
            }
    }
    struct vs_ports taken = ports_of(other->handle);
    err_set(e, ERR_CONFLICT,
            "node.net_ports: another node on this host translates with the uplink's ports %u-%u%s",
            taken.first, taken.last, wanted.first ? "" : ", and none of the usual ranges is free");
    return err_remedy(e,
                      "give each node of the host its own range, or end the other: "
                      "`tc filter show dev UPLINK ingress` shows its filter with priority %u",
                      other->priority);
}

int vs_ports_choose(unsigned uplink, uint32_t priority, struct vs_ports wanted, struct vs_ports *out,
                    int *held, struct err *e)
{
    int fd = hold_choice(uplink);
    int rc = choose(uplink, priority, wanted, out, e);
    if (held && rc == 0)
        *held = fd;
    else if (fd >= 0)
        close(fd);
    return rc;
}

int vs_ports_release(unsigned uplink, uint32_t priority, uint32_t keep, struct err *e)
{
    struct claim c[CLAIMS_MAX];
    size_t n;
    if (list_claims(uplink, c, &n, e) < 0)
        return -1;
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)uplink, .attach_point = BPF_TC_INGRESS);
    for (size_t i = 0; i < n; i++) {
        LIBBPF_OPTS(bpf_tc_opts, opts, .handle = c[i].handle, .priority = priority);
        if (c[i].priority != priority || c[i].handle == keep)
            continue;
        errno = -bpf_tc_detach(&hook, &opts);
        if (errno && errno != ENOENT)
            return err_sys(e, ERR_INTERNAL, "removing an old filter of the uplink");
    }
    return 0;
}
