/* The jailer's groups on a real unified hierarchy. A host that binds its controllers to v1 has none, but a
 * guest has: tests/node/cgroup2_test.py runs this in one, as root, in a group of its own that has all
 * controllers. */
#include "node/jailer/jailer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            printf("line %d: %s: %s (%s)\n", __LINE__, #x, e.msg, strerror(errno));                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static struct err e;

/* Runs `work` in the VM's group: from its first instruction on, as the jailer's child waits for a byte. */
static pid_t run_in(const char *vm, void (*work)(void))
{
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char c;
        close(go[1]);
        if (read(go[0], &c, 1) == 1)
            work();
        _exit(0);
    }
    close(go[0]);
    CHECK(cgroup_enter(vm, pid, &e) == 0);
    CHECK(write(go[1], "g", 1) == 1);
    close(go[1]);
    return pid;
}

static int status_of(pid_t pid, struct rusage *used)
{
    int status = 0;
    CHECK(wait4(pid, &status, 0, used) == pid);
    return status;
}

static void take_memory(void)
{
    size_t n = 200u << 20;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; p != MAP_FAILED && i < n; i += 4096)
        p[i] = 1;
}

static void take_processes(void)
{
    int n = 0;
    pid_t pid;
    while (n < 100 && (pid = fork()) > 0)
        n++;
    if (n < 100 && pid == 0) {
        pause();
        _exit(0);
    }
    kill(0, SIGCONT);
    _exit(n);
}

static void take_cpu(void)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec - start.tv_sec < 2);
}

static void wait_for_ever(void)
{
    pause();
}

static void drop(const char *vm)
{
    for (int i = 0; !cgroup_drop(vm) && i < 500; i++) /* the last process may take a moment to leave */
        usleep(10000);
    CHECK(cgroup_drop(vm));
}

int main(void)
{
    struct limits l = {.memory_bytes = 64u << 20, .cpu_milli = 200, .pids = 8};
    struct rusage used;
    bool own_limit = false;
    CHECK(cgroup_setup("vms", &e) == 0);
    CHECK(access("/sys/fs/cgroup/test/vms/cgroup.subtree_control", F_OK) == 0);

    CHECK(cgroup_make("memory", &l, &e) == 0);
    CHECK(!cgroup_oom("memory", &own_limit));
    int status = status_of(run_in("memory", take_memory), &used);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(cgroup_oom("memory", &own_limit) && own_limit);
    drop("memory");

    CHECK(cgroup_make("pids", &l, &e) == 0);
    status = status_of(run_in("pids", take_processes), &used);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7); /* and itself */
    CHECK(!cgroup_drop("pids"));
    CHECK(textfile_write("/sys/fs/cgroup/test/vms/pids/cgroup.kill", "1") == 0);
    drop("pids");

    CHECK(cgroup_make("cpu", &l, &e) == 0);
    status = status_of(run_in("cpu", take_cpu), &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    CHECK(WIFEXITED(status) && cpu < 0.7); /* 0.2 of at least 2 s, in periods of 0.1 s */
    CHECK(cgroup_limit("cpu", &(struct limits){0}, &e) == 0);
    char text[64];
    CHECK(textfile_read("/sys/fs/cgroup/test/vms/cpu/memory.max", text, sizeof text) > 0 &&
          !strcmp(text, "max\n"));
    CHECK(textfile_read("/sys/fs/cgroup/test/vms/cpu/cpu.max", text, sizeof text) > 0 &&
          !strcmp(text, "max 100000\n"));

    /* A jailer that is started again is in the leaf that the first one made, and finds the same groups. */
    CHECK(textfile_read("/proc/self/cgroup", text, sizeof text) > 0 &&
          !strcmp(text, "0::/test/cube-daemons\n"));
    pid_t still = run_in("cpu", wait_for_ever);
    CHECK(cgroup_setup("vms", &e) == 0);
    CHECK(!cgroup_drop("cpu"));
    kill(still, SIGKILL);
    status_of(still, &used);
    drop("cpu");
    cgroup_teardown();
    CHECK(access("/sys/fs/cgroup/test/vms", F_OK) < 0);
    printf("all well: %.2f s of processor in 2 s\n", cpu);
    return 0;
}
