/* The jailer's groups in a unified (v2) hierarchy. A machine whose controllers are bound to v1 cannot give a
 * real one, so this is the kernel's part played by a directory: the files of /proc say that it is a cgroup2
 * mount, a new directory gets a group's files, controllers can be enabled only in a group without processes,
 * and moving a process takes it from where it was. The v1 side is tested with the real kernel
 * (tests/vmm/jailer_test.c). */
#include "node/jailer/jailer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64], own[128] = "/node";

FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);
int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __real_rmdir(const char *path);
int __wrap_rmdir(const char *path);
int __real_textfile_write(const char *path, const char *text);
int __wrap_textfile_write(const char *path, const char *text);

static void put(const char *path, const char *text)
{
    FILE *f = __real_fopen64(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const char *in(const char *rel)
{
    static char path[300];
    snprintf(path, sizeof path, "%s%s", root, rel);
    return path;
}

static const char *get(const char *rel)
{
    static char text[512];
    assert_true(textfile_read(in(rel), text, sizeof text) >= 0);
    return text;
}

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    char fake[100];
    snprintf(fake, sizeof fake, "%s.proc", root);
    if (!strcmp(path, "/proc/self/mounts")) {
        char text[200];
        snprintf(text, sizeof text, "proc /proc proc rw 0 0\ncgroup2 %s cgroup2 rw,nsdelegate 0 0\n", root);
        put(fake, text);
        return __real_fopen64(fake, mode);
    }
    if (!strcmp(path, "/proc/self/cgroup")) {
        char text[200];
        snprintf(text, sizeof text, "0::%s\n", own);
        put(fake, text);
        return __real_fopen64(fake, mode);
    }
    return __real_fopen64(path, mode);
}

static const char *const files[] = {"cgroup.procs", "cgroup.subtree_control", "cgroup.controllers",
                                    "memory.max",   "memory.events",          "pids.max",
                                    "cpu.max"};
enum { FILES = sizeof files / sizeof files[0] };

static void group_path(char out[400], const char *dir, unsigned i)
{
    snprintf(out, 400, "%.255s/%s", dir, files[i]);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    if (__real_mkdir(path, mode) < 0)
        return -1;
    for (unsigned i = 0; i < FILES; i++) {
        char file[400];
        group_path(file, path, i);
        put(file, i == 2 ? "cpuset cpu io memory hugetlb pids\n" : "");
    }
    return 0;
}

int __wrap_rmdir(const char *path)
{
    char file[400], text[64];
    group_path(file, path, 0);
    if (textfile_read(file, text, sizeof text) > 0) {
        errno = EBUSY;
        return -1;
    }
    for (unsigned i = 0; i < FILES; i++) {
        group_path(file, path, i);
        unlink(file);
    }
    return __real_rmdir(path);
}

int __wrap_textfile_write(const char *path, const char *text)
{
    char procs[400], line[64];
    const char *name = strrchr(path, '/') + 1;

    if (!strcmp(name, "cgroup.subtree_control")) {
        snprintf(procs, sizeof procs, "%.*scgroup.procs", (int)(name - path), path);
        if (textfile_read(procs, line, sizeof line) > 0) {
            errno = EBUSY;
            return -1;
        }
    }
    if (!strcmp(name, "cgroup.procs")) { /* out of the group that the test put it in */
        put(in("/node/cgroup.procs"), "");
        put(path, text);
        return 0;
    }
    if (access(path, F_OK) == 0)
        put(path, ""); /* a control file holds what was written last */
    return __real_textfile_write(path, text);
}

static int fresh(void **state)
{
    (void)state;
    strcpy(root, "/tmp/V-cgroup-XXXXXX");
    assert_non_null(mkdtemp(root));
    strcpy(own, "/node");
    return __wrap_mkdir(in("/node"), 0755);
}

static int gone(void **state)
{
    (void)state;
    char cmd[160];
    snprintf(cmd, sizeof cmd, "rm -rf '%s' '%s.proc'", root, root);
    return system(cmd);
}

static void a_vm_gets_its_limits(void **state)
{
    (void)state;
    struct err e = {0};
    struct limits l = {.memory_bytes = 400u << 20, .cpu_milli = 1500, .pids = 64};
    put(in("/node/cgroup.procs"), "17\n"); /* this process is in the group that it was started in */
    assert_int_equal(cgroup_setup("unit-test", &e), 0);
    assert_string_equal(get("/node/cube-daemons/cgroup.procs"), "17");
    assert_string_equal(get("/node/cgroup.subtree_control"), "+cpu +memory +pids");
    assert_string_equal(get("/node/unit-test/cgroup.subtree_control"), "+cpu +memory +pids");
    assert_int_equal(cgroup_make("vm-1", &l, &e), 0);
    assert_string_equal(get("/node/unit-test/vm-1/memory.max"), "419430400");
    assert_string_equal(get("/node/unit-test/vm-1/pids.max"), "64");
    assert_string_equal(get("/node/unit-test/vm-1/cpu.max"), "150000 100000");
    assert_int_equal(cgroup_limit("vm-1", &(struct limits){0}, &e), 0);
    assert_string_equal(get("/node/unit-test/vm-1/memory.max"), "max");
    assert_string_equal(get("/node/unit-test/vm-1/cpu.max"), "max 100000");
    assert_int_equal(cgroup_enter("vm-1", 4711, &e), 0);
    assert_string_equal(get("/node/unit-test/vm-1/cgroup.procs"), "4711");
    assert_false(cgroup_drop("vm-1")); /* something is in it */
    bool own_limit = true;
    put(in("/node/unit-test/vm-1/memory.events"), "low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\n");
    assert_false(cgroup_oom("vm-1", &own_limit));
    put(in("/node/unit-test/vm-1/memory.events"), "low 0\nhigh 0\nmax 3\noom 0\noom_kill 1\n");
    assert_true(cgroup_oom("vm-1", &own_limit) && !own_limit); /* the host's memory was short */
    put(in("/node/unit-test/vm-1/memory.events"), "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n");
    assert_true(cgroup_oom("vm-1", &own_limit) && own_limit);
    put(in("/node/unit-test/vm-1/cgroup.procs"), "");
    assert_true(cgroup_drop("vm-1"));
    assert_true(cgroup_drop("vm-1")); /* gone already: fine */
}

/* A jailer that is started again is in the leaf that the first one made, and finds the same groups. */
static void a_second_jailer_finds_the_same_groups(void **state)
{
    (void)state;
    struct err e = {0};
    put(in("/node/cgroup.procs"), "17\n");
    assert_int_equal(cgroup_setup("unit-test", &e), 0);
    assert_int_equal(cgroup_make("vm-1", &(struct limits){.pids = 1}, &e), 0);
    strcpy(own, "/node/cube-daemons");
    assert_int_equal(cgroup_setup("unit-test", &e), 0);
    assert_int_equal(cgroup_limit("vm-1", &(struct limits){.pids = 2}, &e), 0);
    assert_string_equal(get("/node/unit-test/vm-1/pids.max"), "2");
    assert_true(cgroup_drop("vm-1"));
    cgroup_teardown();
    assert_int_equal(access(in("/node/unit-test"), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_vm_gets_its_limits, fresh, gone),
        cmocka_unit_test_setup_teardown(a_second_jailer_finds_the_same_groups, fresh, gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
