/* The end of a process and of a loop while threads are at work: look-ups of names, and workers that hash,
 * with what OpenSSL takes down in exit(). */
#include "check.h"

#include "lib/net/crypto.h"
#include "lib/net/fiber.h"
#include "lib/net/loop.h"
#include "lib/net/resolve.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 3

static struct loop *L;
static atomic_int begun;
static atomic_bool stuck;

static int hash(void *arg)
{
    uint8_t out[32];
    char hex[65];
    atomic_fetch_add(&begun, 1);
    for (int i = 0; i < 20; i++) {
        hmac_sha256("key", 3, arg, 4096, out);
        sha256_hex(arg, 4096, hex);
    }
    return 0;
}

static void work(void *arg)
{
    for (;;)
        fiber_offload(hash, arg);
}

static void on_time(struct loop_timer *t)
{
    (void)t;
    loop_stop(L);
}

/* A daemon whose workers hash and that is told to end. */
static void end_under_work(int64_t after_ms)
{
    static char bytes[4096];
    static struct loop_timer timer = {.fire = on_time};
    struct err e = {0};
    L = loop_new();
    if (!L || fiber_start(L, WORKERS, &e) < 0)
        exit(2);
    for (int i = 0; i < 2 * WORKERS; i++)
        fiber_spawn(work, bytes);
    loop_timer_start(L, &timer, after_ms);
    loop_run(L);
    if (!fiber_stop(60000))
        exit(3);
    int at_the_end = atomic_load(&begun);
    usleep(1000);
    if (atomic_load(&begun) != at_the_end)
        exit(4); /* somebody still works */
    loop_free(L);
    exit(0);
}

static void a_process_ends_while_its_workers_hash(void **state)
{
    enum { PROCESSES = 24 };
    pid_t child[PROCESSES];
    (void)state;
    for (int i = 0; i < PROCESSES;
         i++) { /* beside each other: ThreadSanitizer lets each sleep a second in exit() */
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0)
            end_under_work(i % 6);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static int hang(void *arg)
{
    (void)arg;
    atomic_store(&stuck, true);
    pause();
    return 0;
}

static void offload_hang(void *arg)
{
    fiber_offload(hang, arg);
}

static void a_worker_that_does_not_end_is_said(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct err e = {0};
        L = loop_new();
        if (!L || fiber_start(L, 1, &e) < 0)
            _exit(2);
        fiber_spawn(offload_hang, NULL);
        while (!atomic_load(&stuck))
            usleep(1000);
        _exit(fiber_stop(10) ? 3 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void on_address(const struct sockaddr_storage *a, socklen_t len, const struct err *e, void *data)
{
    (void)a;
    (void)len;
    (void)e;
    ++*(int *)data;
    loop_stop(L);
}

static void a_loop_ends_while_names_are_looked_up(void **state)
{
    (void)state;
    int done = 0;
    for (int round = 0; round < 40; round++) {
        L = loop_new();
        assert_non_null(L);
        for (int i = 0; i < 4; i++)
            assert_non_null(resolve_start(L, "localhost:80", on_address, &done));
        if (round % 2)
            loop_run(L); /* until the first has come */
        loop_free(L);
    }
    assert_true(done >= 20);
    /* What is looked up for one loop is not hurt by the end of another. */
    struct loop *other = loop_new();
    assert_non_null(other);
    assert_non_null(resolve_start(other, "localhost:80", on_address, &done));
    L = loop_new();
    assert_non_null(resolve_start(L, "localhost:80", on_address, &done));
    loop_free(other);
    done = 0;
    loop_run(L);
    assert_int_equal(done, 1);
    loop_free(L);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_ends_while_its_workers_hash),
        cmocka_unit_test(a_worker_that_does_not_end_is_said),
        cmocka_unit_test(a_loop_ends_while_names_are_looked_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
