/* Routes, query strings, names and trace context: what stands between the socket and the handlers. */
#include "tests/unit/api/check.h"

#include "api/names.h"
#include "api/query.h"
#include "api/route.h"
#include "api/trace.h"

#include <stdio.h>
#include <string.h>

static enum route_id find(enum route_method m, const char *path, struct route_match *out)
{
    struct err e = {0};
    return route_match(m, path, strlen(path), out, &e) == 0 ? out->id : ROUTE_COUNT;
}

static enum err_code refusal(enum route_method m, const char *path)
{
    struct err e = {0};
    struct route_match out;
    assert_int_equal(route_match(m, path, strlen(path), &out, &e), -1);
    return e.code;
}

/* Every pattern, its parameters filled in, must find itself: no route hides another. */
static void every_route_finds_itself(void **state)
{
    for (int i = 0; i < ROUTE_COUNT; i++) {
        char path[256];
        size_t n = 0;
        for (const char *p = routes[i].pattern; *p;) {
            if (*p == '{') {
                n += (size_t)snprintf(path + n, sizeof path - n, "x1");
                p = strchr(p, '}') + 1;
            } else {
                path[n++] = *p++;
            }
        }
        path[n] = '\0';
        struct route_match m;
        assert_int_equal(find(routes[i].method, path, &m), i);
    }
}

static void table_is_well_formed(void **state)
{
    for (int i = 0; i < ROUTE_COUNT; i++) {
        assert_int_equal(routes[i].pattern[0], '/');
        for (int k = i + 1; k < ROUTE_COUNT; k++) {
            assert_string_not_equal(routes[i].name, routes[k].name);
            assert_false(routes[i].method == routes[k].method &&
                         strcmp(routes[i].pattern, routes[k].pattern) == 0);
        }
    }
}

static void literals_come_before_parameters(void **state)
{
    struct route_match m;
    assert_int_equal(find(ROUTE_GET, "/sandboxes/metrics", &m), ROUTE_ID_sandbox_metrics_many);
    assert_int_equal(find(ROUTE_GET, "/sandboxes/iabc", &m), ROUTE_ID_sandbox_get);
    assert_int_equal(find(ROUTE_POST, "/templates/tags", &m), ROUTE_ID_template_tags_assign);
}

static void parameters_are_decoded_after_splitting(void **state)
{
    struct route_match m;
    assert_int_equal(find(ROUTE_GET, "/templates/ns%2Fal%3Atag", &m), ROUTE_ID_template_get);
    assert_string_equal(m.args[0], "ns/al:tag");
    assert_int_equal(find(ROUTE_GET, "/templates/aliases/ns%2fn%3Av1", &m), ROUTE_ID_template_alias);
    assert_string_equal(m.args[0], "ns/n:v1");
    assert_int_equal(find(ROUTE_GET, "/templates/a/builds/b/status", &m), ROUTE_ID_template_build_status);
    assert_int_equal(m.nargs, 2);
    assert_string_equal(m.args[1], "b");
}

static void slashes_at_the_front_are_dropped(void **state)
{
    struct route_match m;
    assert_int_equal(find(ROUTE_POST, "//v2/sandboxes", &m), ROUTE_ID_sandbox_create_v2);
    assert_int_equal(find(ROUTE_POST, "///v2/sandboxes", &m), ROUTE_ID_sandbox_create_v2);
}

