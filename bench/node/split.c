/* Owns the reading of /proc for `density`. Invariant: each thread counts for one kind, and the kinds add up
 * to the machine's busy time: what no thread was charged with (interrupts, the idle loop's own work) is a
 * kind too.
 *
 * /proc/stat's user and system columns are not used: with CONFIG_TICK_CPU_ACCOUNTING they count whom a clock
 * tick met, and work that is woken by timers is met too often. Its idle column is measured, as
 * /proc/<pid>/task/<tid>/schedstat is. */
#include "bench/node/split.h"

#include "lib/base/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The name of a thread as /proc/<pid>/task/<tid>/comm says it, by its beginning; the process's name for kinds
 * that are a whole process. */
static const struct {
    const char *metric, *process, *thread;
} kinds[] = {{"vmm-vcpu", "cube-vmm", "vcpu"}, {"vmm-io", "cube-vmm", "io"}, {"vmm-disk", "cube-vmm", "disk"},
             {"vmm-control", "cube-vmm", ""},  {"node", "cube-node", ""},    {"jailer", "cube-jailer", ""},
             {"bench", "cube-bench", ""},      {"kvm-threads", "kvm", ""},   {"host-damon", "kdamond", ""},
             {"kernel-threads", NULL, ""},     {"other-processes", "", ""}};
_Static_assert(sizeof kinds / sizeof *kinds == SPLIT_KINDS, "a row per kind");

static bool read_text(const char *path, char *out, size_t max)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, max - 1, f) : 0;
    out[n] = 0;
    out[strcspn(out, "\n")] = 0;
    if (f)
        fclose(f);
    return n > 0;
}

static unsigned kind_of(const char *process, bool of_kernel, const char *thread)
{
    for (unsigned i = 0; i < SPLIT_KINDS; i++) {
        const char *p = kinds[i].process;
        bool mine = !p ? of_kernel : strncmp(process, p, strlen(p)) == 0;
        if (mine && strncmp(thread, kinds[i].thread, strlen(kinds[i].thread)) == 0)
            return i;
    }
    return SPLIT_KINDS - 1;
}

static double wakes_of(const char *pid, const char *tid)
{
    char path[96], line[128];
    double wakes = 0;
    snprintf(path, sizeof path, "/proc/%.20s/task/%.20s/status", pid, tid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "voluntary_ctxt_switches: %lf", &wakes) == 1)
            break;
    if (f)
        fclose(f);
    return wakes;
}

static void read_process(struct split *s, const char *pid)
{
    char path[96], process[64], text[128];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    bool of_kernel = !read_text(path, text, sizeof text);
    snprintf(path, sizeof path, "/proc/%.20s/comm", pid);
    if (!read_text(path, process, sizeof process))
        return;
    snprintf(path, sizeof path, "/proc/%.20s/task", pid);
    DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));) {
        char thread[64];
        unsigned long long ns;
        snprintf(path, sizeof path, "/proc/%.20s/task/%.20s/comm", pid, x->d_name);
        if (!isdigit((unsigned char)x->d_name[0]) || !read_text(path, thread, sizeof thread))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/task/%.20s/schedstat", pid, x->d_name);
        if (!read_text(path, text, sizeof text) || sscanf(text, "%llu", &ns) != 1)
            continue;
        unsigned kind = kind_of(process, of_kernel, thread);
        s->ns[kind] += (double)ns;
        if (kind == 0)
            s->vcpu_wakes += wakes_of(pid, x->d_name);
    }
    if (d)
        closedir(d);
}

/* Idle seconds of all CPUs. */
static double idle_seconds(void)
{
    double idle = 0, iowait = 0;
    FILE *f = fopen("/proc/stat", "re");
    if (!f || fscanf(f, "cpu %*u %*u %*u %lf %lf", &idle, &iowait) != 2)
        exit(1);
    fclose(f);
    return (idle + iowait) / (double)sysconf(_SC_CLK_TCK);
}

static void stamp(struct split *s)
{
    s->at_us = clock_mono_us();
    s->idle_s = idle_seconds();
}

void split_read(struct split *s, bool first)
{
    *s = (struct split){0};
    if (!first)
        stamp(s);
    DIR *d = opendir("/proc");
    for (struct dirent *x; d && (x = readdir(d));)
        if (isdigit((unsigned char)x->d_name[0]))
            read_process(s, x->d_name);
    if (d)
        closedir(d);
    if (first)
        stamp(s);
}

void split_rates(const struct split *from, const struct split *to, struct split_rates *out)
{
    double s = (double)(to->at_us - from->at_us) / 1e6, known = 0;
    out->busy = (double)sysconf(_SC_NPROCESSORS_ONLN) - (to->idle_s - from->idle_s) / s;
    for (unsigned i = 0; i < SPLIT_KINDS; i++) {
        out->cores[i] = (to->ns[i] - from->ns[i]) / 1e9 / s;
        known += out->cores[i];
    }
    out->cores[SPLIT_KINDS] = out->busy - known;
    out->vcpu_wakes = (to->vcpu_wakes - from->vcpu_wakes) / s;
}

double split_report(const struct split_rates *before, const struct split_rates *now,
                    struct series out[SPLIT_KINDS + 1])
{
    double all = 0;
    for (unsigned i = 0; i <= SPLIT_KINDS; i++) {
        double more = now->cores[i] - before->cores[i];
        bool of_host = i < SPLIT_KINDS && kinds[i].process && strcmp(kinds[i].process, "kdamond") == 0;
        all += of_host ? 0 : more;
        out[i] = (struct series){.metric = i < SPLIT_KINDS ? kinds[i].metric : "interrupts-and-rest",
                                 .unit = "cores"};
        series_add(&out[i], more);
    }
    return all;
}
