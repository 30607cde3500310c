/* Owns the look at what the sandbox network (CubeVS) needs of a host. Everything is tried in a network
 * namespace of a child, so that the host's own interfaces are not touched. */
#include "cli/checks_net.h"
#include "lib/base/cleanup.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define KERNEL_MAJOR 6
#define KERNEL_MINOR 1

struct step {
    const char *name, *fix;
    bool (*works)(void);
};

static long bpf(int command, union bpf_attr *a)
{
    return syscall(SYS_bpf, command, a, sizeof *a);
}

static bool has_kernel(void)
{
    struct utsname u;
    unsigned major, minor;
    return uname(&u) == 0 && sscanf(u.release, "%u.%u", &major, &minor) == 2 &&
           (major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR));
}

static bool has_btf(void)
{
    return access("/sys/kernel/btf/vmlinux", R_OK) == 0;
}

static bool has_bpffs(void)
{
    char line[128];
    _cleanup_fclose_ FILE *f = fopen("/proc/filesystems", "re");
    while (f && fgets(line, sizeof line, f))
        if (strcmp(line, "nodev\tbpf\n") == 0)
            return true;
    return false;
}

static bool has_program(void)
{
    static const struct bpf_insn program[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K},
                                              {.code = BPF_JMP | BPF_EXIT}};
    union bpf_attr a = {.prog_type = BPF_PROG_TYPE_SCHED_CLS,
                        .insns = (uintptr_t)program,
                        .insn_cnt = 2,
                        .license = (uintptr_t) "GPL"};
    _cleanup_close_ int fd = (int)bpf(BPF_PROG_LOAD, &a);
    return fd >= 0;
}

static bool has_map(uint32_t type, uint32_t key, uint32_t value, uint32_t entries, uint32_t flags)
{
    union bpf_attr a = {
        .map_type = type, .key_size = key, .value_size = value, .max_entries = entries, .map_flags = flags};
    _cleanup_close_ int fd = (int)bpf(BPF_MAP_CREATE, &a);
    return fd >= 0;
}

static bool has_maps(void)
{
    return has_map(BPF_MAP_TYPE_LPM_TRIE, 8, 1, 16, BPF_F_NO_PREALLOC) &&
           has_map(BPF_MAP_TYPE_ARRAY, 4, 8, 16, BPF_F_MMAPABLE) &&
           has_map(BPF_MAP_TYPE_RINGBUF, 0, 0, 4096, 0) && has_map(BPF_MAP_TYPE_PERCPU_HASH, 4, 8, 16, 0);
}

struct request {
    struct nlmsghdr h;
    union {
        struct tcmsg t;
        struct ifinfomsg i;
    } m;
    char attributes[64];
};

static struct rtattr *put(struct request *r, unsigned short type, const void *p, size_t n)
{
    struct rtattr *a = (void *)((char *)r + NLMSG_ALIGN(r->h.nlmsg_len));
    *a = (struct rtattr){.rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(n)};
    if (n)
        memcpy(RTA_DATA(a), p, n);
    r->h.nlmsg_len = NLMSG_ALIGN(r->h.nlmsg_len) + RTA_ALIGN(a->rta_len);
    return a;
}

static bool talk(struct request *r)
{
    struct {
        struct nlmsghdr h;
        struct nlmsgerr e;
        char rest[512];
    } answer = {0};
    _cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    r->h.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    return fd >= 0 && send(fd, r, r->h.nlmsg_len, 0) >= 0 && recv(fd, &answer, sizeof answer, 0) > 0 &&
           answer.h.nlmsg_type == NLMSG_ERROR && answer.e.error == 0;
}

static bool has_clsact(void)
{
    struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct tcmsg)), .nlmsg_type = RTM_NEWQDISC}};
    r.m.t =
        (struct tcmsg){.tcm_ifindex = 1, .tcm_handle = TC_H_MAKE(TC_H_CLSACT, 0), .tcm_parent = TC_H_CLSACT};
    put(&r, TCA_KIND, "clsact", 7);
    return talk(&r);
}