static void wrong_paths_are_told_apart(void **state)
{
    assert_int_equal(refusal(ROUTE_GET, "/nope"), ERR_NOT_FOUND);
    assert_int_equal(refusal(ROUTE_GET, "/"), ERR_NOT_FOUND);
    assert_int_equal(refusal(ROUTE_GET, "/sandboxes/"), ERR_NOT_FOUND);
    assert_int_equal(refusal(ROUTE_GET, "/a/b/c/d/e/f/g/h/i"), ERR_NOT_FOUND);
    assert_int_equal(refusal(ROUTE_GET, ""), ERR_INVALID);
    assert_int_equal(refusal(ROUTE_GET, "*"), ERR_INVALID);
    assert_int_equal(refusal(ROUTE_PUT, "/sandboxes"), ERR_UNSUPPORTED);
    assert_int_equal(refusal(ROUTE_METHODS, "/sandboxes"), ERR_UNSUPPORTED);
    assert_int_equal(refusal(ROUTE_GET, "/sandboxes/%zz"), ERR_INVALID);
    assert_int_equal(refusal(ROUTE_GET, "/sandboxes/a%"), ERR_INVALID);
    assert_int_equal(refusal(ROUTE_GET, "/sandboxes/a%0"), ERR_INVALID);
    assert_int_equal(refusal(ROUTE_GET, "/sandboxes/a%00b"), ERR_INVALID);
    assert_int_equal(refusal(ROUTE_GET, "/sandboxes/a%0ab"), ERR_INVALID);
    char longest[ROUTE_MAX_PATH + 8];
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(refusal(ROUTE_GET, longest), ERR_TOO_LARGE);
}

static void a_wrong_method_names_the_right_ones(void **state)
{
    struct err e = {0};
    struct route_match m;
    route_match(ROUTE_PUT, "/v2/sandboxes", 13, &m, &e);
    assert_int_equal(m.allowed, 1u << ROUTE_GET | 1u << ROUTE_POST);
}

/* ---- queries ---- */

static void parse(struct query *q, const char *raw, char *mem)
{
    struct err e = {0};
    assert_int_equal(query_parse(q, raw, strlen(raw), mem, &e), 0);
}

static void queries_are_decoded(void **state)
{
    char mem[128];
    struct query q;
    parse(&q, "a=1&b=x+y%26z&&c&d==&%61b=2", mem);
    assert_int_equal(q.n, 5);
    assert_string_equal(query_get(&q, "a"), "1");
    assert_string_equal(query_get(&q, "b"), "x y&z");
    assert_string_equal(query_get(&q, "c"), "");
    assert_string_equal(query_get(&q, "d"), "=");
    assert_string_equal(query_get(&q, "ab"), "2");
    assert_null(query_get(&q, "e"));
}

static void bad_queries_are_refused(void **state)
{
    static const char *const bad[] = {"a=%", "a=%1", "a=%gg", "%00=1", "a=b%00", NULL};
    char mem[128];
    struct query q;
    for (int i = 0; bad[i]; i++) {
        struct err e = {0};
        assert_int_equal(query_parse(&q, bad[i], strlen(bad[i]), mem, &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
    }
    char many[QUERY_MAX * 4 + 8] = "", room[sizeof many + 1];
    for (int i = 0; i <= QUERY_MAX; i++)
        strcat(many, "a=b&");
    struct err e = {0};
    assert_int_equal(query_parse(&q, many, strlen(many), room, &e), -1);
}

static void numbers_have_limits(void **state)
{
    char mem[128];
    struct query q;
    struct err e = {0};
    int64_t v;
    parse(&q, "a=100&b=0&c=x&d=1x&e=-5&f=99999999999999999999&g=", mem);
    assert_int_equal(query_int(&q, "a", 1, 100, 7, &v, &e), 0);
    assert_int_equal(v, 100);
    assert_int_equal(query_int(&q, "none", 1, 100, 7, &v, &e), 0);
    assert_int_equal(v, 7);
    assert_int_equal(query_int(&q, "g", 1, 100, 7, &v, &e), 0);
    assert_int_equal(v, 7);
    assert_int_equal(query_int(&q, "e", -10, 100, 7, &v, &e), 0);
    assert_int_equal(v, -5);
    static const char *const bad[] = {"b", "c", "d", "f", NULL};
    for (int i = 0; bad[i]; i++)
        assert_int_equal(query_int(&q, bad[i], 1, 100, 7, &v, &e), -1);
}

static void times_are_rfc3339(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"1970-01-01T00:00:00Z", 0},
                {"2026-01-01T00:00:00+00:00", 1767225600000},
                {"2026-01-01T01:30:00.5+01:30", 1767225600500},
                {"2024-02-29T12:00:00.123456789Z", 1709208000123},
                {"2000-03-01T00:00:00-08:00", 951897600000},
                {"1969-12-31T23:59:59Z", -1000}};
    static const char *const bad[] = {"",
                                      "2026-01-01",
                                      "2026-13-01T00:00:00Z",
                                      "2026-02-30T00:00:00Z",
                                      "2026-01-01T00:00:00",
                                      "2026-01-01T00:00:00.Z",
                                      "2026-01-01T00:00:00+1:00",
                                      "2026-01-01T00:00:00Zx",
                                      "2026-01-01T24:00:00Z",
                                      "20260101T000000Z....."};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t ms;
        assert_int_equal(time_parse(good[i].text, &ms), 0);
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t ms;
        assert_int_equal(time_parse(bad[i], &ms), -1);
    }
}

