/* What a process says when a signal ends it: in a fiber, with no stack left, after a call to nowhere, by
 * abort() on a worker thread; always with the function it was in, and always by that signal. */
#include "check.h"

#include "lib/base/crash.h"
#include "lib/net/fiber.h"
#include "lib/net/jsonin.h"
#include "lib/net/loop.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char *volatile nowhere = (char *)8;
static void (*volatile no_function)(void);

__attribute__((noinline)) static void writes_nowhere(void *arg)
{
    *nowhere = 1;
}

__attribute__((noinline)) static int goes_deeper(volatile char *above)
{
    volatile char here[512];
    here[0] = *above;
    return (*above < 2 ? goes_deeper(here) : 0) + here[0];
}

__attribute__((noinline)) static void has_no_stack(void *arg)
{
    char c = 0;
    goes_deeper(&c);
}

__attribute__((noinline)) static void calls_nowhere(void *arg)
{
    no_function();
    *nowhere = 2; /* so that the call is no jump */
}

__attribute__((noinline)) static int gives_up(void *arg)
{
    abort();
}

static void gives_up_on_worker(void *arg)
{
    fiber_offload(gives_up, NULL);
}

/* Runs it as a fiber of a process of its own; returns how that ended and what it said. */
static int run(void (*fiber)(void *arg), const char *file, char said[16384])
{
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        for (int s = 1; s < 32; s++)
            signal(s, SIG_DFL); /* cmocka has its own */
        if (file)
            setenv("CUBE_CRASH_FILE", file, 1);
        else
            unsetenv("CUBE_CRASH_FILE");
        crash_init("test");
        struct loop *l = loop_new();
        struct err e = {0};
        if (fiber_start(l, 1, &e) < 0)
            _exit(99);
        fiber_spawn(fiber, NULL);
        loop_run(l);
        _exit(98);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t r; (r = read(out[0], said + n, 16383 - n)) > 0;)
        n += (size_t)r;
    said[n] = 0;
    close(out[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* Whether a frame of this program lies in `function` (of less than 256 bytes). */
static bool names(const char *said, void *function)
{
    struct dl_find_object found;
    assert_int_equal(_dl_find_object(function, &found), 0);
    uintptr_t at = (uintptr_t)function - found.dlfo_link_map->l_addr;
    for (const char *p = said; (p = strstr(p, program_invocation_short_name)); p++) {
        unsigned long offset;
        if (sscanf(p + strlen(program_invocation_short_name), "+0x%lx", &offset) == 1 && offset >= at &&
            offset < at + 256)
            return true;
    }
    return false;
}

static void check(void (*fiber)(void *arg), int signo, void *function)
{
    char said[16384], want[32], path[] = "/tmp/cube-test-crash-XXXXXX", kept[16384] = "";
    int file = mkstemp(path);
    assert_true(file >= 0);
    int status = run(fiber, path, said);
    ssize_t n = read(file, kept, sizeof kept - 1);
    close(file);
    unlink(path);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signo || n <= 0) {
        fputs(said, stderr);
        fail_msg("status %#x", (unsigned)status);
    }
    assert_string_equal(kept, said);
    snprintf(want, sizeof want, "ended by signal %d", signo);
    if (!strstr(said, want) || !names(said, function)) {
        fputs(said, stderr);
        fail_msg("signal %d, function %p", signo, function);
    }
    int lines = 0;
    for (char *line = said, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        json_t *v = jsonin_load(line, (size_t)(end - line), 8000, NULL);
        assert_non_null(v);
        assert_string_equal(json_string_value(json_object_get(v, "prog")), "test");
        assert_int_equal(strlen(json_string_value(json_object_get(v, "ts"))), 24);
        json_decref(v);
    }
    assert_int_equal(lines, 2);
}

static void a_wrong_address(void **state)
{
    check(writes_nowhere, SIGSEGV, writes_nowhere);
}

static void a_fiber_without_stack(void **state)
{
    check(has_no_stack, SIGSEGV, goes_deeper);
}

static void a_call_to_nowhere(void **state)
{
    check(calls_nowhere, SIGSEGV, calls_nowhere);
}

static void abort_on_a_worker(void **state)
{
    check(gives_up_on_worker, SIGABRT, gives_up);
}

static void the_file_is_never_made(void **state)
{
    char said[16384], path[64];
    snprintf(path, sizeof path, "/tmp/cube-test-crash-%d", getpid());
    int status = run(writes_nowhere, path, said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_int_equal(access(path, F_OK), -1);
    assert_non_null(strstr(said, "ended by signal 11, address 0x8, at "));
    status = run(writes_nowhere, NULL, said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && names(said, writes_nowhere));
}

int main(void)
{
    const struct CMUnitTest all[] = {cmocka_unit_test(a_wrong_address),
                                     cmocka_unit_test(a_fiber_without_stack),
                                     cmocka_unit_test(a_call_to_nowhere), cmocka_unit_test(abort_on_a_worker),
                                     cmocka_unit_test(the_file_is_never_made)};
    return cmocka_run_group_tests(all, NULL, NULL);
}