static bool has_veth(void)
{
    struct request r = {
        .h = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)), .nlmsg_type = RTM_NEWLINK}};
    struct rtattr *link = put(&r, IFLA_LINKINFO, NULL, 0);
    put(&r, IFLA_INFO_KIND, "veth", 4);
    link->rta_len = (unsigned short)((char *)&r + r.h.nlmsg_len - (char *)link);
    return talk(&r);
}

static const struct step steps[] = {
    {"Linux 6.1", "a newer kernel", has_kernel},
    {"kernel type information", "CONFIG_DEBUG_INFO_BTF", has_btf},
    {"the bpf file system", "CONFIG_BPF_SYSCALL", has_bpffs},
    {"BPF programs on interfaces", "CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF", has_program},
    {"BPF maps (LPM trie, ring buffer, memory-mapped)", "CONFIG_BPF_SYSCALL", has_maps},
    {"the clsact queueing discipline", "CONFIG_NET_SCH_INGRESS (modprobe sch_ingress)", has_clsact},
    {"veth pairs", "CONFIG_VETH (modprobe veth)", has_veth},
};
#define STEPS (sizeof steps / sizeof *steps)

/* One bit per step that does not work; 0x80000000 when the child could not try. */
static unsigned try_steps(void)
{
    unsigned missing = 0x80000000u;
    int p[2];
    if (pipe(p) < 0)
        return missing;
    pid_t pid = fork();
    if (pid == 0) {
        unsigned m = 0;
        for (size_t i = 0; unshare(CLONE_NEWNET) == 0 && i < STEPS; i++)
            m |= steps[i].works() ? 0 : 1u << i;
        _exit(write(p[1], &m, sizeof m) != (ssize_t)sizeof m);
    }
    close(p[1]);
    if (pid > 0 && read(p[0], &missing, sizeof missing) != (ssize_t)sizeof missing)
        missing = 0x80000000u;
    close(p[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return missing;
}

static bool has_uplink(char name[16])
{
    char line[256];
    unsigned long destination, mask;
    _cleanup_fclose_ FILE *f = fopen("/proc/net/route", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%15s %lx %*x %*x %*d %*d %*d %lx", name, &destination, &mask) == 3 &&
            !destination && !mask)
            return true;
    return false;
}

void check_network(struct check_result *out)
{
    char uplink[16];
    *out = (struct check_result){.level = CHECK_WARN, .name = "network"};
    if (geteuid() != 0) {
        snprintf(out->finding, sizeof out->finding, "only root can try it");
        snprintf(out->fix, sizeof out->fix, "run with sudo");
        return;
    }
    unsigned missing = try_steps();
    size_t f = 0, x = 0;
    for (size_t i = 0; i < STEPS; i++) {
        if (!(missing & 1u << i))
            continue;
        f += (size_t)snprintf(out->finding + f, sizeof out->finding - f, "%s%s", f ? ", " : "no ",
                              steps[i].name);
        x += (size_t)snprintf(out->fix + x, sizeof out->fix - x, "%s%s", x ? "; " : "", steps[i].fix);
        if (f >= sizeof out->finding || x >= sizeof out->fix)
            return;
    }
    if (missing & 0x80000000u)
        snprintf(out->finding, sizeof out->finding, "a network namespace cannot be made: %s",
                 strerror(errno));
    else if (missing == 0 && !has_uplink(uplink)) {
        snprintf(out->finding, sizeof out->finding, "no IPv4 default route: sandboxes have no way out");
        snprintf(out->fix, sizeof out->fix, "add one, or name the interface in node.uplink");
    } else if (missing == 0) {
        out->level = CHECK_OK;
        snprintf(out->finding, sizeof out->finding, "everything for sandboxes; uplink %s", uplink);
    }
}
