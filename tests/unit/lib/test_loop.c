/* The event loop: timers in order and never early, deferred calls, foreign descriptors, posts from threads,
 * listening. */
#include "check.h"

#include "lib/base/clock.h"
#include "lib/base/sockaddr.h"
#include "lib/net/loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct loop *L;

struct tick {
    struct loop_timer t;
    int64_t due_us;
    int *count;
    int *order;
    bool last;
};

static void on_tick(struct loop_timer *t)
{
    struct tick *k = (struct tick *)t;
    assert_true(clock_mono_us() >= k->due_us);
    k->order[(*k->count)++] = (int)(k->t.at_ms % 1000000); /* due times, comparable within the test */
    if (k->last)
        loop_stop(L);
}

static void start(struct tick *k, int64_t ms)
{
    k->due_us = clock_mono_us() + ms * 1000;
    loop_timer_start(L, &k->t, ms);
}

static void timers_fire_in_order_and_never_early(void **state)
{
    enum { N = 200 };
    static struct tick ticks[N];
    int order[N], count = 0;
    for (int i = 0; i < N; i++)
        ticks[i] = (struct tick){.t.fire = on_tick, .count = &count, .order = order};
    for (int i = 0; i < N; i++)
        start(&ticks[i], (i * 37) % N / 4);
    start(&ticks[3], 60); /* restarted: moves */
    loop_timer_stop(L, &ticks[5].t);
    loop_timer_stop(L, &ticks[5].t);
    ticks[3].last = true;
    loop_run(L);
    assert_int_equal(count, N - 1);
    assert_int_equal(order[N - 2], (int)(ticks[3].t.at_ms % 1000000)); /* the restarted one came last */
    for (int i = 1; i < N - 1; i++)
        assert_true(order[i] >= order[i - 1] || order[i - 1] - order[i] > 900000);
}

static int task_runs;
static struct loop_task task;

static void on_task(struct loop_task *t)
{
    if (++task_runs == 3)
        loop_stop(L);
    else
        loop_defer(L, t);
}

static void deferred_calls_run_once_each(void **state)
{
    struct loop_task never = {.run = on_task};
    task.run = on_task;
    task_runs = 0;
    loop_defer(L, &never);
    loop_defer(L, &task);
    loop_defer(L, &task);
    loop_defer_cancel(L, &never);
    loop_defer_cancel(L, &never);
    loop_run(L);
    assert_int_equal(task_runs, 3);
}

static int pipes[2][2];
static struct loop_watch *watches[2];
static int readies[2];

static void on_ready(void *data)
{
    int i = (int)(intptr_t)data;
    if (++readies[i] == 3) { /* level-triggered: nothing was read */
        loop_watch_free(watches[i]);
        watches[i] = NULL;
        if (!watches[0] && !watches[1])
            loop_stop(L);
    }
}

static void watches_are_level_triggered_and_end_when_freed(void **state)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pipe2(pipes[i], O_CLOEXEC), 0);
        watches[i] = loop_watch_read(L, pipes[i][0], on_ready, (void *)(intptr_t)i);
        assert_int_equal(write(pipes[i][1], "x", 1), 1);
    }
    loop_run(L);
    assert_int_equal(readies[0], 3);
    assert_int_equal(readies[1], 3);
    assert_int_equal(fcntl(pipes[0][0], F_GETFL) & O_NONBLOCK, 0); /* the caller's mode is his */
    int count = 0, order[1];
    struct tick k = {.t.fire = on_tick, .count = &count, .order = order, .last = true};
    start(&k, 5); /* the descriptors are still readable; nobody may be told */
    loop_run(L);
    assert_int_equal(readies[0], 3);
    for (int i = 0; i < 2; i++) {
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
}

static int posted;
static void on_post(void *data)
{
    if (++posted == 2000)
        loop_stop(L);
}

static void *poster(void *arg)
{
    for (int i = 0; i < 1000; i++)
        loop_post(L, on_post, NULL);
    return NULL;
}

