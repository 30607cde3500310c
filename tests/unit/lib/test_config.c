/* cube.yaml: where values come from, and that every mistake is named with its place. */
#include "check.h"

#include "lib/net/config.h"
#include "lib/net/config_impl.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct values {
    char *listen, *key_dir, *state_dir, *masters;
    int64_t threads, size, time;
    bool on;
};

/* Rows written so that the schema generator, which reads the programs only, has its own list for the section.
 */
static const struct config_key keys[] = {
    {"listen", CONFIG_STR, offsetof(struct values, listen), "127.0.0.1:1", 0, 0, ""},
    {"key_dir", CONFIG_STR, offsetof(struct values, key_dir), NULL, 0, 0, ""},
    {"state_dir", CONFIG_STR, offsetof(struct values, state_dir), NULL, 0, 0, ""},
    {"masters", CONFIG_STR, offsetof(struct values, masters), "", 0, 0, ""},
    {"threads", CONFIG_INT, offsetof(struct values, threads), "2", 1, 64, ""},
    {"size", CONFIG_SIZE, offsetof(struct values, size), "64M", 0, 0, ""},
    {"time", CONFIG_MS, offsetof(struct values, time), "30s", 0, 0, ""},
    {"on", CONFIG_BOOL, offsetof(struct values, on), "no", 0, 0, ""},
    {0},
};

static char path[] = "/tmp/L-config-XXXXXX";

static int load(const char *text, struct values *v, struct err *e)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    *v = (struct values){0};
    *e = (struct err){0};
    return config_load(path, "egress", keys, v, e);
}

static void defaults_and_their_expansion(void **state)
{
    struct values v;
    struct err e = {0};
    assert_int_equal(config_load(NULL, "egress", keys, &v, &e), 0);
    assert_string_equal(v.listen, "127.0.0.1:1");
    assert_string_equal(v.key_dir, "/var/lib/cube/keys");
    assert_int_equal(v.threads, 2);
    assert_int_equal(v.size, 64 << 20);
    assert_int_equal(v.time, 30000);
    assert_false(v.on);
    assert_int_equal(config_load("/nonexistent/cube.yaml", "egress", keys, &v, &e), -1);
    assert_non_null(strstr(e.msg, "/nonexistent/cube.yaml"));
}

static void section_then_common_then_default(void **state)
{
    struct values v;
    struct err e;
    assert_int_equal(
        load("# comment\ncommon:\n  state_dir: /srv\n  log_level: debug\negress:\n  listen: '[::1]:7'\n"
             "  masters: [a:1, b:2]\n  threads: 8\n  size: 2GiB\n  time: 5m\n  on: true\napi:\nproxy: {}\n",
             &v, &e),
        0);
    assert_string_equal(v.state_dir, "/srv");
    assert_string_equal(v.key_dir, "/srv/keys");
    assert_string_equal(v.listen, "[::1]:7");
    assert_string_equal(v.masters, "a:1,b:2");
    assert_int_equal(v.threads, 8);
    assert_true(v.size == 2ll << 30);
    assert_int_equal(v.time, 300000);
    assert_true(v.on);
    setenv("CUBE_EGRESS_THREADS", "5", 1);
    setenv("CUBE_COMMON_STATE_DIR", "/env", 1);
    assert_int_equal(load("common:\n  state_dir: /srv\negress:\n  threads: 8\n", &v, &e), 0);
    assert_int_equal(v.threads, 5);
    assert_string_equal(v.state_dir, "/env");
    setenv("CUBE_EGRESS_THREADS", "many", 1);
    assert_int_equal(load("", &v, &e), -1);
    assert_string_equal(e.msg, "CUBE_EGRESS_THREADS: egress.threads must be an integer, not \"many\"");
    unsetenv("CUBE_EGRESS_THREADS");
    unsetenv("CUBE_COMMON_STATE_DIR");
}

static void mistakes_are_named_with_their_place(void **state)
{
    static const struct {
        const char *text, *place;
    } cases[] = {
        {"egress:\n  lisen: x\n", ":2:10: unknown key lisen in section egress"},
        {"apj:\n  listen: x\n", ":2:11: unknown section apj"},
        {"api:\n  no_such_key: x\n", ":2:16: unknown key no_such_key in section api"},
        {"egress:\n  threads: 65\n", ":2:12: egress.threads is 65; it must be from 1 to 64"},
        {"egress:\n  threads: 1x\n", ":2:12: egress.threads must be an integer"},
        {"egress:\n  time: 30\n", ":2:9: egress.time must be a time with its unit"},
        {"egress:\n  size: 9999999999G\n", ":2:9: egress.size must be a size"},
        {"egress:\n  on: maybe\n", ":2:7: egress.on must be true or false"},
        {"egress:\n  on: yes\n  on: no\n", ":3:7: egress.on is set a second time (first in line 2)"},
        {"egress:\n  on: &a yes\n  listen: *a\n", ":3:11: aliases are not supported"},
        {"egress:\n  listen:\n    deeper: x\n", ":3:5: expected a value or a list of values"},
        {"- a\n", ":1:1: expected sections"},
        {"egress: 5\n", ":1:9: expected keys below the section"},
        {"egress:\n  listen: \"x\n", ": "},
        {"egress:\n\tlisten: x\n", ":2:1: "},
        {"a: {}\n---\nb: {}\n", "only one document is allowed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values v;
        struct err e;
        assert_int_equal(load(cases[i].text, &v, &e), -1);
        if (!strstr(e.msg, cases[i].place))
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, e.msg, cases[i].place);
        assert_int_equal(e.code, ERR_INVALID);
    }
    struct values v;
    struct err e;
    load("common:\n  log_levle: x\n", &v, &e);
    assert_string_equal(e.remedy, "did you mean log_level?");
}

static void required_keys_are_asked_for(void **state)
{
    static const struct config_key needs[] = {{"node_name", CONFIG_STR, 0, NULL, 0, 0, ""}, {0}};
    char *name = NULL;
    struct err e = {0};
    assert_int_equal(config_load(NULL, "egress", needs, &name, &e), -1);
    assert_non_null(strstr(e.msg, "egress.node_name is required"));
    assert_non_null(strstr(e.remedy, "CUBE_EGRESS_NODE_NAME"));
}

int main(void)
{
    close(mkstemp(path));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_their_expansion),
        cmocka_unit_test(section_then_common_then_default),
        cmocka_unit_test(mistakes_are_named_with_their_place),
        cmocka_unit_test(required_keys_are_asked_for),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
