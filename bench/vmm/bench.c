/* `vmm-restore`, `memory` and `pause` (and, in limits.c, `vmm-limits`) of cube-vmm alone, with a small guest
 * of 512 MiB (contracts/internal.md §12). */
#include "bench/vmm/clones.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static bool use_working_set = true;

static void settle(struct guest *g)
{
    int fd = guest_dial(g, 49983, NULL);

    for (int i = 0; i < 20; i++)
        CHECK(!strcmp(ask(fd, "ping"), "pong"));
    close(fd);
    usleep(5000000); /* free-page reporting starts after 2 s: what it touches shall be in the template */
}

static const struct snapshot_files *base_files(const char *layer)
{
    static struct snapshot_files f;

    f = (struct snapshot_files){.state = "base.state",
                                .memory = "base.mem",
                                .layer = layer,
                                .working_set =
                                    use_working_set && access(in_tmp("ws"), F_OK) == 0 ? "ws" : NULL};
    return &f;
}

static void make_template(void)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__WorkingSet w = CUBE__VMM__V1__WORKING_SET__INIT;
    struct err e = {0};
    struct guest g;

    guest_spawn(&g, GUEST_MIB, 1);
    guest_boot(&g, "base.layer");
    settle(&g);
    OK(guest_snapshot(&g, "base", false, false, NULL, &e), e);
    guest_end(&g);
    /* The first clone shows what later ones will touch. */
    copy_file(in_tmp("base.layer"), in_tmp("first.layer"));
    guest_spawn(&g, GUEST_MIB, 1);
    OK(guest_restore(&g, base_files("first.layer"), &e, NULL), e);
    int fd = guest_dial(&g, 49983, NULL);
    CHECK(!strcmp(ask(fd, "ping"), "pong"));
    int ws = file_new("ws.tmp");
    q.op_case = CUBE__VMM__V1__REQUEST__OP_WORKING_SET;
    q.working_set = &w;
    OK(vmm_call(&g.c, &q, &ws, 1, NULL, &e), e);
    CHECK(rename(in_tmp("ws.tmp"), in_tmp("ws")) == 0);
    guest_end(&g);
    close(fd);
    close(ws);
}

/* Restores into a waiting process and asks; milliseconds from hand-over to the answer. */
double restore_and_ask(struct guest *g, const struct snapshot_files *f, Cube__Vmm__V1__Started *started,
                       int *conn)
{
    struct err e = {0};
    int64_t t0 = now_us();

    OK(guest_restore(g, f, &e, started), e);
    int fd = guest_dial(g, 49983, NULL);
    CHECK(!strcmp(ask(fd, "ping"), "pong"));
    double ms = (double)(now_us() - t0) / 1000;
    if (conn)
        *conn = fd;
    else
        close(fd);
    return ms;
}

static void bench_restore(unsigned n, bool json)
{
    struct series s[] = {{"handover", "ms"}, {"vmm", "ms"},         {"vmm-memory", "ms"},
                         {"vmm-vcpu", "ms"}, {"vmm-devices", "ms"}, {"exec-to-answer", "ms"}};

    for (unsigned i = 0; i < n; i++) {
        Cube__Vmm__V1__Started st;
        struct guest g;

        copy_file(in_tmp("base.layer"), in_tmp("clone.layer"));
        guest_spawn(&g, GUEST_MIB, 1);
        usleep(2000);
        series_add(&s[0], restore_and_ask(&g, base_files("clone.layer"), &st, NULL));
        series_add(&s[1], (double)st.took_us / 1000);
        series_add(&s[2], (double)st.memory_us / 1000);
        series_add(&s[3], (double)st.vcpu_us / 1000);
        series_add(&s[4], (double)st.devices_us / 1000);
        guest_end(&g);
    }
    for (unsigned i = 0; i < n / 4 + 1; i++) {
        struct guest g;

        copy_file(in_tmp("base.layer"), in_tmp("clone.layer"));
        int64_t t0 = now_us();
        guest_spawn(&g, GUEST_MIB, 1);
        restore_and_ask(&g, base_files("clone.layer"), NULL, NULL);
        series_add(&s[5], (double)(now_us() - t0) / 1000);
        guest_end(&g);
    }
    report_print("vmm-restore", s, 6, json);
}

