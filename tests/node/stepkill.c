/* Ends a process before its Nth step, for tests: `stepkill N PID`, or `stepkill N PROGRAM ARG...` from its
 * start. A step is a system call of any of its threads that others can see: a change of the file system, a
 * message, a process, a change of the kernel's objects. Invariant: the call that it is ended before has no
 * effect, all before it had theirs. Says "attached", and at the end "killed at step N: CALL TEXT"; when the
 * process ends before that or we are told to end (SIGTERM), "steps K", and the process goes on. Says it on
 * descriptor 3 when there is one. */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <linux/kvm.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS_MAX 256
#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE)

enum { ALWAYS, TO_FILE_OR_SOCKET, WITH_CREAT, WITHOUT_RUN };

static const struct step {
    long nr;
    const char *name;
    int when, path; /* which argument is a path; -1: none */
} steps[] = {
    {SYS_write, "write", TO_FILE_OR_SOCKET, -1},
    {SYS_writev, "writev", TO_FILE_OR_SOCKET, -1},
    {SYS_pwrite64, "pwrite", TO_FILE_OR_SOCKET, -1},
    {SYS_pwritev, "pwritev", TO_FILE_OR_SOCKET, -1},
    {SYS_pwritev2, "pwritev2", TO_FILE_OR_SOCKET, -1},
    {SYS_sendto, "send", ALWAYS, -1},
    {SYS_sendmsg, "sendmsg", ALWAYS, -1},
    {SYS_sendmmsg, "sendmmsg", ALWAYS, -1},
    {SYS_openat, "create", WITH_CREAT, 1},
    {SYS_mkdir, "mkdir", ALWAYS, 0},
    {SYS_mkdirat, "mkdirat", ALWAYS, 1},
    {SYS_link, "link", ALWAYS, 0},
    {SYS_linkat, "linkat", ALWAYS, 1},
    {SYS_rename, "rename", ALWAYS, 0},
    {SYS_renameat, "renameat", ALWAYS, 1},
    {SYS_renameat2, "renameat2", ALWAYS, 1},
    {SYS_unlink, "unlink", ALWAYS, 0},
    {SYS_unlinkat, "unlinkat", ALWAYS, 1},
    {SYS_rmdir, "rmdir", ALWAYS, 0},
    {SYS_truncate, "truncate", ALWAYS, 0},
    {SYS_ftruncate, "ftruncate", ALWAYS, -1},
    {SYS_fallocate, "fallocate", ALWAYS, -1},
    {SYS_copy_file_range, "copy_file_range", ALWAYS, -1},
    {SYS_fsync, "fsync", ALWAYS, -1},
    {SYS_fdatasync, "fdatasync", ALWAYS, -1},
    {SYS_sync_file_range, "sync_file_range", ALWAYS, -1},
    {SYS_chmod, "chmod", ALWAYS, 0},
    {SYS_fchmod, "fchmod", ALWAYS, -1},
    {SYS_fchmodat, "fchmodat", ALWAYS, 1},
    {SYS_chown, "chown", ALWAYS, 0},
    {SYS_fchown, "fchown", ALWAYS, -1},
    {SYS_fchownat, "fchownat", ALWAYS, 1},
    {SYS_bind, "bind", ALWAYS, -1},
    {SYS_connect, "connect", ALWAYS, -1},
    {SYS_mount, "mount", ALWAYS, 1},
    {SYS_umount2, "umount", ALWAYS, 0},
    {SYS_ioctl, "ioctl", WITHOUT_RUN, -1},
    {SYS_bpf, "bpf", ALWAYS, -1},
    {SYS_clone, "clone", ALWAYS, -1},
    {SYS_clone3, "clone3", ALWAYS, -1},
    {SYS_fork, "fork", ALWAYS, -1},
    {SYS_vfork, "vfork", ALWAYS, -1},
    {SYS_kill, "kill", ALWAYS, -1},
    {SYS_pidfd_send_signal, "pidfd_send_signal", ALWAYS, -1},
    {SYS_waitid, "waitid", ALWAYS, -1},
    {SYS_wait4, "wait4", ALWAYS, -1},
    {SYS_seccomp, "seccomp", ALWAYS, -1},
    {SYS_prctl, "prctl", ALWAYS, -1},
    {SYS_exit_group, "exit", ALWAYS, -1},
};

static pid_t target;
static unsigned long wanted, count;
static unsigned attached, stopped; /* threads */
static FILE *report;

static void die(const char *what)
{
    fprintf(stderr, "stepkill: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void fd_text(uint64_t fd, char out[256])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", target, (int)fd);
    ssize_t n = readlink(path, out, 255);
    out[n > 0 ? n : 0] = 0;
}

