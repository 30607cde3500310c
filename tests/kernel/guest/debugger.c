/* debugger: what gdb and strace need of ptrace: single steps, breakpoints, stops at system calls, registers
 * read and written, attach to a running process. Hardware breakpoints must either work or be refused with an
 * error. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static volatile long counter;
static volatile long watched;

__attribute__((noinline)) static void work(void)
{
    for (int i = 0; i < 100; i++)
        counter += i;
}

static pid_t traced(void (*body)(void))
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        body();
        _exit(42);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "the child did not stop: %x", status);
    return pid;
}

static void end(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

static void test_step(void)
{
    pid_t pid = traced(work);
    int status, steps = 0, inside = 0;

    for (; steps < 3000; steps++) {
        struct user_regs_struct r;
        CHECK(ptrace(PTRACE_SINGLESTEP, pid, 0, 0) == 0, "step: %s", strerror(errno));
        waitpid(pid, &status, 0);
        if (WIFEXITED(status))
            break;
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "step %d: status %x", steps, status);
        ptrace(PTRACE_GETREGS, pid, 0, &r);
        inside += r.rip >= (uintptr_t)work && r.rip < (uintptr_t)work + 200;
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "after %d steps: status %x", steps, status);
    CHECK(inside > 300, "only %d steps inside the loop", inside);
}

static void test_breakpoint(void)
{
    pid_t pid = traced(work);
    struct user_regs_struct r;
    int status;
    long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)work, 0);

    ptrace(PTRACE_POKETEXT, pid, (void *)work, (void *)((word & ~0xffL) | 0xcc));
    ptrace(PTRACE_CONT, pid, 0, 0);
    waitpid(pid, &status, 0);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "breakpoint: status %x", status);
    ptrace(PTRACE_GETREGS, pid, 0, &r);
    CHECK(r.rip == (uintptr_t)work + 1, "breakpoint at %llx", r.rip);
    ptrace(PTRACE_POKETEXT, pid, (void *)work, (void *)word);
    r.rip--;
    r.rcx = 0x123456789abcdef0; /* sysret destroys these two: they must survive */
    r.r11 = 0x0fedcba987654321;
    CHECK(ptrace(PTRACE_SETREGS, pid, 0, &r) == 0, "SETREGS: %s", strerror(errno));
    ptrace(PTRACE_SINGLESTEP, pid, 0, 0);
    waitpid(pid, &status, 0);
    struct user_regs_struct after;
    ptrace(PTRACE_GETREGS, pid, 0, &after);
    CHECK(after.rcx == r.rcx && after.r11 == r.r11, "rcx %llx, r11 %llx", after.rcx, after.r11);
    ptrace(PTRACE_CONT, pid, 0, 0);
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "after the breakpoint: status %x", status);
}

static void calls(void)
{
    for (int i = 0; i < 50; i++)
        syscall(SYS_getpid);
}

static void test_syscalls(void)
{
    pid_t pid = traced(calls);
    int status, stops = 0;

    ptrace(PTRACE_SETOPTIONS, pid, 0, (void *)(long)PTRACE_O_TRACESYSGOOD);
    for (;;) {
        struct user_regs_struct r;
        ptrace(PTRACE_SYSCALL, pid, 0, 0);
        waitpid(pid, &status, 0);
        if (WIFEXITED(status))
            break;
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80), "syscall stop: status %x", status);
        ptrace(PTRACE_GETREGS, pid, 0, &r);
        stops += r.orig_rax == SYS_getpid;
    }
    CHECK(stops == 100, "%d stops at 50 calls", stops);
}

static void endless(void)
{
    for (;;)
        counter++;
}

static void test_attach(void)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        endless();
    for (int i = 0; i < 200; i++) {
        CHECK(ptrace(PTRACE_ATTACH, pid, 0, 0) == 0, "attach %d: %s", i, strerror(errno));
        CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "attach %d: status %x", i, status);
        ptrace(PTRACE_SINGLESTEP, pid, 0, 0);
        waitpid(pid, &status, 0);
        CHECK(WIFSTOPPED(status), "step after attach %d: status %x", i, status);
        CHECK(ptrace(PTRACE_DETACH, pid, 0, 0) == 0, "detach %d: %s", i, strerror(errno));
    }
    end(pid);
}

static void touch(void)
{
    watched = 7;
    endless();
}

static void test_watchpoint(void)
{
    pid_t pid = traced(touch);
    int status;
    size_t dr = offsetof(struct user, u_debugreg);

    ptrace(PTRACE_POKEUSER, pid, dr, (void *)&watched);
    if (ptrace(PTRACE_POKEUSER, pid, dr + 7 * sizeof(long), (void *)(long)0x90001) <
        0) { /* 4 bytes, write, enabled */
        printf("watchpoints are refused: %s\n", strerror(errno));
    } else {
        alarm(10);
        ptrace(PTRACE_CONT, pid, 0, 0);
        waitpid(pid, &status, 0);
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP,
              "an accepted watchpoint did not fire: status %x", status);
        alarm(0);
    }
    end(pid);
}

int main(void)
{
    test_step();
    test_breakpoint();
    test_syscalls();
    test_attach();
    test_watchpoint();
    puts("ok");
    return 0;
}
