/* Messages in JSON and binary form: what is accepted, what is refused, and that both decode to the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "guest/envd/messages.h"

static struct arena arena;

static const char *json(const struct message *m, const char *text, void *out)
{
    return codec_decode(CODEC_JSON, m, text, strlen(text), out, &arena);
}

static void test_start_json(void **state)
{
    struct msg_start s;
    assert_null(
        json(&msg_start,
             " {\"process\":{\"cmd\":\"/bin/"
             "sh\",\"args\":[\"-c\",\"\\u00e9\\ud83d\\ude00\\n\"],\"envs\":{\"A\":\"b\"},\"cwd\":null,"
             "\"new\":[{\"x\":1.5e3}]},\"pty\":{\"size\":{\"cols\":\"80\",\"rows\":24}},\"stdin\":false,"
             "\"tag\":\"t\"} ",
             &s));
    assert_string_equal(s.process.cmd, "/bin/sh");
    assert_int_equal(s.process.args.n, 2);
    assert_string_equal(s.process.args.v[1], "\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_string_equal(s.process.envs.v[0].key, "A");
    assert_false(s.process.has_cwd);
    assert_true(s.has_pty && s.pty.size.cols == 80 && s.pty.size.rows == 24);
    assert_true(s.has_stdin && !s.stdin_on && s.has_tag);
    assert_string_equal(s.process.cwd, "");
}

static void test_start_binary(void **state)
{
    struct buf b = {0};
    struct msgw w;
    struct msg_start s;
    const char *args[] = {"-c", "x"};
    struct pair env = {"A", "b"};
    msgw_start(&w, CODEC_PROTO, &b);
    msgw_open(&w, "process", 1);
    msgw_str(&w, "cmd", 1, "/bin/sh");
    msgw_strings(&w, "args", 2, args, 2);
    msgw_map(&w, "envs", 3, &env, 1);
    msgw_close(&w);
    msgw_str(&w, "tag", 3, "t");
    msgw_bool(&w, "stdin", 4, false);
    msgw_u32(&w, "later", 100, 7);
    msgw_end(&w);
    assert_null(codec_decode(CODEC_PROTO, &msg_start, b.data, b.len, &s, &arena));
    assert_string_equal(s.process.cmd, "/bin/sh");
    assert_int_equal(s.process.args.n, 2);
    assert_string_equal(s.process.envs.v[0].value, "b");
    assert_true(s.has_stdin && !s.stdin_on && s.has_tag && !s.has_pty);
    for (size_t cut = 1; cut < b.len;
         cut++) /* never reads behind the end; a cut in a field is an error or a shorter message */
        codec_decode(CODEC_PROTO, &msg_start, b.data, cut, &s, &arena);
    buf_free(&b);
}

static void test_refused_json(void **state)
{
    static const char *const cases[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"path\":1}",
        "{\"path\":\"a\",\"path\":\"b\"}",
        "{\"path\":\"\\ud800\"}",
        "{\"path\":\"\xff\"}",
        "{\"path\":\"\xc0\xaf\"}",
        "{\"path\":\"a\\u0000\"}",
        "{} x",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":tru}",
        "{\"path\":\"\t\"}",
        "{\"path\" \"x\"}",
        "{\"path\":\"x\",}",
    };
    struct msg_path p;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        assert_non_null(json(&msg_path, cases[i], &p));
    char deep[4096];
    memset(deep, '[', sizeof(deep));
    memcpy(deep, "{\"x\":", 5);
    assert_non_null(codec_decode(CODEC_JSON, &msg_path, deep, sizeof(deep), &p, &arena));
}

static void test_enums_and_bytes(void **state)
{
    struct msg_signal s;
    struct msg_send_input i;
    assert_null(json(&msg_signal, "{\"process\":{\"pid\":5},\"signal\":\"SIGNAL_SIGKILL\"}", &s));
    assert_int_equal(s.signal, 9);
    assert_null(json(&msg_signal, "{\"signal\":15}", &s));
    assert_int_equal(s.signal, 15);
    assert_non_null(json(&msg_signal, "{\"signal\":\"SIGNAL_NONE\"}", &s));
    assert_null(json(&msg_send_input, "{\"input\":{\"stdin\":\"-_8\"}}", &i));
    assert_int_equal(i.input.in.n, 2);
    assert_memory_equal(i.input.in.p, "\xfb\xff", 2);
    assert_non_null(json(&msg_send_input, "{\"input\":{\"stdin\":\"a\"}}", &i));
}

static void test_base64(void **state)
{
    unsigned char in[300], back[310];
    char out[401];
    for (size_t n = 0; n < sizeof(in); n++) {
        for (size_t i = 0; i < n; i++)
            in[i] = (unsigned char)(i * 37 + n);
        base64_encode(in, n, out);
        assert_int_equal(base64_decode(out, base64_length(n), (char *)back), (long)n);
        assert_memory_equal(in, back, n);
    }
    base64_encode("foob", 4, out);
    assert_memory_equal(out, "Zm9vYg==", 8);
}

static void test_json_out(void **state)
{
    struct buf b = {0};
    struct msgw w;
    msgw_start(&w, CODEC_JSON, &b);
    msgw_str(&w, "s", 1, "plain");
    msgw_str(&w, "q", 2, "a\"\\\n\xff");
    msgw_i64(&w, "i", 3, INT64_MIN);
    msgw_u32(&w, "u", 4, 0);
    msgw_time(&w, "t", 5, 86400, 5);
    msgw_end(&w);
    assert_string_equal(
        buf_cstr(&b),
        "{\"s\":\"plain\",\"q\":\"a\\\"\\\\\\n\xef\xbf\xbd\",\"i\":\"-9223372036854775808\",\"u\":0,"
        "\"t\":\"1970-01-02T00:00:00.000000005Z\"}");
    buf_free(&b);
}

static int teardown(void **state)
{
    arena_free(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_start_json, teardown),
        cmocka_unit_test_teardown(test_start_binary, teardown),
        cmocka_unit_test_teardown(test_refused_json, teardown),
        cmocka_unit_test_teardown(test_enums_and_bytes, teardown),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_json_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