static void posts_from_threads_all_arrive(void **state)
{
    pthread_t a, b;
    pthread_create(&a, NULL, poster, NULL);
    pthread_create(&b, NULL, poster, NULL);
    loop_run(L);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    assert_int_equal(posted, 2000);
}

static int got_signal;
static void on_usr1(int signo, void *data)
{
    got_signal = signo;
    loop_stop(L);
}

static void signals_arrive_in_the_loop(void **state)
{
    assert_int_equal(loop_on_signal(L, SIGUSR1, on_usr1, NULL, NULL), 0);
    assert_int_equal(loop_on_signal(L, SIGUSR2, on_usr1, NULL, NULL), 0);
    kill(getpid(), SIGUSR2);
    loop_run(L);
    assert_int_equal(got_signal, SIGUSR2);
}

static h2o_socket_t *accepted;
static void on_accepted(h2o_socket_t *sock, void *data)
{
    accepted = sock;
    loop_stop(L);
}

static void listeners_accept(void **state)
{
    struct err e = {0};
    struct loop_listener *ln = loop_listen(L, "127.0.0.1:0", false, true, on_accepted, NULL, &e);
    assert_non_null(ln);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)loop_listener_port(ln))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%d", loop_listener_port(ln));
    assert_null(loop_listen(L, taken, false, true, on_accepted, NULL, &e));
    assert_int_equal(e.sys, EADDRINUSE);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    loop_run(L);
    assert_non_null(accepted);
    h2o_socket_close(accepted);
    loop_listener_free(ln);
    close(fd);
}

static void unix_listeners_replace_only_dead_sockets(void **state)
{
    struct err e = {0};
    char address[64];
    snprintf(address, sizeof address, "unix:/tmp/L-listen-%d", getpid());
    struct loop_listener *ln = loop_listen(L, address, false, false, on_accepted, NULL, &e);
    assert_non_null(ln);
    assert_null(loop_listen(L, address, false, false, on_accepted, NULL, &e));
    loop_listener_free(ln);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage a;
    socklen_t len;
    assert_int_equal(loop_address_parse(address, &a, &len, &e), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    close(fd); /* as after kill -9: the path stays, nobody listens */
    ln = loop_listen(L, address, false, false, on_accepted, NULL, &e);
    assert_non_null(ln);
    loop_listener_free(ln);
    assert_int_equal(access(address + 5, F_OK), -1);
}

static void addresses_are_parsed_strictly(void **state)
{
    struct sockaddr_storage a;
    socklen_t len;
    static const struct {
        const char *text;
        bool local;
    } good[] = {{"127.0.0.1:80", true},
                {"127.9.9.9:0", true},
                {"0.0.0.0:65535", false},
                {"10.0.0.1:1", false},
                {"[::1]:80", true},
                {"[::]:80", false},
                {"unix:/run/x", true},
                {"[::ffff:127.0.0.1]:1", true},
                {"[::ffff:10.0.0.1]:1", false}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(loop_address_parse(good[i].text, &a, &len, NULL), 0);
        assert_int_equal(sockaddr_is_local((const struct sockaddr *)&a), good[i].local);
    }
    static const char *const bad[] = {
        "",        "127.0.0.1", "127.0.0.1:",   "127.0.0.1:x", "127.0.0.1:65536", "host:80",       "::1:80",
        "[::1:80", "unix:x",    "127.0.0.1:+1", "1.2.3:1",     "127.0.0.1: 1",    "[127.0.0.1]:1", ":80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(loop_address_parse(bad[i], &a, &len, NULL), -1);
}

int main(void)
{
    L = loop_new();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_fire_in_order_and_never_early),
        cmocka_unit_test(deferred_calls_run_once_each),
        cmocka_unit_test(watches_are_level_triggered_and_end_when_freed),
        cmocka_unit_test(posts_from_threads_all_arrive),
        cmocka_unit_test(signals_arrive_in_the_loop),
        cmocka_unit_test(listeners_accept),
        cmocka_unit_test(unix_listeners_replace_only_dead_sockets),
        cmocka_unit_test(addresses_are_parsed_strictly),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    loop_free(L);
    return failed;
}
