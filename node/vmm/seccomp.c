/* System calls of each kind of thread. A call outside its list kills the process: a guest that took over a
 * thread gets no further than what that thread does anyway. Pointers cannot be checked by seccomp;
 * descriptors and commands are. */
#include "node/vmm/vm.h"

#include "lib/base/log.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool enabled;

void jail_enable(bool on)
{
    enabled = on;
}

#define KVM_TYPE 0xae00u /* _IOC_TYPE of KVM's calls, in place */
#define TYPE_MASK 0xff00u
#define TUN_TYPE 0x5400u          /* 'T': the offloads of the TAP */
#define PAGEMAP_SCAN_TYPE 0x6600u /* 'f' */

/* What any thread of a static glibc program needs: locks, memory, ends, signals. */
static const int common[] = {
    SCMP_SYS(futex),           SCMP_SYS(read),           SCMP_SYS(write),      SCMP_SYS(close),
    SCMP_SYS(rt_sigreturn),    SCMP_SYS(exit),           SCMP_SYS(exit_group), SCMP_SYS(clock_gettime),
    SCMP_SYS(getpid),          SCMP_SYS(gettid),         SCMP_SYS(brk),        SCMP_SYS(munmap),
    SCMP_SYS(restart_syscall), SCMP_SYS(rt_sigprocmask), SCMP_SYS(sched_yield)};

static const int control_calls[] = {SCMP_SYS(poll),       SCMP_SYS(fcntl),           SCMP_SYS(accept4),
                                    SCMP_SYS(recvmsg),    SCMP_SYS(sendto),          SCMP_SYS(sendmsg),
                                    SCMP_SYS(pread64),    SCMP_SYS(pwrite64),        SCMP_SYS(pwritev),
                                    SCMP_SYS(preadv),     SCMP_SYS(lseek),           SCMP_SYS(fstat),
                                    SCMP_SYS(newfstatat), SCMP_SYS(ftruncate),       SCMP_SYS(fallocate),
                                    SCMP_SYS(fdatasync),  SCMP_SYS(sync_file_range), SCMP_SYS(madvise),
                                    SCMP_SYS(getrusage),  SCMP_SYS(epoll_ctl),       SCMP_SYS(getrandom),
                                    SCMP_SYS(tgkill),     SCMP_SYS(clock_nanosleep), SCMP_SYS(writev)};

static const int vcpu_calls[] = {SCMP_SYS(epoll_ctl)}; /* a driver's reset stops the listening sockets */

static const int io_calls[] = {SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait),     SCMP_SYS(epoll_ctl),
                               SCMP_SYS(accept4),    SCMP_SYS(sendto),          SCMP_SYS(sendmsg),
                               SCMP_SYS(recvfrom),   SCMP_SYS(readv),           SCMP_SYS(writev),
                               SCMP_SYS(shutdown),   SCMP_SYS(timerfd_settime), SCMP_SYS(getrandom),
                               SCMP_SYS(madvise)};

static const int disk_calls[] = {SCMP_SYS(epoll_wait),     SCMP_SYS(epoll_pwait), SCMP_SYS(preadv),
                                 SCMP_SYS(pwritev),        SCMP_SYS(fallocate),   SCMP_SYS(fdatasync),
                                 SCMP_SYS(timerfd_settime)};

static void allow(scmp_filter_ctx f, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[i], 0) < 0) {
            log_error("seccomp: a rule was refused");
            _exit(VM_END_ERROR);
        }
}

static scmp_filter_ctx filter_start(const int *calls, size_t n)
{
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_KILL_PROCESS);

    if (!f) {
        log_error("seccomp: out of memory");
        _exit(VM_END_ERROR);
    }
    allow(f, common, sizeof common / sizeof common[0]);
    allow(f, calls, n);
    /* Plain memory only: no file is ever mapped executable. */
    seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    return f;
}

static void filter_load(scmp_filter_ctx f)
{
    if (seccomp_load(f) < 0) {
        log_error("seccomp: the filter was refused");
        _exit(VM_END_ERROR);
    }
    seccomp_release(f);
}

/* For a guest of another size than the process was prepared for: new vCPU threads, which load filters of
 * their own. */
static const int starting_calls[] = {SCMP_SYS(clone), SCMP_SYS(clone3), SCMP_SYS(set_robust_list),
                                     SCMP_SYS(rseq),  SCMP_SYS(prctl),  SCMP_SYS(seccomp)};

/* Compiling and loading the list costs half a millisecond: done while nobody waits. */
void jail_control_start(void)
{
    if (!enabled)
        return;
    scmp_filter_ctx f = filter_start(control_calls, sizeof control_calls / sizeof control_calls[0]);
    allow(f, starting_calls, sizeof starting_calls / sizeof starting_calls[0]);
    seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, TYPE_MASK, KVM_TYPE));
    seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                     SCMP_A1(SCMP_CMP_MASKED_EQ, TYPE_MASK, PAGEMAP_SCAN_TYPE));
    seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, TYPE_MASK, TUN_TYPE));
    filter_load(f);
}

#define REFUSE(call)                                                                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

/* What the list above has too much once a guest is inside; short, because a restore waits for it. */
void jail_control_thread(void)
{
    static struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                        REFUSE(SYS_clone),
                                        REFUSE(SYS_clone3),
                                        REFUSE(SYS_prctl),
                                        REFUSE(SYS_seccomp),
                                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    static const struct sock_fprog program = {sizeof code / sizeof code[0], code};
    static bool done;

    if (!enabled || done)
        return;
    done = true;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0) {
        log_error("seccomp: the control filter was refused");
        _exit(VM_END_ERROR);
    }
}

void jail_vcpu_thread(void)
{
    if (!enabled)
        return;
    scmp_filter_ctx f = filter_start(vcpu_calls, sizeof vcpu_calls / sizeof vcpu_calls[0]);
    static const unsigned long kvm[] = {KVM_RUN,       KVM_GET_REGS, KVM_SET_REGS,     KVM_GET_SREGS,
                                        KVM_SET_SREGS, KVM_SET_MSRS, KVM_SET_MP_STATE, KVM_SET_GSI_ROUTING};
    for (unsigned i = 0; i < sizeof kvm / sizeof kvm[0]; i++)
        seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, kvm[i]));
    filter_load(f);
}

void jail_io_thread(void)
{
    if (!enabled)
        return;
    filter_load(filter_start(io_calls, sizeof io_calls / sizeof io_calls[0]));
}

void jail_disk_thread(void)
{
    if (!enabled)
        return;
    filter_load(filter_start(disk_calls, sizeof disk_calls / sizeof disk_calls[0]));
}
