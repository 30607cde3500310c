/* measure: the guest's side of `cube bench kernel`. One line "NAME UNIT P50 P99 MAX N" per operation, in
 * microseconds. */
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
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

int main(void)
{
    measure_syscall();
    measure_fault();
    measure_fork_exec();
    measure_pipe("pipe", 0);
    measure_pipe("switch", 1);
    return 0;
}
