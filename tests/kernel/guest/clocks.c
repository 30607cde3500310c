/* clocks: the vDSO's clock agrees with the system call and never runs backward; getcpu tells the CPU that the
 * thread is pinned to; short sleeps are short. */
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static int64_t now(clockid_t id, int by_syscall)
{
    struct timespec t;

    if (by_syscall)
        syscall(SYS_clock_gettime, id, &t);
    else
        clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(void)
{
    static const clockid_t ids[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
        int64_t last = now(ids[i], 0);
        for (int n = 0; n < 200000; n++) {
            int64_t t = now(ids[i], n % 64 == 0);
            CHECK(t >= last, "clock %d went back by %lld ns", ids[i], (long long)(last - t));
            last = t;
        }
    }
    for (int cpu = 0; cpu < cpus; cpu++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        CHECK(sched_setaffinity(0, sizeof(set), &set) == 0, "pin to %d", cpu);
        for (int n = 0; n < 1000; n++) {
            int seen = sched_getcpu();
            CHECK(seen == cpu, "getcpu says %d on %d", seen, cpu);
        }
    }
    int64_t start = now(CLOCK_MONOTONIC, 0);
    for (int n = 0; n < 100; n++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    int64_t slept = now(CLOCK_MONOTONIC, 0) - start;
    CHECK(slept >= 100 * 1000000LL, "100 sleeps of 1 ms took %lld ns", (long long)slept);
    CHECK(slept < 20000 * 1000000LL, "100 sleeps of 1 ms took %lld ns", (long long)slept);
    printf("a sleep of 1 ms takes %lld us\n", (long long)slept / 100000);
    return 0;
}