double file_number(const char *path, const char *key)
{
    char line[256];
    double v = -1;
    FILE *f = fopen(path, "re");

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            v = atof(line + strlen(key));
    if (f)
        fclose(f);
    return v;
}

/* Where a clone's memory is, as the kernel counts it. */
static const struct {
    const char *metric, *key;
} memory_parts[] = {{"anonymous", "AnonPages:"},
                    {"page-tables", "PageTables:"},
                    {"shadow-tables", "SecPageTables:"},
                    {"kernel-stacks", "KernelStack:"},
                    {"slab", "SUnreclaim:"},
                    {"vmalloc", "VmallocUsed:"},
                    {"per-cpu", "Percpu:"},
                    {"page-cache", "Cached:"}};
enum { MEMORY_PARTS = sizeof memory_parts / sizeof memory_parts[0] };

static void memory_read(double *available, double part[MEMORY_PARTS])
{
    *available = file_number("/proc/meminfo", "MemAvailable:");
    for (unsigned i = 0; i < MEMORY_PARTS; i++)
        part[i] = file_number("/proc/meminfo", memory_parts[i].key);
}

static void bench_memory(unsigned n, bool json)
{
    struct series s[3 + MEMORY_PARTS] = {{"pss", "MiB"}, {"mem-available-drop", "MiB"}, {"private", "MiB"}};
    struct guest *g = calloc(n, sizeof *g);
    double before, after, part_before[MEMORY_PARTS], part_after[MEMORY_PARTS];
    struct guest warm;
    char path[64], layer[32];

    CHECK(g);
    copy_file(in_tmp("base.layer"), in_tmp("warm.layer"));
    guest_spawn(&warm, GUEST_MIB, 1);
    restore_and_ask(&warm, base_files("warm.layer"), NULL, NULL); /* template pages are in the page cache */
    guest_end(&warm);
    usleep(500000);
    memory_read(&before, part_before);
    for (unsigned i = 0; i < n; i++) {
        snprintf(layer, sizeof layer, "m%u.layer", i);
        copy_file(in_tmp("base.layer"), in_tmp(layer));
        guest_spawn(&g[i], GUEST_MIB, 1);
        restore_and_ask(&g[i], base_files(strdup(layer)), NULL, NULL);
    }
    usleep(2000000);
    memory_read(&after, part_after);
    for (unsigned i = 0; i < n; i++) {
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", g[i].c.pid);
        series_add(&s[0], file_number(path, "Pss:") / 1024);
        series_add(&s[2], (file_number(path, "Private_Dirty:") + file_number(path, "Private_Clean:")) / 1024);
    }
    series_add(&s[1], (before - after) / 1024 / n);
    for (unsigned i = 0; i < MEMORY_PARTS; i++) {
        s[3 + i] = (struct series){.metric = memory_parts[i].metric, .unit = "MiB"};
        series_add(&s[3 + i], (part_after[i] - part_before[i]) / 1024 / n);
    }
    for (unsigned i = 0; i < n; i++)
        guest_end(&g[i]);
    free(g);
    report_print("memory", s, 3 + MEMORY_PARTS, json);
}

/* What the disk can do with as many bytes: write and fdatasync of a new file. */
static double plain_write(size_t bytes)
{
    static uint8_t buf[1 << 20];
    int fd = file_new("plain");

    memset(buf, 0xa5, sizeof buf);
    int64_t t0 = now_us();
    for (size_t done = 0; done < bytes; done += sizeof buf)
        CHECK(write(fd, buf, bytes - done < sizeof buf ? bytes - done : sizeof buf) > 0);
    CHECK(fdatasync(fd) == 0);
    close(fd);
    return (double)(now_us() - t0) / 1000;
}

static void *sync_file(void *arg)
{
    int fd = *(int *)arg;

    sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    CHECK(fdatasync(fd) == 0);
    close(fd);
    return NULL;
}

/* All three at once, each in a thread, as node/store does it: so they share one commit of the file system's
 * journal. One after the other, the later two find it made and flush the disk's cache once more each. */
