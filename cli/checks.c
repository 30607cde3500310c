/* Owns the knowledge of what this platform needs from a Linux machine. The two kinds of KVM are told apart by
 * one MSR (guest-kernel/README.md): 0x4b564d11 reads 0x4d5650 on hosts with the paravirtual, software kind.
 */
#include "cli/checks.h"
#include "cli/checks_net.h"
#include "cli/selftest.h"
#include "lib/base/cleanup.h"

#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/kvm.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>

#define MSR_PVM_PROBE 0x4b564d11u
#define MSR_PVM_FEATURES 0x4b564d12u
#define PVM_FEATURES 0x1ffu /* what the guest kernel was written against */
#define PVM_MAGIC 0x4d5650u
#define MIN_FREE_GIB 5
#define MIN_MEMORY_MIB 2048

static char summary[160];

static struct check_result result(enum check_level level, const char *name, const char *fix, const char *fmt,
                                  ...) __attribute__((format(printf, 4, 5)));

static struct check_result result(enum check_level level, const char *name, const char *fix, const char *fmt,
                                  ...)
{
    struct check_result r = {.level = level, .name = name};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r.finding, sizeof r.finding, fmt, ap);
    va_end(ap);
    if (level != CHECK_OK)
        snprintf(r.fix, sizeof r.fix, "%s", fix);
    return r;
}

/* The processor offers VMX or SVM, so a KVM without the PVM interface is one of hardware. */
static bool cpu_virtualizes(void)
{
    unsigned a, b, c, d;
    bool vmx = __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 5);
    return vmx || (__get_cpuid(0x80000001, &a, &b, &c, &d) && (c & 1u << 2));
}

/* Reads an MSR of a fresh VM's only vCPU, 0 when KVM does not tell it; false when no VM could be made. */
static bool read_msr(int kvm, uint32_t index, uint64_t *value)
{
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry;
    } m = {.head.nmsrs = 1, .entry.index = index};
    _cleanup_close_ int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    _cleanup_close_ int vcpu = vm < 0 ? -1 : ioctl(vm, KVM_CREATE_VCPU, 0);
    *value = vcpu >= 0 && ioctl(vcpu, KVM_GET_MSRS, &m) == 1 ? m.entry.data : 0;
    return vcpu >= 0;
}

static const char *kvm_kind(int kvm)
{
    uint64_t magic;
    if (!read_msr(kvm, MSR_PVM_PROBE, &magic))
        return NULL;
    return magic == PVM_MAGIC ? "pvm" : "hardware";
}

const char *checks_kvm_kind(void)
{
    _cleanup_close_ int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    const char *kind = kvm < 0 ? NULL : kvm_kind(kvm);
    return kind ? kind : "none";
}

static struct check_result check_kvm(void)
{
    _cleanup_close_ int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        return result(CHECK_BAD, "kvm", "load kvm_intel or kvm_amd, or use a machine with /dev/kvm",
                      "/dev/kvm: %s", strerror(errno));
    int version = ioctl(kvm, KVM_GET_API_VERSION, 0);
    const char *kind = kvm_kind(kvm);
    if (version != KVM_API_VERSION || !kind)
        return result(CHECK_BAD, "kvm", "the host's KVM must speak API version 12",
                      "version %d, no VM could be made: %s", version, strerror(errno));
    if (strcmp(kind, "hardware") == 0 && !cpu_virtualizes())
        return result(CHECK_BAD, "kvm", "use a host with VMX or SVM, or one whose KVM has the PVM interface",
                      "of neither kind: no VMX or SVM here, and MSR 0x%x does not tell of a PVM-kind KVM",
                      MSR_PVM_PROBE);
    if (strcmp(kind, "pvm") != 0)
        return result(CHECK_OK, "kvm", "", "%s kind", kind);
    uint64_t bits; /* 0 when it does not tell */
    read_msr(kvm, MSR_PVM_FEATURES, &bits);
    if ((bits & PVM_FEATURES) != PVM_FEATURES)
        return result(CHECK_WARN, "kvm", "look whether the self-test passes; docs/kernel.md, \"Self-test\"",
                      "pvm kind, but its interface has changed: features 0x%llx, known are 0x%x",
                      (unsigned long long)bits, PVM_FEATURES);
    return result(CHECK_OK, "kvm", "", "pvm kind, interface features 0x%llx", (unsigned long long)bits);
}

