/* clone3 with CLONE_VFORK: the child borrows our memory on its own small stack until exec, so nothing is
 * copied and errors come back in a variable. Invariants: between clone and exec the child makes only raw
 * system calls and touches only its stack and `struct child` (other threads run on); it never sees our signal
 * handlers. */
#include "guest/common/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_STACK (64 * 1024)

struct child {
    const struct spawn *s;
    bool in_cgroup;   /* from its first instruction */
    const char *path; /* of envp, for the lookup */
    sigset_t mask;
    enum spawn_step failed;
    int error;
};

static int child_fail(struct child *c, enum spawn_step step)
{
    c->error = errno;
    c->failed = step;
    return 255;
}

static int identity_take(const struct user *u)
{
    uid_t own = (uid_t)syscall(SYS_geteuid);
    if (u->uid == own && own != 0)
        return 0; /* the caller's own user: nothing to change, and no right to setgroups */
    if (syscall(SYS_setgroups, (size_t)u->n_groups, u->groups) < 0)
        return -1;
    if (syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0)
        return -1;
    return (int)syscall(SYS_setresuid, u->uid, u->uid, u->uid);
}

/* 0, 1, 2 become in, out, err. The sources are all above 2 (callers guarantee it), so none is overwritten. */
static int stdio_take(const struct spawn *s)
{
    int want[3] = {s->in, s->out, s->err};
    for (int i = 0; i < 3; i++) {
        int fd = want[i];
        if (fd < 0 && (fd = open("/dev/null", i ? O_WRONLY : O_RDONLY | O_CLOEXEC)) < 0)
            continue; /* a root without /dev/null: the child starts with that descriptor closed */
        if (fd != i && dup2(fd, i) < 0)
            return -1;
    }
    return 0;
}

static void say(const char *a, const char *b, const char *c)
{
    char line[512];
    size_t n = 0;
    const char *parts[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        for (const char *p = parts[i]; *p && n < sizeof(line); p++)
            line[n++] = *p;
    if (write(2, line, n) < 0)
        return;
}

/* A text file without "#!": run it with the shell, as execvp does. */
static void exec_script(const struct spawn *s, const char *file)
{
    size_t n = 0;
    while (s->argv[n] && n <= 1000)
        n++;
    if (n > 1000) {
        errno = E2BIG;
        return;
    }
    char *argv[1002] = {(char *)"/bin/sh", (char *)file};
    for (size_t i = 1; i < n; i++)
        argv[i + 1] = s->argv[i];
    execve("/bin/sh", argv, s->envp);
}

static void exec_one(const struct spawn *s, const char *file)
{
    execve(file, s->argv, s->envp);
    if (errno == ENOEXEC)
        exec_script(s, file);
}

static int exec_search(struct child *c)
{
    const struct spawn *s = c->s;
    char file[PATH_MAX];
    int best = ENOENT;
    size_t name_len = strlen(s->file);
    if (strchr(s->file, '/')) {
        exec_one(s, s->file);
        return errno;
    }
    for (const char *p = c->path; *s->file; p++) {
        size_t n = 0;
        while (*p && *p != ':') {
            if (n < sizeof(file))
                file[n] = *p;
            n++;
            p++;
        }
        if (n && n + name_len + 2 <= sizeof(file)) {
            file[n] = '/';
            memcpy(file + n + 1, s->file, name_len + 1);
            exec_one(s, file);
            if (errno != ENOENT && errno != ENOTDIR)
                best = errno;
        }
        if (!*p)
            break;
    }
    return best;
}

/* Where the kernel or a container's filter has no clone3: the same by hand, a few instructions later. */
static void clone3_make_up(const struct child *c)
{
    if (c->in_cgroup)
        return;
    signal(SIGPIPE, SIG_DFL); /* the only one that we ignore; handlers end with exec */
    int fd = c->s->cgroup < 0 ? -1 : openat(c->s->cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    ssize_t moved = fd < 0 ? 0 : write(fd, "0", 1);
    if (fd >= 0 && moved >= 0)
        close(fd);
}

static int child_main(void *arg)
{
    struct child *c = arg;
    const struct spawn *s = c->s;
    clone3_make_up(c);
    syscall(SYS_setsid);
    if (s->set_oom) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (fd >= 0) {
            char text[12];
            int v = s->oom_score_adj, n = 0;
            char digits[8];
            int k = 0;
            for (unsigned u = (unsigned)(v < 0 ? -v : v); u || !k; u /= 10)
                digits[k++] = (char)('0' + u % 10);
            if (v < 0)
                text[n++] = '-';
            while (k)
                text[n++] = digits[--k];
            ssize_t ignored =
                write(fd, text, (size_t)n); /* without the right to lower it we keep what we have */
            (void)ignored;
            close(fd);
        }
    }
    if (stdio_take(s) < 0)
        return child_fail(c, SPAWN_STDIO);
    if (s->tty)
        ioctl(0, TIOCSCTTY, 0);
    setpriority(PRIO_PROCESS, 0, 0);
    if (s->nofile_soft) {
        struct rlimit64 lim = {s->nofile_soft, s->nofile_hard};
        syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &lim, NULL);
    }
    umask(022);
    if (s->user && identity_take(s->user) < 0)
        return child_fail(c, SPAWN_IDENTITY);
    if (s->cwd && chdir(s->cwd) < 0 && !(s->cwd_optional && chdir("/") == 0))
        return child_fail(c, SPAWN_CWD);
    syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    sigset_t none;
    sigemptyset(&none);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
    int why = exec_search(c);
    if (why == ENOENT || why == ENOTDIR)
        say("cube: ", s->file, ": command not found\n");
    else
        say("cube: ", s->file, why == EACCES ? ": permission denied\n" : ": cannot be executed\n");
    return why == ENOENT || why == ENOTDIR ? 127 : 126;
}

