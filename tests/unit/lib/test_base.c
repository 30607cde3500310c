/* Behaviour of lib/base: what is written is valid, what is read is checked. */
#include "check.h"

#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/err.h"
#include "lib/base/ids.h"
#include "lib/base/jsonw.h"
#include "lib/net/jsonin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void json_has_commas_only_between(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kstr(&w, "a", "x");
    jsonw_key(&w, "b");
    jsonw_arr(&w);
    jsonw_int(&w, -1);
    jsonw_obj(&w);
    jsonw_obj_end(&w);
    jsonw_uint(&w, UINT64_MAX);
    jsonw_arr_end(&w);
    jsonw_kbool(&w, "c", false);
    jsonw_key(&w, "d");
    jsonw_double(&w, NAN, 2);
    jsonw_key(&w, "e");
    jsonw_double(&w, 1.005, 1);
    jsonw_key(&w, "f");
    jsonw_base64(&w, "\xff\xee\x01\x02", 4);
    jsonw_key(&w, "t");
    jsonw_time_ms(&w, 1700000000123);
    jsonw_key(&w, "u");
    jsonw_time_ms(&w, -1);
    jsonw_obj_end(&w);
    assert_string_equal(
        buf_cstr(&b),
        "{\"a\":\"x\",\"b\":[-1,{},18446744073709551615],\"c\":false,\"d\":null,\"e\":1.0,"
        "\"f\":\"/+4BAg==\",\"t\":\"2023-11-14T22:13:20.123Z\",\"u\":\"1969-12-31T23:59:59.999Z\"}");
}

static void json_times_are_those_of_the_c_library(void **state)
{
    static const int64_t edges[] = {0,
                                    -1,
                                    951782399999,
                                    951782400000,
                                    951868800000,
                                    4107542400000,
                                    -2203891200000,
                                    -62135596800000,
                                    253402300799999};
    for (size_t i = 0; i < 20000 + sizeof edges / sizeof *edges; i++) {
        uint64_t random;
        random_bytes(&random, sizeof random);
        /* years 1 to 9999 */
        int64_t ms = -62135596800000 + (int64_t)(random % 315537897600000);
        if (i < sizeof edges / sizeof *edges)
            ms = edges[i];
        int64_t part = (ms % 1000 + 1000) % 1000;
        time_t s = (time_t)((ms - part) / 1000);
        struct tm tm;
        assert_non_null(gmtime_r(&s, &tm));
        char want[64];
        snprintf(want, sizeof want, "\"%04d-%02d-%02dT%02d:%02d:%02d.%03dZ\"", tm.tm_year + 1900,
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)part);
        _cleanup_buf_ struct buf b = {0};
        struct jsonw w = jsonw_start(&b);
        jsonw_time_ms(&w, ms);
        assert_string_equal(buf_cstr(&b), want);
    }
    static const int64_t outside[] = {253402300800000, -62135596800001, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        _cleanup_buf_ struct buf b = {0};
        struct jsonw w = jsonw_start(&b);
        jsonw_time_ms(&w, outside[i]);
        assert_string_equal(buf_cstr(&b), "null");
    }
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_int(&w, INT64_MIN);
    assert_string_equal(buf_cstr(&b), "-9223372036854775808");
}

static void json_strings_are_valid_whatever_comes_in(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"q\"b\\n\n\x01\x7f", "\"q\\\"b\\\\n\\n\\u0001\\u007f\""},
        {"\xc3\xa4\xf0\x9f\x98\x80", "\"\xc3\xa4\xf0\x9f\x98\x80\""},
        {"\xe2\x80\xa8\xe2\x80\xa9\xc2\x85", "\"\\u2028\\u2029\\u0085\""},
        {"a\xff"
         "b",
         "\"a\xef\xbf\xbd"
         "b\""},
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xe2\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* cut short */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        _cleanup_buf_ struct buf b = {0};
        struct jsonw w = jsonw_start(&b);
        jsonw_str(&w, cases[i].in);
        assert_string_equal(buf_cstr(&b), cases[i].out);
        _cleanup_json_ json_t *v = jsonin_load(b.data, b.len, 1000, NULL);
        assert_non_null(v);
    }
}

static void ids_have_their_shape(void **state)
{
    char id[SANDBOX_ID_LEN + 1], again[SANDBOX_ID_LEN + 1], uuid[37];
    id_sandbox(id, 'c');
    id_sandbox(again, 'c');
    assert_true(id_sandbox_valid(id, strlen(id)));
    assert_int_equal(id[1], 'c');
    assert_string_not_equal(id, again);
    assert_false(id_sandbox_valid("iABCDEFGHIJKLMNOPQRST", 21));
    assert_false(id_sandbox_valid(id, 20));
    assert_false(id_sandbox_valid("../../../../etc/passw", 21));
    id_uuid(uuid);
    assert_int_equal(strlen(uuid), 36);
    assert_int_equal(uuid[14], '4');
    assert_non_null(strchr("89ab", uuid[19]));
    int seen[256] = {0};
    char many[3601];
    id_random(many, 3600);
    for (size_t i = 0; i < 3600; i++)
        seen[(unsigned char)many[i]]++;
    for (const char *c = "abcdefghijklmnopqrstuvwxyz0123456789"; *c; c++)
        assert_in_range(seen[(unsigned char)*c], 40, 180); /* mean 100, sd 10 */
}

