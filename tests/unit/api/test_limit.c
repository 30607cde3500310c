/* The counters of the request limit: windows, teams, and the exchange with other instances. */
#include "api/limit.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define WINDOW 1000

static struct limit_delta last;
static int handed;

static void take(const struct limit_delta *d, void *data)
{
    (void)data;
    last = *d;
    handed++;
}

static int exchange(void)
{
    handed = 0;
    limit_deltas(take, NULL);
    return handed;
}

static void windows_begin_anew(void **state)
{
    (void)state;
    for (int i = 1; i <= 5; i++)
        assert_int_equal(limit_count("w", 10500, WINDOW).used, i);
    struct limit_result r = limit_count("w", 11001, WINDOW);
    assert_int_equal(r.used, 1);
    assert_int_equal(r.reset_s, 1);
    exchange();
}

static void looking_does_not_count(void **state)
{
    (void)state;
    assert_int_equal(limit_look("l", 15000, WINDOW).used, 0);
    limit_count("l", 15000, WINDOW);
    exchange();
    limit_learn(&last, 3);
    assert_int_equal(limit_look("l", 15400, WINDOW).used, 3);
    assert_int_equal(limit_look("l", 15400, WINDOW).used, 3);
    assert_int_equal(limit_look("l", 15400, WINDOW).reset_s, 1);
    assert_int_equal(limit_look("l", 16000, WINDOW).used, 0); /* another window */
    assert_int_equal(exchange(), 0);
}

static void others_count(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        limit_count("a", 20000, WINDOW);
    assert_int_equal(exchange(), 1);
    assert_int_equal(last.more, 3);
    assert_int_equal(exchange(), 0); /* told once */
    limit_learn(&last, 10);          /* the others have 7 */
    struct limit_result r = limit_count("a", 20000, WINDOW);
    assert_int_equal(r.used, 4 + 7);
    assert_int_equal(r.untold, 1);
    assert_int_equal(exchange(), 1);
    assert_int_equal(last.more, 1);
    assert_int_equal(last.mine, 4);
    limit_learn(&last, 12);
    assert_int_equal(limit_count("a", 20000, WINDOW).used, 5 + 8);
    exchange();
    /* What was learnt of one window says nothing of the next. */
    assert_int_equal(limit_count("a", 21000, WINDOW).used, 1);
    limit_learn(&last, 100);
    assert_int_equal(limit_count("a", 21000, WINDOW).used, 2);
    exchange();
}

static void teams_never_share(void **state)
{
    (void)state;
    char name[16];
    for (int round = 1; round <= 2; round++)
        for (int i = 0; i < 3000; i++) {
            snprintf(name, sizeof name, "team%d", i);
            assert_int_equal(limit_count(name, 30000, WINDOW).used, round);
        }
    assert_int_equal(exchange(), 3000);
}

static void *count_many(void *data)
{
    for (int i = 0; i < 100000; i++)
        limit_count("t", 40000, WINDOW);
    return data;
}

static void add_up(const struct limit_delta *d, void *data)
{
    *(uint64_t *)data += d->more;
}

static void no_count_is_lost(void **state)
{
    (void)state;
    pthread_t threads[4];
    uint64_t told = 0;
    limit_count("t", 40000, WINDOW); /* the slot is taken by one thread */
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_many, NULL), 0);
    for (int i = 0; i < 100; i++)
        limit_deltas(add_up, &told);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    limit_deltas(add_up, &told);
    assert_int_equal(told, 400001);
    assert_int_equal(limit_count("t", 40000, WINDOW).used, 400002);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_begin_anew), cmocka_unit_test(looking_does_not_count),
        cmocka_unit_test(others_count),       cmocka_unit_test(teams_never_share),
        cmocka_unit_test(no_count_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
