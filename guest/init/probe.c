/* What `cube doctor` asks of a host: user mode runs and is interrupted, the clock goes on, and the kernel is
 * out of its programs' reach. Each dangerous try is a child that must die of the signal which hardware would
 * give it. */
#include "guest/init/probe.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define KERNEL_TEXT 0xffffffff81000000ull
#define BUSY_LIMIT_S 20

static volatile sig_atomic_t ticks;

static void on_tick(int signo)
{
    ticks++;
}

static void read_kernel(void)
{
    *(volatile char *)KERNEL_TEXT;
}

static void jump_kernel(void)
{
    ((void (*)(void))KERNEL_TEXT)();
}

static void clear_interrupts(void)
{
    __asm__ volatile("cli");
}

static void read_msr(void)
{
    __asm__ volatile("rdmsr" : : "c"(0xc0000080) : "eax", "edx");
}

static void write_page_table_base(void)
{
    __asm__ volatile("mov %0, %%cr3" : : "r"(0ul) : "memory");
}

static void write_port(void)
{
    __asm__ volatile("outb %%al, $0x80" : : "a"(0));
}

static const struct {
    const char *name;
    void (*act)(void);
} forbidden[] = {{"read kernel memory", read_kernel},          {"jump into the kernel", jump_kernel},
                 {"turn interrupts off", clear_interrupts},    {"read an MSR", read_msr},
                 {"load a page table", write_page_table_base}, {"write to a port", write_port}};

/* NULL, or what user code could do. */
static const char *reaches_kernel(void)
{
    for (unsigned i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++) {
        int status = 0;
        pid_t pid = fork();

        if (pid == 0) {
            forbidden[i].act();
            _exit(0);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
            return forbidden[i].name;
    }
    return NULL;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A loop without system calls must be interrupted by a timer, and sleep must last as long as was asked. */
static const char *time_fails(void)
{
    static const struct itimerval every = {{0, 10000}, {0, 10000}}, never;
    double start = now();

    signal(SIGALRM, on_tick);
    setitimer(ITIMER_REAL, &every, NULL);
    while (ticks < 5)
        if (now() - start > BUSY_LIMIT_S)
            return "no timer interrupt reaches user mode";
    setitimer(ITIMER_REAL, &never, NULL);
    start = now();
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    double slept = now() - start;
    return slept < 0.05 || slept > BUSY_LIMIT_S ? "a sleep does not last as long as asked" : NULL;
}

_Noreturn void probe_run(void)
{
    const char *bad = time_fails(), *reach = bad ? NULL : reaches_kernel();

    if (bad)
        printf("cube-probe: FAILED: %s\n", bad);
    else if (reach)
        printf("cube-probe: FAILED: user code can %s\n", reach);
    else
        printf("cube-probe: ok\n");
    fflush(stdout);
    tcdrain(STDOUT_FILENO); /* the console's driver sends in the background, and the reset takes what it still
                               holds */
    reboot(RB_AUTOBOOT);
    _exit(1);
}