static void hex_is_strict(void **state)
{
    uint8_t raw[3];
    char text[7];
    assert_true(hex_decode("00fFa1", raw, 3));
    hex_encode(raw, 3, text);
    assert_string_equal(text, "00ffa1");
    assert_false(hex_decode("00ff", raw, 3));
    assert_false(hex_decode("00ffa", raw, 3));
    assert_false(hex_decode("00ffa1b", raw, 3));
    assert_false(hex_decode("00ffg1", raw, 3));
    assert_true(secret_equal("abc", "abc", 3));
    assert_false(secret_equal("abc", "abd", 3));
    assert_true(secret_equal("abc", "abd", 2));
}

static void errors_keep_code_and_cause(void **state)
{
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_CAPACITY, "placing %s", "x\ny"), -1);
    assert_string_equal(e.msg, "placing x y");
    err_wrap(&e, "creating");
    assert_string_equal(e.msg, "creating: placing x y");
    assert_int_equal(e.code, ERR_CAPACITY);
    for (int c = 0; c < ERR_CODES; c++)
        assert_int_equal(err_code_parse(err_code_name((enum err_code)c)), c);
    assert_int_equal(err_code_parse("no such"), ERR_INTERNAL);
}

static void clocks_run_forward(void **state)
{
    int64_t a = clock_mono_us(), b = clock_boot_ms();
    assert_true(clock_mono_us() >= a && clock_boot_ms() >= b);
    assert_true(clock_realtime_ms() > 1700000000000);
}

static json_t *load(const char *text, struct err *e)
{
    return jsonin_load_object(text, strlen(text), 4096, e);
}

static void json_input_is_bounded(void **state)
{
    struct err e = {0};
    char deep[200];
    memset(deep, '[', sizeof deep);
    assert_null(jsonin_load(deep, sizeof deep, 4096, &e));
    assert_non_null(strstr(e.msg, "nested deeper"));
    assert_null(jsonin_load("{}", 2, 1, &e));
    assert_int_equal(e.code, ERR_TOO_LARGE);
    static const char *const bad[] = {
        "", "{", "{\"a\":1,\"a\":2}", "{} x", "[1,]", "{\"a\":\"\\u0000\"}", "\"\xff\"", "[]", "1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct err){0};
        assert_null(load(bad[i], &e));
        assert_int_equal(e.code, ERR_INVALID);
    }
}

static void json_getters_say_what_is_wrong(void **state)
{
    struct err e = {0};
    _cleanup_json_ json_t *v =
        load("{\"s\":\"text\",\"n\":5,\"f\":5.5,\"w\":5.0,\"z\":null,\"a\":[1,2],\"b\":true,\"o\":{}}", &e);
    const char *s = NULL;
    int64_t n = 0;
    bool b = false;
    const json_t *child;
    assert_int_equal(jsonin_str(v, "s", 10, &s, &e), 1);
    assert_string_equal(s, "text");
    assert_int_equal(jsonin_str(v, "s", 3, &s, &e), -1);
    assert_string_equal(e.msg, "s has 4 bytes; at most 3 are allowed");
    assert_int_equal(jsonin_str(v, "z", 3, &s, &e), 0);
    assert_int_equal(jsonin_str(v, "none", 3, &s, &e), 0);
    assert_int_equal(jsonin_str(v, "n", 3, &s, &e), -1);
    assert_string_equal(e.msg, "n must be a string, not an integer");
    assert_int_equal(jsonin_int(v, "w", 0, 10, &n, &e), 1);
    assert_int_equal(n, 5);
    assert_int_equal(jsonin_int(v, "f", 0, 10, &n, &e), -1);
    assert_int_equal(jsonin_int(v, "n", 6, 10, &n, &e), -1);
    assert_string_equal(e.msg, "n is 5; it must be from 6 to 10");
    assert_int_equal(jsonin_bool(v, "b", &b, &e), 1);
    assert_true(b);
    assert_int_equal(jsonin_arr(v, "a", 1, &child, &e), -1);
    assert_int_equal(jsonin_arr(v, "a", 2, &child, &e), 1);
    assert_int_equal(jsonin_obj(v, "o", &child, &e), 1);
    assert_int_equal(jsonin_need_str(v, "none", 3, &s, &e), -1);
    assert_string_equal(e.msg, "none is missing");
    assert_int_equal(jsonin_need_int(v, "n", 0, 9, &n, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_commas_only_between),
        cmocka_unit_test(json_times_are_those_of_the_c_library),
        cmocka_unit_test(json_strings_are_valid_whatever_comes_in),
        cmocka_unit_test(ids_have_their_shape),
        cmocka_unit_test(hex_is_strict),
        cmocka_unit_test(errors_keep_code_and_cause),
        cmocka_unit_test(clocks_run_forward),
        cmocka_unit_test(json_input_is_bounded),
        cmocka_unit_test(json_getters_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