/* The child starts on `stack`, calls fn(arg) and exits with its result; only the parent returns. */
static long clone3_call(struct clone_args *args, int (*fn)(void *), void *arg)
{
    long ret;
    register void *r8 __asm__("r8") = (void *)fn;
    register void *r9 __asm__("r9") = arg;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "movq %%r9, %%rdi\n\t"
                     "call *%%r8\n\t"
                     "movl %%eax, %%edi\n\t"
                     "movl $60, %%eax\n\t" /* exit */
                     "syscall\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(ret)
                     : "0"(SYS_clone3), "D"(args), "S"(sizeof(*args)), "r"(r8), "r"(r9)
                     : "rcx", "r11", "r10", "rdx", "memory", "cc");
    return ret;
}

static const char *path_of(char *const *envp)
{
    for (; envp && *envp; envp++)
        if (!strncmp(*envp, "PATH=", 5))
            return *envp + 5;
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

static void *stack_get(void)
{
    static __thread void
        *stack; /* one per thread that spawns; reused, because vfork children never overlap */
    if (!stack) {
        stack =
            mmap(NULL, CHILD_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        if (stack == MAP_FAILED)
            stack = NULL;
    }
    return stack;
}

pid_t spawn_process(const struct spawn *s, int *pidfd, enum spawn_step *step)
{
    struct child c = {.s = s, .in_cgroup = true, .path = path_of(s->envp)};
    void *stack = stack_get();
    *pidfd = -1;
    *step = SPAWN_CLONE;
    if (!stack)
        return -1;
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    int fd = -1;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
        .pidfd = (uint64_t)(uintptr_t)&fd,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = CHILD_STACK,
    };
    if (s->cgroup >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)s->cgroup;
    }
    long pid = clone3_call(&args, child_main, &c);
    if (pid == -ENOSYS) {
        c.in_cgroup = false;
        pid = clone(child_main, (char *)stack + CHILD_STACK, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD,
                    &c, &fd);
        pid = pid < 0 ? -errno : pid;
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (pid < 0) {
        errno = (int)-pid;
        return -1;
    }
    if (c.failed) { /* it is gone already: reap it here, nobody else knows it */
        siginfo_t info;
        while (waitid(P_PID, (id_t)pid, &info, WEXITED) < 0 && errno == EINTR)
            continue;
        close(fd);
        *step = c.failed;
        errno = c.error;
        return -1;
    }
    *step = SPAWN_OK;
    *pidfd = fd;
    return (pid_t)pid;
}

int spawn_kill_group(pid_t pid, int sig)
{
    if (kill(-pid, sig) == 0)
        return 0;
    return kill(pid, sig);
}
