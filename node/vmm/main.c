/* cube-vmm: one process, one virtual machine. Everything it may touch comes as a descriptor, from its parent
 * at the start or from the node over the control socket; it opens no path. */
#include "node/vmm/control.h"

#include "lib/base/log.h"

#include <getopt.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "cube-vmm - runs one virtual machine\n"
    "\n"
    "SYNOPSIS\n"
    "  cube-vmm [--control-fd N] [--kvm-fd N] [--proc-fd N] [--memory-mib N] [--vcpus N] [--no-seccomp] "
    "[--one-thread]\n"
    "\n"
    "Started by cube-jailer, in a jail without files, network and privileges. It prepares a KVM virtual "
    "machine of the\n"
    "given size and waits on the control socket for Boot or Restore (proto/vmm.proto).\n"
    "\n"
    "OPTIONS\n"
    "  --control-fd N   listening SEQPACKET Unix socket (default 3)\n"
    "  --kvm-fd N       open /dev/kvm (default 4)\n"
    "  --proc-fd N      open directory /proc; used before a guest runs, then closed (default 5)\n"
    "  --memory-mib N   memory to prepare for (default 512); a guest of another size costs some milliseconds "
    "more\n"
    "  --vcpus N        vCPUs to prepare for (default 1)\n"
    "  --no-seccomp     no system call filters: for debugging and sanitizers only\n"
    "  --one-thread     disks and other devices share a thread; for comparisons, needs --no-seccomp\n"
    "  --version        print the version\n"
    "\n"
    "EXIT STATUS\n"
    "  0 asked to end by the node; 10 the guest reset or powered off; 11 it crashed; 12 error of KVM or of "
    "the VMM\n";

static long number(const char *s, long min, long max, const char *what)
{
    char *end;
    long v = strtol(s, &end, 10);

    if (!*s || *end || v < min || v > max) {
        fprintf(stderr, "cube-vmm: %s must be a number from %ld to %ld\n", what, min, max);
        exit(2);
    }
    return v;
}

struct options {
    int control_fd, kvm_fd, proc_fd;
    unsigned memory_mib, vcpus;
    bool seccomp, one_thread;
};

static struct options parse(int argc, char **argv)
{
    static const struct option longopts[] = {{"control-fd", 1, NULL, 'c'}, {"kvm-fd", 1, NULL, 'k'},
                                             {"proc-fd", 1, NULL, 'p'},    {"memory-mib", 1, NULL, 'm'},
                                             {"vcpus", 1, NULL, 'v'},      {"no-seccomp", 0, NULL, 's'},
                                             {"one-thread", 0, NULL, '1'}, {"help", 0, NULL, 'h'},
                                             {"version", 0, NULL, 'V'},    {0}};
    struct options o = {
        .control_fd = 3, .kvm_fd = 4, .proc_fd = 5, .memory_mib = 512, .vcpus = 1, .seccomp = true};
    int c;

    while ((c = getopt_long(argc, argv, "", longopts, NULL)) >= 0) {
        switch (c) {
        case 'c':
            o.control_fd = (int)number(optarg, 0, 1 << 20, "--control-fd");
            break;
        case 'k':
            o.kvm_fd = (int)number(optarg, 0, 1 << 20, "--kvm-fd");
            break;
        case 'p':
            o.proc_fd = (int)number(optarg, -1, 1 << 20, "--proc-fd");
            break;
        case 'm':
            o.memory_mib = (unsigned)number(optarg, 32, MEM_MAX_MIB, "--memory-mib");
            break;
        case 'v':
            o.vcpus = (unsigned)number(optarg, 1, VM_VCPUS_MAX, "--vcpus");
            break;
        case 's':
            o.seccomp = false;
            break;
        case '1':
            o.one_thread = true;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        case 'V':
            puts("cube-vmm " CUBE_VERSION);
            exit(0);
        default:
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    static struct vm vm;
    struct options o = parse(argc, argv);
    struct err e = {0};

    mallopt(M_ARENA_MAX, 1); /* threads allocate rarely; arenas of their own would cost memory per sandbox */
    tzset();                 /* reads a file at its first call, which the filters would not allow later */
    log_init("cube-vmm", LOG_INFO);
    if (o.one_thread && o.seccomp) {
        fputs("cube-vmm: --one-thread needs --no-seccomp: no filter fits such a thread\n", stderr);
        return 2;
    }
    jail_enable(o.seccomp);
    if (vm_prepare(&vm, o.kvm_fd, o.proc_fd, o.memory_mib, o.vcpus, o.one_thread, &e) < 0 ||
        vm_start_threads(&vm, &e) < 0) {
        log_line(LOG_ERROR, &(struct log_about){.err = &e}, "start: %s", e.msg);
        return VM_END_ERROR;
    }
    if (o.proc_fd >= 0)
        close(o.proc_fd);
    jail_control_start();
    int status = control_serve(&vm, o.control_fd);
    fflush(NULL);
    _exit(status); /* threads may be inside the guest; the kernel takes everything back */
}