struct check_result checks_selftest(const char *kernel, const char *tools)
{
    struct err e = {0};

    if (!kernel || !tools || access(kernel, R_OK) < 0 || access(tools, R_OK) < 0)
        return result(CHECK_WARN, "guest", "./cube up builds it, or guest/kernel/build.sh",
                      "no self-test: there is no guest kernel yet");
    long ms = selftest_run(kernel, tools, &e);
    if (ms < 0)
        return result(CHECK_BAD, "guest", e.remedy, "self-test: %s", e.msg);
    return result(CHECK_OK, "guest", "",
                  "self-test: boots, user mode is interrupted and kept out of the kernel (%ld ms)", ms);
}

static struct check_result check_root(void)
{
    if (geteuid() == 0)
        return result(CHECK_OK, "root", "", "yes; only the jailer keeps it");
    return result(CHECK_BAD, "root", "run with sudo", "uid %u", geteuid());
}

static struct check_result check_tun(void)
{
    if (access("/dev/net/tun", R_OK | W_OK) == 0)
        return result(CHECK_OK, "tun", "", "/dev/net/tun");
    return result(CHECK_BAD, "tun", "modprobe tun", "/dev/net/tun: %s", strerror(errno));
}

/* What cube-jailer does for each VM, in a child. A chroot and user.max_user_namespaces=0 both forbid it. */
static struct check_result check_namespaces(void)
{
    const char *fix = "sysctl user.max_user_namespaces above 0; not inside a chroot";
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                      CLONE_NEWUTS) < 0
                  ? errno & 0x7f
                  : 0);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
        return result(CHECK_BAD, "namespaces", fix, "could not be tried: %s", strerror(errno));
    if (WEXITSTATUS(status) != 0)
        return result(CHECK_BAD, "namespaces", fix, "a jail cannot be made: %s",
                      strerror(WEXITSTATUS(status)));
    return result(CHECK_OK, "namespaces", "", "user, mount, pid, net, ipc, uts");
}

static struct check_result check_cgroup(void)
{
    _cleanup_fclose_ FILE *f = fopen("/sys/fs/cgroup/cgroup.controllers", "re");
    char line[256] = "";
    if (f && fgets(line, sizeof line, f) && strstr(line, "memory") && strstr(line, "cpu"))
        return result(CHECK_OK, "cgroup", "", "v2");
    if (access("/sys/fs/cgroup/memory", F_OK) == 0 && access("/sys/fs/cgroup/cpu", F_OK) == 0)
        return result(CHECK_OK, "cgroup", "", "v1 (cpu, memory%s)",
                      access("/sys/fs/cgroup/pids", F_OK) == 0 ? ", pids" : "");
    return result(CHECK_WARN, "cgroup", "mount cgroup2 with the cpu, memory and pids controllers",
                  "no cpu and memory controllers: VMs run without limits of the host's");
}