static void path_text(uint64_t address, char out[256])
{
    struct iovec local = {out, 255}, remote = {(void *)(uintptr_t)address, 255};
    /* Up to the end of the page, when the next one is not there. */
    ssize_t n = process_vm_readv(target, &local, 1, &remote, 1, 0);
    if (n < 0) {
        remote.iov_len = 4096 - address % 4096 < 255 ? 4096 - address % 4096 : 255;
        n = process_vm_readv(target, &local, 1, &remote, 1, 0);
    }
    out[n > 0 ? n : 0] = 0;
}

/* Waking a loop (an eventfd) and writing a line of log are no steps. */
static bool is_outside(uint64_t fd, char text[256])
{
    fd_text(fd, text);
    return fd != 2 && (text[0] == '/' || strncmp(text, "socket:", 7) == 0);
}

static bool is_step(const struct __ptrace_syscall_info *s, const char **name, char text[256])
{
    const uint64_t *a = s->entry.args;
    text[0] = 0;
    *name = "";
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct step *k = &steps[i];
        if ((uint64_t)k->nr != s->entry.nr)
            continue;
        *name = k->name;
        if (k->when == TO_FILE_OR_SOCKET)
            return is_outside(a[0], text);
        if (k->when == WITH_CREAT && !(a[2] & O_CREAT))
            return false;
        if (k->when == WITHOUT_RUN) {
            snprintf(text, 256, "0x%llx", (unsigned long long)a[1]);
            return a[1] != KVM_RUN;
        }
        if (k->path >= 0)
            path_text(a[k->path], text);
        return true;
    }
    return false;
}

static void on_syscall(pid_t thread)
{
    struct __ptrace_syscall_info s;
    const char *name;
    char text[256];
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof s, &s) < 0 || s.op != PTRACE_SYSCALL_INFO_ENTRY ||
        !is_step(&s, &name, text))
        return;
    if (++count != wanted)
        return;
    kill(target, SIGKILL);
    fprintf(report, "killed at step %lu: %s %s\n", count, name, text);
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR) /* until it is gone */
        ;
    exit(0);
}

/* New threads that appear meanwhile are followed by those that are seized already, or found in the next
 * round. */
static void seize_all(void)
{
    static pid_t known[THREADS_MAX];
    unsigned n = 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", target);
    for (bool more = true; more;) {
        DIR *d = opendir(path);
        if (!d)
            die("reading the threads");
        more = false;
        for (struct dirent *x; (x = readdir(d));) {
            pid_t thread = atoi(x->d_name);
            unsigned i = 0;
            while (i < n && known[i] != thread)
                i++;
            if (thread <= 0 || i < n || n == THREADS_MAX)
                continue;
            known[n++] = thread;
            more = true;
            if (ptrace(PTRACE_SEIZE, thread, 0, OPTIONS) == 0) {
                ptrace(PTRACE_INTERRUPT, thread, 0, 0);
                attached++;
            } else if (errno != EPERM && errno != ESRCH) /* EPERM: followed already */
                die("attaching");
        }
        closedir(d);
    }
}

static void on_stop(pid_t thread, int status)
{
    int signal = WSTOPSIG(status), event = status >> 16, deliver = 0;
    if (++stopped == attached)
        fputs("attached\n", report);
    if (signal == (SIGTRAP | 0x80)) {
        on_syscall(thread);
    } else if (event == 0) {
        deliver = signal;
    } else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP && signal != SIGSTOP) {
        ptrace(PTRACE_LISTEN, thread, 0, 0); /* a stop signal: the group stays stopped */
        return;
    }
    ptrace(PTRACE_SYSCALL, thread, 0, deliver);
}

/* Stopped before its first call. */
static pid_t start_stopped(char **argv)
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        fcntl(3, F_SETFD, FD_CLOEXEC);
        raise(SIGSTOP);
        execv(argv[0], argv);
        die(argv[0]);
    }
    waitpid(pid, NULL, WUNTRACED);
    return pid;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    wanted = strtoul(argv[1], NULL, 10);
    report = fdopen(3, "w");
    if (!report)
        report = stdout;
    setvbuf(report, NULL, _IOLBF, 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    bool start = argv[2][0] == '/';
    target = start ? start_stopped(argv + 2) : atoi(argv[2]);
    seize_all();
    if (start)
        kill(target, SIGCONT);
    for (;;) {
        int status = 0;
        pid_t thread;
        while ((thread = waitpid(-1, &status, WNOHANG | __WALL)) > 0)
            if (WIFSTOPPED(status))
                on_stop(thread, status);
            else if (thread == target)
                break;
        if (thread == target || (thread < 0 && errno == ECHILD) || sigwaitinfo(&set, NULL) == SIGTERM) {
            fprintf(report, "steps %lu\n", count); /* whoever is still traced goes on when we end */
            return 0;
        }
    }
}
