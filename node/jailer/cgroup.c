/* Groups for the VMs. Invariant: nothing outside our own group (named in the configuration, below the one
 * that we were started in) is ever written, except that v2 needs its controllers enabled on the way down. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PERIOD_US 100000u

enum { CPU, MEMORY, PIDS, CONTROLLERS };
static const char *const controller_name[CONTROLLERS] = {"cpu", "memory", "pids"};

/* Our group's directory for each controller; with v2 all three are the same. */
static char base[CONTROLLERS][256];
static bool unified;

/* Mount point of a v1 controller, or of v2 (controller NULL), from /proc/self/mounts. */
static bool find_mount(const char *controller, char out[128])
{
    _cleanup_fclose_ FILE *f = fopen("/proc/self/mounts", "re");
    char line[1024], dir[256], type[32], opts[512];

    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%*s %255s %31s %511s", dir, type, opts) != 3)
            continue;
        if (!controller ? strcmp(type, "cgroup2") : strcmp(type, "cgroup"))
            continue;
        char *save = NULL;
        bool found = !controller;
        for (char *o = strtok_r(opts, ",", &save); o && !found; o = strtok_r(NULL, ",", &save))
            found = !strcmp(o, controller);
        if (found && strlen(dir) < 128) {
            strcpy(out, dir);
            return true;
        }
    }
    return false;
}

/* The group that this process is in: of a v1 controller, or of v2 (controller ""). */
static bool find_own(const char *controller, char out[256])
{
    _cleanup_fclose_ FILE *f = fopen("/proc/self/cgroup", "re");
    char line[512];

    while (f && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        char *save = NULL;
        bool found = !*controller && !names[1];
        for (char *n = strtok_r(names + 1, ",", &save); n && !found; n = strtok_r(NULL, ",", &save))
            found = !strcmp(n, controller);
        if (found && strlen(path) < 200) {
            strcpy(out, !strcmp(path, "/") ? "" : path);
            return true;
        }
    }
    return false;
}