static double sync_files(void)
{
    static const char *const names[] = {"p.mem", "p.state", "p.layer"};
    int64_t t0 = now_us();
    pthread_t thread[3];
    int fd[3];

    for (unsigned i = 0; i < 3; i++)
        CHECK((fd[i] = open(in_tmp(names[i]), O_RDWR | O_CLOEXEC)) >= 0);
    for (unsigned i = 1; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, sync_file, &fd[i]) == 0);
    sync_file(&fd[0]);
    for (unsigned i = 1; i < 3; i++)
        pthread_join(thread[i], NULL);
    return (double)(now_us() - t0) / 1000;
}

/* The files of the round before: a pause and the write beside it both begin with new ones, as in the store.
 */
static void forget_files(void)
{
    static const char *const names[] = {"plain", "p.layer", "p.state", "p.mem"};

    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(in_tmp(names[i]));
}

static void bench_pause(unsigned n, bool json)
{
    struct series s[] = {{"frozen-and-written", "ms"},
                         {"durable", "ms"},
                         {"dd", "ms"},
                         {"durable-vs-dd", "x"},
                         {"resume", "ms"},
                         {"memory", "MiB"},
                         {"written", "ms"},
                         {"flush", "ms"}};

    for (unsigned i = 0; i < n; i++) {
        struct snapshot_files f = {
            .state = "p.state", .memory = "base.mem", .deltas = {"p.mem"}, .layer = "p.layer"};
        Cube__Vmm__V1__SnapshotDone done;
        struct err e = {0};
        struct guest g;
        int fd;

        forget_files();
        copy_file(in_tmp("base.layer"), in_tmp("p.layer"));
        guest_spawn(&g, GUEST_MIB, 1);
        restore_and_ask(&g, base_files("p.layer"), NULL, &fd);
        CHECK(!strcmp(ask(fd, "dirty 9"), "ok")); /* and about 1 MiB that the guest dirties by itself */
        sync();
        int64_t t0 = now_us();
        OK(guest_snapshot(&g, "p", true, false, &done, &e), e);
        series_add(&s[0], (double)done.frozen_us / 1000);
        double written = (double)(now_us() - t0) / 1000;
        double flush = sync_files();
        double durable = written + flush;
        double dd = plain_write(done.memory_bytes);
        series_add(&s[1], durable);
        series_add(&s[2], dd);
        series_add(&s[3], durable / dd);
        series_add(&s[5], (double)done.memory_bytes / 1048576);
        series_add(&s[6], written);
        series_add(&s[7], flush);
        guest_kill(&g);
        close(fd);
        guest_spawn(&g, GUEST_MIB, 1);
        usleep(2000);
        series_add(&s[4], restore_and_ask(&g, &f, NULL, NULL));
        guest_end(&g);
    }
    report_print("pause", s, 8, json);
}

/* The programs of this build, found from where this one lies: BUILD/bench/vmm/cube-bench-vmm. */
static void find_programs(char *argv0, char **out)
{
    static char vmm[PATH_MAX], init[PATH_MAX];
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = 0;
    const char *dir = dirname(self);
    snprintf(vmm, sizeof vmm, "%.3000s/../../node/vmm/cube-vmm", dir);
    snprintf(init, sizeof init, "%.3000s/bench-vmm-init", dir);
    out[0] = argv0;
    out[1] = vmm;
    out[2] = "";
    out[3] = init;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(unsigned n, bool json);
        unsigned n;
    } benches[] = {{"vmm-restore", bench_restore, 200},
                   {"memory", bench_memory, 100},
                   {"pause", bench_pause, 200},
                   {"vmm-limits", bench_limits, 40}};
    const unsigned count = sizeof benches / sizeof benches[0];
    char *programs[4];
    bool json = false;
    unsigned n = 0, which = count;

    for (unsigned i = 0; argc > 1 && i < count; i++)
        if (!strcmp(argv[1], benches[i].name))
            which = i;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = true;
        else if (!strcmp(argv[i], "--no-working-set"))
            use_working_set = false;
        else if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
            n = (unsigned)atoi(argv[++i]);
        else
            which = count;
    }
    if (which == count) {
        fprintf(stderr,
                "usage: %s vmm-restore|memory|pause|vmm-limits [--rounds N] [--json] [--no-working-set]\n",
                argv[0]);
        return 2;
    }
    report_start();
    find_programs(argv[0], programs);
    harness_start(4, programs, "bench");
    make_template();
    benches[which].run(n ? n : benches[which].n, json);
    return 0;
}
