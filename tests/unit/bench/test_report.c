/* The figures of a report: percentiles of known series, and an object of the agreed shape. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/report.h"
#include "lib/net/jsonin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void percentiles_are_values_of_the_series(void **state)
{
    struct series s = {.metric = "m", .unit = "ms"};
    assert_true(series_percentile(&s, 0.5) == 0);
    for (int i = 100; i >= 0; i--)
        series_add(&s, i);
    assert_true(series_percentile(&s, 0.5) == 50);
    assert_true(series_percentile(&s, 0.99) == 99);
    assert_true(series_percentile(&s, 1) == 100);
    free(s.v);
    struct series one = {.metric = "m", .unit = "ms"};
    series_add(&one, 7);
    assert_true(series_percentile(&one, 0.99) == 7);
    free(one.v);
}

static void the_object_has_the_agreed_shape(void **state)
{
    struct series s[3] = {
        {.metric = "a", .unit = "µs"}, {.metric = "empty", .unit = "ms"}, {.metric = "b", .unit = "x"}};
    char text[4096] = "";
    series_add(&s[0], 1.5);
    series_add(&s[2], 2);
    int kept = dup(STDOUT_FILENO), fds[2];
    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    dup2(fds[1], STDOUT_FILENO);
    report_print("name \"quoted\"", s, 3, true);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(fds[1]);
    close(kept);
    ssize_t n = read(fds[0], text, sizeof text - 1);
    close(fds[0]);
    assert_true(n > 0);
    struct err e = {0};
    _cleanup_json_ json_t *v = jsonin_load_object(text, (size_t)n, sizeof text, &e);
    assert_non_null(v);
    const json_t *env, *results;
    const char *name;
    bool busy;
    assert_int_equal(jsonin_need_str(v, "name", 100, &name, &e), 0);
    assert_string_equal(name, "name \"quoted\"");
    assert_int_equal(jsonin_bool(v, "busy", &busy, &e), 1);
    assert_int_equal(jsonin_obj(v, "environment", &env, &e), 1);
    assert_true(json_integer_value(json_object_get(env, "cores")) > 0);
    assert_int_equal(jsonin_arr(v, "results", 10, &results, &e), 1);
    assert_int_equal(json_array_size(results), 2); /* a series without a value is left out */
    assert_true(json_number_value(json_object_get(json_array_get(results, 0), "p50")) == 1.5);
    free(s[0].v);
    free(s[2].v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(percentiles_are_values_of_the_series),
                                       cmocka_unit_test(the_object_has_the_agreed_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