/* v2 allows controllers for children only in a group without processes: ours move to a leaf of their own. */
static int enable_controllers(const char *dir)
{
    char path[300], leaf[300], procs[4096];

    snprintf(path, sizeof path, "%s/cgroup.subtree_control", dir);
    if (textfile_write(path, "+cpu +memory +pids") == 0)
        return 0;
    if (errno != EBUSY)
        return -1;
    snprintf(leaf, sizeof leaf, "%s/cube-daemons", dir);
    if (mkdir(leaf, 0755) < 0 && errno != EEXIST)
        return -1;
    strcat(leaf, "/cgroup.procs");
    char list[300];
    snprintf(list, sizeof list, "%s/cgroup.procs", dir);
    if (textfile_read(list, procs, sizeof procs) < 0)
        return -1;
    char *save = NULL;
    for (char *p = strtok_r(procs, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
        textfile_write(leaf, p);
    return textfile_write(path, "+cpu +memory +pids");
}

static bool setup_v2(const char *name)
{
    char mount[128], own[256], path[300], have[256];

    if (!find_mount(NULL, mount) || !find_own("", own))
        return false;
    snprintf(path, sizeof path, "%.120s%.120s/cgroup.controllers", mount, own);
    if (textfile_read(path, have, sizeof have) < 0 || !strstr(have, "memory") || !strstr(have, "cpu") ||
        !strstr(have, "pids"))
        return false;
    snprintf(path, sizeof path, "%.120s%.120s", mount, own);
    /* A jailer that is started again finds itself in the leaf that an earlier one made. */
    char *leaf = strstr(path, "/cube-daemons");
    if (leaf && !leaf[strlen("/cube-daemons")])
        *leaf = 0;
    if (enable_controllers(path) < 0)
        return false;
    for (int i = 0; i < CONTROLLERS; i++)
        snprintf(base[i], sizeof base[i], "%.200s/%.40s", path, name);
    if (mkdir(base[0], 0755) < 0 && errno != EEXIST)
        return false;
    return enable_controllers(base[0]) == 0;
}

int cgroup_setup(const char *name, struct err *e)
{
    char mount[128], own[256];

    unified = setup_v2(name);
    if (unified)
        return 0;
    for (int i = 0; i < CONTROLLERS; i++) {
        if (!find_mount(controller_name[i], mount) || !find_own(controller_name[i], own))
            return err_set(e, ERR_UNSUPPORTED, "no cgroup hierarchy with the controller %s",
                           controller_name[i]);
        snprintf(base[i], sizeof base[i], "%.100s%.100s/%.40s", mount, own, name);
        if (mkdir(base[i], 0755) < 0 && errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "make cgroup %s", base[i]);
    }
    return 0;
}

static unsigned hierarchies(void)
{
    return unified ? 1 : CONTROLLERS;
}

static int set(int controller, const char *vm, const char *file, const char *value, struct err *e)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s/%s", base[controller], vm, file);
    return textfile_write(path, value) < 0 ? err_sys(e, ERR_INTERNAL, "write %s to %s", value, path) : 0;
}

int cgroup_limit(const char *vm, const struct limits *l, struct err *e)
{
    char v[64], quota[64];

    snprintf(v, sizeof v,
             l->memory_bytes ? "%llu"
             : unified       ? "max"
                             : "-1",
             (unsigned long long)l->memory_bytes);
    if (set(MEMORY, vm, unified ? "memory.max" : "memory.limit_in_bytes", v, e) < 0)
        return -1;
    snprintf(v, sizeof v, l->pids ? "%u" : "max", l->pids);
    if (set(PIDS, vm, "pids.max", v, e) < 0)
        return -1;
    snprintf(quota, sizeof quota,
             l->cpu_milli ? "%llu"
             : unified    ? "max"
                          : "-1",
             (unsigned long long)l->cpu_milli * PERIOD_US / 1000);
    if (unified) {
        snprintf(v, sizeof v, "%.40s %u", quota, PERIOD_US);
        return set(CPU, vm, "cpu.max", v, e);
    }
    if (set(CPU, vm, "cpu.cfs_quota_us", quota, e) == 0)
        return 0;
    if (e->sys != EINVAL)
        return -1;
    /* A group above allows less than this. v1 refuses it where v2 applies the least: no limit of its own
     * then. */
    *e = (struct err){0};
    return set(CPU, vm, "cpu.cfs_quota_us", "-1", e);
}

int cgroup_make(const char *vm, const struct limits *l, struct err *e)
{
    char path[400];

    for (unsigned i = 0; i < hierarchies(); i++) {
        snprintf(path, sizeof path, "%.255s/%.40s", base[i], vm);
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "make cgroup %s", path);
    }
    return cgroup_limit(vm, l, e);
}

int cgroup_enter(const char *vm, pid_t pid, struct err *e)
{
    char v[16];

    snprintf(v, sizeof v, "%d", pid);
    for (unsigned i = 0; i < hierarchies(); i++)
        if (set((int)i, vm, "cgroup.procs", v, e) < 0)
            return -1;
    return 0;
}

static uint64_t number_after(const char *text, const char *word)
{
    const char *p = strstr(text, word);
    return p ? strtoull(p + strlen(word), NULL, 10) : 0;
}

/* `oom_kill` counts kills in the group by whatever OOM killer; `oom` (v2) and `failcnt` (v1) tell whether the
 * group met its own limit (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst). */
bool cgroup_oom(const char *vm, bool *own_limit)
{
    char path[400], text[512];

    snprintf(path, sizeof path, "%s/%s/%s", base[MEMORY], vm,
             unified ? "memory.events" : "memory.oom_control");
    if (textfile_read(path, text, sizeof text) < 0)
        return false;
    bool killed = number_after(text, "oom_kill ") > 0;
    *own_limit = number_after(text, "oom ") > 0;
    if (!unified) {
        snprintf(path, sizeof path, "%s/%s/memory.failcnt", base[MEMORY], vm);
        *own_limit = textfile_read(path, text, sizeof text) > 0 && strtoull(text, NULL, 10) > 0;
    }
    return killed;
}

bool cgroup_drop(const char *vm)
{
    char path[400];
    bool gone = true;

    for (unsigned i = 0; i < hierarchies(); i++) {
        snprintf(path, sizeof path, "%.255s/%.40s", base[i], vm);
        if (rmdir(path) < 0 && errno != ENOENT)
            gone = false;
    }
    return gone;
}

void cgroup_teardown(void)
{
    for (unsigned i = 0; i < hierarchies(); i++)
        if (rmdir(base[i]) < 0 && errno != ENOENT)
            log_warn("cgroup %s stays: %s", base[i], strerror(errno));
}