/* Asks the file system itself: tries to clone a small file in the state directory. */
static struct check_result check_reflink(const struct settings *s)
{
    char a[256], b[256];
    snprintf(a, sizeof a, "%s/.probe-a", s->state_dir);
    snprintf(b, sizeof b, "%s/.probe-b", s->state_dir);
    _cleanup_close_ int from = open(a, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    _cleanup_close_ int to = open(b, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool can = from >= 0 && to >= 0 && write(from, "x", 1) == 1 && ioctl(to, FICLONE, from) == 0;
    unlink(a);
    unlink(b);
    if (can)
        return result(CHECK_OK, "reflink", "", "%s clones files", s->state_dir);
    return result(CHECK_WARN, "reflink", "put the state directory on XFS (reflink=1) or btrfs", "%s",
                  from < 0 ? "the state directory does not exist yet"
                           : "no; layers are copied sparsely instead");
}

static struct check_result check_disk(const struct settings *s)
{
    struct statvfs v;
    const char *dir = access(s->state_dir, F_OK) == 0 ? s->state_dir : "/";
    if (statvfs(dir, &v) < 0)
        return result(CHECK_BAD, "disk", "choose another --state", "%s: %s", dir, strerror(errno));
    double gib = (double)v.f_bavail * (double)v.f_frsize / (1024.0 * 1024 * 1024);
    return result(gib < MIN_FREE_GIB ? CHECK_WARN : CHECK_OK, "disk", "templates and kernels want 5 GiB",
                  "%.1f GiB free at %s", gib, dir);
}

static struct check_result check_memory(void)
{
    struct sysinfo si;
    sysinfo(&si);
    unsigned long mib = (unsigned long)((unsigned long long)si.totalram * si.mem_unit >> 20);
    return result(mib < MIN_MEMORY_MIB ? CHECK_WARN : CHECK_OK, "memory", "2 GiB or more",
                  "%lu MiB, %ld cores", mib, sysconf(_SC_NPROCESSORS_ONLN));
}

static bool port_taken(int port)
{
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno == EADDRINUSE;
}

static struct check_result check_ports(const struct settings *s)
{
    static const int offsets[] = {0, 10, 20, 21, 30, 40, 41, 100, 110, 120, 130, 140, 141, 144};
    char lock[256];
    snprintf(lock, sizeof lock, "%s/pid/cube-api", s->run_dir);
    if (access(lock, F_OK) == 0)
        return result(CHECK_OK, "ports", "", "in use by this cluster");
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        if (port_taken(s->port_base + offsets[i]))
            return result(CHECK_BAD, "ports", "end the other program, or choose --port-base N",
                          "127.0.0.1:%d is taken", s->port_base + offsets[i]);
    return result(CHECK_OK, "ports", "", "%d… are free", s->port_base);
}

static struct check_result check_redis(const struct settings *s)
{
    if (s->redis[0])
        return result(CHECK_OK, "redis", "", "%s (given)", s->redis);
    if (access("/usr/bin/redis-server", X_OK) == 0)
        return result(CHECK_OK, "redis", "", "redis-server is installed");
    return result(CHECK_BAD, "redis", "apt-get install redis-server, or --redis ADDRESS", "no redis-server");
}

int checks_run(const struct settings *s, struct check_result out[CHECKS_MAX])
{
    int n = 0;
    out[n++] = check_root();
    out[n++] = check_kvm();
    out[n++] = check_tun();
    out[n++] = check_namespaces();
    out[n++] = check_cgroup();
    check_network(&out[n++]);
    out[n++] = check_memory();
    out[n++] = check_disk(s);
    out[n++] = check_reflink(s);
    out[n++] = check_redis(s);
    out[n++] = check_ports(s);
    return n;
}

int checks_required(const struct settings *s, struct err *e)
{
    struct check_result r[CHECKS_MAX];
    int n = checks_run(s, r);
    size_t used = 0;
    summary[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (r[i].level == CHECK_BAD) {
            err_set(e, ERR_UNAVAILABLE, "%s: %s", r[i].name, r[i].finding);
            return err_remedy(e, "%s", r[i].fix);
        }
        if (strcmp(r[i].name, "kvm") == 0 || strcmp(r[i].name, "cgroup") == 0 ||
            strcmp(r[i].name, "memory") == 0)
            used += (size_t)snprintf(summary + used, sizeof summary - used, "%s%s %s", used ? "; " : "",
                                     r[i].name, r[i].finding);
    }
    return 0;
}

const char *checks_summary(void)
{
    return summary;
}
