/* measure: the guest's side of `cube bench kernel`. One line "NAME UNIT P50 P99 MAX N" per operation, in
 * microseconds. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { SAMPLES = 300 };

static double samples[SAMPLES];

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(const char *name, int n)
{
    qsort(samples, (size_t)n, sizeof(*samples), compare);
    printf("%s us %.3f %.3f %.3f %d\n", name, samples[n / 2], samples[n * 99 / 100], samples[n - 1], n);
}

static void measure_syscall(void)
{
    enum { BATCH = 1000 };

    for (int i = 0; i < SAMPLES; i++) {
        double start = now_us();
        for (int k = 0; k < BATCH; k++)
            syscall(SYS_getppid);
        samples[i] = (now_us() - start) / BATCH;
    }
    report("syscall", SAMPLES);
}

static void measure_fault(void)
{
    enum { PAGES = 256, PAGE = 4096 };

    for (int i = 0; i < SAMPLES; i++) {
        char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, PAGES * PAGE, MADV_NOHUGEPAGE);
        double start = now_us();
        for (int k = 0; k < PAGES; k++)
            p[k * PAGE] = 1;
        samples[i] = (now_us() - start) / PAGES;
        munmap(p, PAGES * PAGE);
    }
    report("page-fault", SAMPLES);
}

static void measure_fork_exec(void)
{
    for (int i = 0; i < SAMPLES; i++) {
        double start = now_us();
        pid_t pid = fork();
        if (pid == 0) {
            execl("/bin/true", "true", NULL);
            _exit(127);
        }
        waitpid(pid, NULL, 0);
        samples[i] = now_us() - start;
    }
    report("fork-exec", SAMPLES);
}

/* A byte there and back between two processes: "pipe" as the scheduler places them, "switch" on one CPU,
 * where half of a round trip is one context switch with the pipe's work. */
static void measure_pipe(const char *name, int pinned)
{
    enum { BATCH = 50 };
    int there[2], back[2];
    char c = 0;
    cpu_set_t all, one;

    sched_getaffinity(0, sizeof(all), &all);
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    if (pinned)
        sched_setaffinity(0, sizeof(one), &one);
    CHECK(pipe2(there, O_CLOEXEC) == 0 && pipe2(back, O_CLOEXEC) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(there[1]);
        while (read(there[0], &c, 1) == 1)
            if (write(back[1], &c, 1) != 1)
                break;
        _exit(0);
    }
    close(there[0]);
    for (int i = 0; i < SAMPLES; i++) {
        double start = now_us();
        for (int k = 0; k < BATCH; k++)
            CHECK(write(there[1], &c, 1) == 1 && read(back[0], &c, 1) == 1, "pipe ends");
        samples[i] = (now_us() - start) / BATCH / (pinned ? 2 : 1);
    }
    close(there[1]);
    waitpid(pid, NULL, 0);
    sched_setaffinity(0, sizeof(all), &all);
    report(name, SAMPLES);
}

/* A traced process stops at a system call and is let go: one stop and one wait for it, as strace does. */
static void measure_ptrace(void)
{
    enum { BATCH = 20 };
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        for (;;)
            syscall(SYS_getppid);
    }
    waitpid(pid, &status, 0);
    for (int i = 0; i < SAMPLES; i++) {
        double start = now_us();
        for (int k = 0; k < BATCH; k++)
            CHECK(ptrace(PTRACE_SYSCALL, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid &&
                      WIFSTOPPED(status),
                  "the traced process ended");
        samples[i] = (now_us() - start) / BATCH;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    report("ptrace-stop", SAMPLES);
}

/* The time that a loop without system calls does not get, per second: clock interrupts, and what the host
 * takes. */
static void measure_lost(void)
{
    enum { WINDOWS = 20, WINDOW_US = 100000 };

    for (int i = 0; i < WINDOWS; i++) {
        double start = now_us(), last = start, lost = 0;
        while (last - start < WINDOW_US) {
            double now = now_us();
            if (now - last > 1)
                lost += now - last;
            last = now;
        }
        samples[i] = lost * 1e6 / WINDOW_US;
    }
    report("lost-per-second", WINDOWS);
}

/* How late a sleeper wakes, and how long one of the busy processes waits for its turn, with three of those
 * per CPU. */
static void measure_load(void)
{
    enum { HOGS = 3, WAITS = 100 };
    int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN), n = 0;
    pid_t hog[HOGS * 8];

    for (int i = 0; i < HOGS * cpus && i < HOGS * 8; i++, n++)
        if ((hog[n] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                __asm__ volatile("pause");
        }
    for (int i = 0; i < SAMPLES; i++) {
        struct timespec wait = {.tv_nsec = 2000000};
        double start = now_us();
        nanosleep(&wait, NULL);
        samples[i] = now_us() - start - 2000;
    }
    report("wake-late", SAMPLES);
    kill(hog[--n], SIGKILL); /* this process takes its place */
    waitpid(hog[n], NULL, 0);
    double start = now_us(), last = start;
    int waits = 0;
    while (waits < WAITS && last - start < 5e6) {
        double now = now_us();
        if (now - last > 1000)
            samples[waits++] = now - last;
        last = now;
    }
    if (waits > 0)
        report("turn-wait", waits);
    while (n > 0) {
        kill(hog[--n], SIGKILL);
        waitpid(hog[n], NULL, 0);
    }
}

int main(void)
{
    measure_syscall();
    measure_fault();
    measure_fork_exec();
    measure_pipe("pipe", 0);
    measure_pipe("switch", 1);
    measure_ptrace();
    measure_lost();
    measure_load();
    return 0;
}