/* The form that both SDKs send for {'a b': 'c&d', k: 'v'} (contracts/e2b.md §1.4). */
static void metadata_is_decoded_three_times(void **state)
{
    char mem[128];
    struct query q;
    struct err e = {0};
    struct metadata_filter f;
    parse(&q, "metadata=a%252520b%3Dc%252526d%26k%3Dv", mem);
    char text[128];
    strcpy(text, query_get(&q, "metadata"));
    assert_int_equal(metadata_parse(text, &f, &e), 0);
    assert_int_equal(f.n, 2);
    assert_string_equal(f.items[0].key, "a b");
    assert_string_equal(f.items[0].value, "c&d");
    assert_string_equal(f.items[1].key, "k");
    assert_string_equal(f.items[1].value, "v");
}

static void bad_metadata_is_refused(void **state)
{
    static const char *const bad[] = {"novalue", "a=%zz", "%", "=v", "a=%2500", NULL};
    for (int i = 0; bad[i]; i++) {
        struct err e = {0};
        struct metadata_filter f;
        char text[64];
        strcpy(text, bad[i]);
        assert_int_equal(metadata_parse(text, &f, &e), -1);
    }
}

/* ---- names ---- */

static void sandbox_ids_may_carry_the_old_suffix(void **state)
{
    char id[24];
    struct err e = {0};
    assert_int_equal(sandbox_id_parse("i0abcdefghij012345678", id, &e), 0);
    assert_string_equal(id, "i0abcdefghij012345678");
    assert_int_equal(sandbox_id_parse("i0abcdefghij012345678-6532622b", id, &e), 0);
    assert_string_equal(id, "i0abcdefghij012345678");
    static const char *const bad[] = {"", "-", "a-", "-a", "a-b-c", "A", "a_b", "a b", "../x", NULL};
    for (int i = 0; bad[i]; i++) {
        e = (struct err){0};
        assert_int_equal(sandbox_id_parse(bad[i], id, &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
        assert_string_equal(e.msg, "Invalid sandbox ID");
    }
    assert_int_equal(sandbox_id_parse("unknown", id, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
}

static void template_references_are_normalised(void **state)
{
    char ref[TEMPLATE_REF_MAX + 1];
    struct err e = {0};
    assert_int_equal(template_ref_parse("  My-Team/Base_1:V1.2 ", ref, &e), 0);
    assert_string_equal(ref, "my-team/base_1:v1.2");
    assert_true(template_ref_tagged(ref));
    assert_int_equal(template_ref_parse("base", ref, &e), 0);
    assert_false(template_ref_tagged(ref));
    static const char *const bad[] = {"",
                                      " ",
                                      "a/b/c",
                                      "/a",
                                      "a/",
                                      "a:",
                                      ":a",
                                      "a b",
                                      "a/b:c/d",
                                      "b\xc3",
                                      "base:123e4567-e89b-12d3-a456-426614174000",
                                      "a.b",
                                      NULL};
    for (int i = 0; bad[i]; i++)
        assert_int_equal(template_ref_parse(bad[i], ref, &e), -1);
    char longest[TEMPLATE_REF_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[TEMPLATE_REF_MAX + 1] = '\0';
    assert_int_equal(template_ref_parse(longest, ref, &e), -1);
    longest[TEMPLATE_REF_MAX] = '\0';
    assert_int_equal(template_ref_parse(longest, ref, &e), 0);
}

static void addresses_and_domains_are_recognised(void **state)
{
    assert_true(name_is_ip_or_cidr("1.2.3.4"));
    assert_true(name_is_ip_or_cidr("0.0.0.0/0"));
    assert_true(name_is_ip_or_cidr("fe80::1/64"));
    assert_false(name_is_ip_or_cidr("1.2.3.4/33"));
    assert_false(name_is_ip_or_cidr("1.2.3"));
    assert_false(name_is_ip_or_cidr("1.2.3.4/"));
    assert_false(name_is_ip_or_cidr("/8"));
    assert_true(name_is_domain("example.com", false));
    assert_true(name_is_domain("*.example.com", true));
    assert_false(name_is_domain("*.example.com", false));
    assert_false(name_is_domain("a..b", true));
    assert_false(name_is_domain("a.", true));
    assert_false(name_is_domain("-a.b", true));
    assert_false(name_is_domain("*.", true));
    assert_false(name_is_domain("a b", true));
    assert_true(name_is_token("X-Api-Key", 64));
    assert_false(name_is_token("a:b", 64));
    assert_true(idempotency_key_valid("abc-123", 7));
    assert_false(idempotency_key_valid("ABC", 3));
    assert_false(idempotency_key_valid("", 0));
}

static void traces_go_on(void **state)
{
    static const char parent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    char out[TRACEPARENT_LEN + 1], other[TRACEPARENT_LEN + 1];
    trace_continue(parent, out);
    assert_int_equal(strlen(out), TRACEPARENT_LEN);
    assert_memory_equal(out, parent, 36);
    assert_memory_not_equal(out + 36, parent + 36, 16);
    assert_string_equal(out + 53, "00");
    static const char *const bad[] = {"",
                                      "00",
                                      "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                      "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                      "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
                                      NULL};
    for (int i = 0; bad[i]; i++) {
        trace_continue(bad[i], out);
        assert_int_equal(strlen(out), TRACEPARENT_LEN);
        assert_memory_not_equal(out + 3, "0af7651916cd43dd8448eb211c80319c", 32);
    }
    trace_continue(NULL, out);
    trace_continue(NULL, other);
    assert_string_not_equal(out, other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_finds_itself),
        cmocka_unit_test(table_is_well_formed),
        cmocka_unit_test(literals_come_before_parameters),
        cmocka_unit_test(parameters_are_decoded_after_splitting),
        cmocka_unit_test(slashes_at_the_front_are_dropped),
        cmocka_unit_test(wrong_paths_are_told_apart),
        cmocka_unit_test(a_wrong_method_names_the_right_ones),
        cmocka_unit_test(queries_are_decoded),
        cmocka_unit_test(bad_queries_are_refused),
        cmocka_unit_test(numbers_have_limits),
        cmocka_unit_test(times_are_rfc3339),
        cmocka_unit_test(metadata_is_decoded_three_times),
        cmocka_unit_test(bad_metadata_is_refused),
        cmocka_unit_test(sandbox_ids_may_carry_the_old_suffix),
        cmocka_unit_test(template_references_are_normalised),
        cmocka_unit_test(addresses_and_domains_are_recognised),
        cmocka_unit_test(traces_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
