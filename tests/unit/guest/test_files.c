/* Paths, users, signatures, encodings, and uploads into a real directory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "guest/envd/accept.h"
#include "guest/envd/fs.h"
#include "guest/envd/signature.h"
#include "guest/envd/state.h"

static void test_paths(void **unused)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", "/home/u"},          {"~", "/home/u"}, {"~/x", "/home/u/x"}, {"a/../b", "/home/u/b"},
        {"/a//b/./c/..", "/a/b"}, {"/../..", "/"},  {"/..a/b", "/..a/b"},
    };
    struct user u = {.home = "/home/u"};
    char out[PATH_MAX], lengthy[PATH_MAX + 10];
    struct err e;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(state_path(cases[i].in, &u, out, &e), 0);
        assert_string_equal(out, cases[i].out);
    }
    assert_int_equal(state_path("~bob/x", &u, out, &e), -1);
    memset(lengthy, 'a', sizeof(lengthy));
    lengthy[sizeof(lengthy) - 1] = 0;
    assert_int_equal(state_path(lengthy, &u, out, &e), -1);
    strcpy(state.default_workdir, "/work");
    assert_int_equal(state_path("", &u, out, &e), 0);
    assert_string_equal(out, "/work");
    assert_int_equal(state_path("rel", &u, out, &e), 0);
    assert_string_equal(out, "/home/u/rel");
    state.default_workdir[0] = 0;
}

static void test_users(void **unused)
{
    static const char passwd[] = "broken\nroot:x:0:0::/root:/bin/sh\nuser:x:1000:100:n:/home/user:/bin/"
                                 "bash\nbig:x:99999999999:1::/:/\n";
    static const char group[] = "root:x:0:\nsudo:x:27:bob,user\nnear:x:5:user2\nuser:x:100:\nlast:x:28:user";
    struct user u = {.uid = 0};
    assert_true(passwd_find(passwd, sizeof(passwd) - 1, "user", NULL, &u));
    assert_int_equal(u.uid, 1000);
    assert_string_equal(u.home, "/home/user");
    group_collect(group, sizeof(group) - 1, &u);
    assert_int_equal(u.n_groups, 3);
    assert_int_equal(u.groups[0], 100);
    assert_int_equal(u.groups[1], 27);
    assert_int_equal(u.groups[2], 28);
    assert_false(passwd_find(passwd, sizeof(passwd) - 1, "big", NULL, &u));
    assert_false(passwd_find(passwd, sizeof(passwd) - 1, "us", NULL, &u));
}

/* The vector that the SDK's own test pins (contracts/e2b.md §3.6). */
static void test_signature(void **unused)
{
    char out[SIGNATURE_SIZE];
    signature_make("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", NULL, out);
    assert_string_equal(out, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
}

static void test_accept(void **unused)
{
    assert_int_equal(accept_encoding(NULL), ENCODING_IDENTITY);
    assert_int_equal(accept_encoding("gzip, deflate"), ENCODING_IDENTITY);
    assert_int_equal(accept_encoding("gzip"), ENCODING_GZIP);
    assert_int_equal(accept_encoding("gzip;q=0"), ENCODING_IDENTITY);
    assert_int_equal(accept_encoding("identity;q=0, gzip"), ENCODING_GZIP);
    assert_int_equal(accept_encoding("*;q=0"), ENCODING_NONE);
    assert_int_equal(accept_encoding("identity;q=0"), ENCODING_NONE);
    assert_int_equal(accept_encoding("*"), ENCODING_IDENTITY);
}

static void test_token(void **unused)
{
    assert_true(state_token_matches(NULL));
    assert_int_equal(state_token_set("secret"), 0);
    assert_true(state_token_matches("secret"));
    assert_false(state_token_matches("secreT"));
    assert_false(state_token_matches("secret2"));
    assert_false(state_token_matches(NULL));
    assert_int_equal(state_token_set(""), 0);
    assert_true(state_token_matches("x"));
}

/* Until it is published an upload is invisible; it replaces whole; a dropped one leaves nothing. */
static void test_upload(void **unused)
{
    char dir[] = "/tmp/cube-unit-XXXXXX", path[64], cmd[96], text[16] = "";
    struct user u;
    struct upload up;
    struct err e = {0};
    user_self(&u);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/a/b/f", dir);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(upload_open(&up, path, &u, &e), 0);
        snprintf(text, sizeof(text), "round %d", round);
        assert_int_equal(write(up.fd, text, 7), 7);
        if (round == 0)
            assert_int_equal(access(path, F_OK), -1);
        if (round < 2)
            assert_int_equal(upload_publish(&up, &u, NULL, 0, &e), 0);
        upload_close(&up);
    }
    FILE *f = fopen(path, "re");
    assert_non_null(fgets(text, sizeof(text), f));
    fclose(f);
    assert_string_equal(text, "round 1");
    snprintf(cmd, sizeof(cmd), "test $(ls -A %s/a/b | wc -l) = 1", dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(upload_open(&up, dir, &u, &e), -1);
    upload_close(&up);
    assert_int_equal(fs_remove(dir, &e), 0);
    assert_int_equal(access(dir, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),  cmocka_unit_test(test_users), cmocka_unit_test(test_signature),
        cmocka_unit_test(test_accept), cmocka_unit_test(test_token), cmocka_unit_test(test_upload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
