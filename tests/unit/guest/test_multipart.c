/* multipart/form-data: parts come out whole however the body is cut, and near-delimiters stay data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "guest/envd/multipart.h"

struct seen {
    struct multipart m;
    char text[512];
    size_t n;
};

static int on_part(void *arg)
{
    struct seen *s = arg;
    s->n += strlen(strcpy(s->text + s->n, "["));
    s->n += strlen(strcpy(s->text + s->n, s->m.name));
    s->n += strlen(strcpy(s->text + s->n, "|"));
    s->n += strlen(strcpy(s->text + s->n, s->m.filename));
    s->n += strlen(strcpy(s->text + s->n, ":"));
    return 0;
}

static int on_data(void *arg, const char *p, size_t n)
{
    struct seen *s = arg;
    memcpy(s->text + s->n, p, n);
    s->n += n;
    return 0;
}

static int on_end(void *arg)
{
    struct seen *s = arg;
    s->text[s->n++] = ']';
    return 0;
}

static bool feed(struct seen *s, const char *body, size_t n, size_t step)
{
    *s = (struct seen){.m = {.on_part = on_part, .on_data = on_data, .on_part_end = on_end}};
    s->m.arg = s;
    if (!multipart_start(&s->m, "multipart/form-data; charset=x; boundary=\"B-1\""))
        return false;
    for (size_t at = 0; at < n; at += step)
        if (multipart_feed(&s->m, body + at, n - at < step ? n - at : step) < 0)
            return false;
    s->text[s->n] = 0;
    return multipart_complete(&s->m);
}

static void test_any_split(void **state)
{
    static const char body[] =
        "preamble\r\n--B-1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a;b/%22c.txt\"\r\n"
        "Content-Type: text/plain\r\n\r\none\r\n--B-\r\n-\r\r\n--B-1 \r\nContent-Disposition: form-data; "
        "name=file\r\n\r\n"
        "\r\n--B-1\r\n\r\nx\r\n--B-1--\r\nepilogue --B-1";
    for (size_t step = 1; step < sizeof(body); step++) {
        struct seen s;
        assert_true(feed(&s, body, sizeof(body) - 1, step));
        assert_string_equal(s.text, "[file|/a;b/\"c.txt:one\r\n--B-\r\n-\r][file|:][|:x]");
    }
}

static void test_at_once(void **state)
{
    static const char body[] =
        "--B-1\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\ndata\r\n--B-1--";
    struct seen s;
    assert_true(feed(&s, body, sizeof(body) - 1, sizeof(body)));
    assert_string_equal(s.text, "[file|:data]");
}

static void test_refused(void **state)
{
    struct multipart m;
    struct seen s;
    char big[20000];
    assert_false(multipart_start(&m, "multipart/form-data"));
    assert_false(multipart_start(&m, "multipart/form-data; boundary="));
    assert_false(multipart_start(&m, "text/plain; boundary=x"));
    memset(big, 'b', sizeof(big));
    memcpy(big, "multipart/form-data; boundary=", 30);
    big[sizeof(big) - 1] = 0;
    assert_false(multipart_start(&m, big));
    memset(big, 'h', sizeof(big));
    memcpy(big, "--B-1\r\n", 7);
    assert_false(feed(&s, big, sizeof(big), 100));
    assert_non_null(s.m.bad);
    assert_false(feed(&s, "--B-1\r\nA: b\r\n\r\ncut", 19, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
