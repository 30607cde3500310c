/* HTTP/1.1 as bytes: heads, chunked bodies split at every position, escapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "guest/envd/http.h"

static int parse(const char *text, struct http_req *req)
{
    static char head[65536];
    size_t n = strlen(text);
    memcpy(head, text, n + 1);
    assert_int_equal(http_head_complete(head, n, 0), (long)n);
    return http_parse_head(head, n, req);
}

static void test_head(void **state)
{
    struct http_req r;
    assert_int_equal(
        parse("POST //files?path=%2Fa&x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-Y:  v \t\r\n\r\n", &r),
        0);
    assert_string_equal(r.method, "POST");
    assert_string_equal(r.path, "/files");
    assert_string_equal(r.query, "path=%2Fa&x");
    assert_string_equal(http_header(&r, "x-y"), "v");
    assert_true(r.has_length && r.length == 5 && r.keep_alive);
    assert_int_equal(parse("GET http://host/x HTTP/1.0\r\n\r\n", &r), 0);
    assert_string_equal(r.path, "/x");
    assert_false(r.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &r), 0);
    assert_true(r.keep_alive);
}

static void test_refused_heads(void **state)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/3.1\r\nHost: a\r\n\r\n", 505},
        {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\nb: c\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417},
        {"/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    };
    struct http_req r;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        assert_int_equal(parse(cases[i].text, &r), cases[i].status);
}

/* The same body must come out however the bytes are cut. */
static void test_chunked_any_split(void **state)
{
    static const char wire[] = "5;x=\"y\"\r\nhello\r\n1\r\n,\r\n006\r\n world\r\n0\r\nT: v\r\n\r\nNEXT";
    size_t n = sizeof(wire) - 1, end = n - 4;
    for (size_t step = 1; step <= n; step++) {
        struct http_req req = {.chunked = true};
        struct http_body b;
        char out[64];
        size_t got = 0, at = 0;
        http_body_start(&b, &req);
        while (!b.done && at < n) {
            const char *data;
            size_t len, avail = n - at < step ? n - at : step;
            long used = http_body_next(&b, wire + at, avail, &data, &len);
            assert_true(used >= 0);
            memcpy(out + got, data, len);
            got += len;
            at += (size_t)used;
        }
        assert_true(b.done);
        assert_int_equal(at, end);
        assert_int_equal(got, 12);
        assert_memory_equal(out, "hello, world", 12);
    }
}

static void test_broken_chunks(void **state)
{
    static const char *const cases[] = {"x\r\n", "\r\n", "1\r\nab\r\n", "1\nab", "ffffffffffffffff0\r\n",
                                        "-1\r\n"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct http_req req = {.chunked = true};
        struct http_body b;
        const char *p = cases[i], *data, *stop = p + strlen(p);
        size_t len;
        long used = 0;
        http_body_start(&b, &req);
        while (p < stop && used >= 0) {
            used = http_body_next(&b, p, (size_t)(stop - p), &data, &len);
            p += used;
        }
        assert_int_equal(used, -1);
    }
}

static void test_query(void **state)
{
    char out[32];
    bool bad = false;
    assert_true(http_query("a=1&path=%2Fx+y%2B&b", "path", out, sizeof(out), &bad));
    assert_string_equal(out, "/x y+");
    assert_true(http_query("a=1&b", "b", out, sizeof(out), &bad));
    assert_string_equal(out, "");
    assert_false(http_query("apath=1", "path", out, sizeof(out), &bad));
    assert_false(bad);
    http_query("path=%4", "path", out, sizeof(out), &bad);
    assert_true(bad);
    bad = false;
    http_query("path=%00", "path", out, sizeof(out), &bad);
    assert_true(bad);
    bad = false;
    http_query("path=0123456789012345678901234567890123456789", "path", out, sizeof(out), &bad);
    assert_true(bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_refused_heads),
        cmocka_unit_test(test_chunked_any_split),
        cmocka_unit_test(test_broken_chunks),
        cmocka_unit_test(test_query),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
