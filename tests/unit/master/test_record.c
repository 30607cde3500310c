/* The record's hash, the activity line, list cursors and the transition table. */
#include "master/cursor.h"
#include "master/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ID "i0abcdefghijklmnopqrs"

static redisReply cells[64], *cell_ptrs[64];

static redisReply hash(size_t n, const char *const *words, const uint8_t *spec, size_t spec_len)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++, k++)
        cells[k] = (redisReply){.type = REDIS_REPLY_STRING, .str = (char *)words[i], .len = strlen(words[i])};
    if (spec) {
        cells[k++] = (redisReply){.type = REDIS_REPLY_STRING, .str = (char *)"spec", .len = 4};
        cells[k++] = (redisReply){.type = REDIS_REPLY_STRING, .str = (char *)spec, .len = spec_len};
    }
    for (size_t i = 0; i < k; i++)
        cell_ptrs[i] = &cells[i];
    return (redisReply){.type = REDIS_REPLY_ARRAY, .elements = k, .element = cell_ptrs};
}

static size_t spec_pack(uint8_t *out)
{
    Cube__V1__SandboxSpec s = CUBE__V1__SANDBOX_SPEC__INIT;
    Cube__V1__Limits l = CUBE__V1__LIMITS__INIT;
    l.vcpus = 2;
    l.memory_mib = 512;
    s.limits = &l;
    s.sandbox_id = (char *)ID;
    s.team_id = (char *)"t1";
    return cube__v1__sandbox_spec__pack(&s, out);
}

static void test_record(void **state)
{
    (void)state;
    uint8_t spec[256];
    size_t n = spec_pack(spec);
    const char *const words[] = {"state", "running", "gen", "18446744073709551615", "rev", "7",   "node",
                                 "n1",    "end",     "-5",  "auto_pause",           "1",   "new", "?"};
    struct record r;
    struct err e = {0};
    redisReply h = hash(14, words, spec, n);
    assert_int_equal(record_parse(&h, &r, &e), 0);
    assert_string_equal(r.id, ID);
    assert_int_equal(r.state, STATE_RUNNING);
    assert_true(r.gen == UINT64_MAX && r.rev == 7 && r.end_ms == -5 && r.auto_pause);
    assert_string_equal(r.node, "n1");
    record_parse_activity(&r, "1000 900 3 250 48 1001 1 exec", 29);
    assert_string_equal(r.awake, "exec");
    assert_true(r.last_activity_ms == 1000 && r.awake_since_ms == 900 && r.open_streams == 3 && r.healthy);
    record_parse_activity(&r, "nonsense", 8);
    assert_string_equal(r.awake, "exec");
    Cube__V1__Sandbox m;
    struct record_tokens tokens = {.envd = "x"};
    record_message(&r, &tokens, &m);
    assert_int_equal(m.state, CUBE__V1__SANDBOX_STATE__RUNNING);
    assert_string_equal(m.envd_token, ""); /* not secure: no token leaves */
    record_free(&r);
    record_free(&r);
}

static void test_bad_records(void **state)
{
    (void)state;
    uint8_t spec[256];
    size_t n = spec_pack(spec);
    struct record r;
    struct err e = {0};
    redisReply empty = {.type = REDIS_REPLY_ARRAY};
    assert_int_equal(record_parse(&empty, &r, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    const char *const no_state[] = {"state", "flying", "gen", "1"};
    redisReply h = hash(4, no_state, spec, n);
    assert_int_equal(record_parse(&h, &r, &e), -1);
    assert_int_equal(e.code, ERR_INTERNAL);
    const char *const fine[] = {"state", "paused", "gen", "1"};
    h = hash(4, fine, (const uint8_t *)"\xff\xff\xff", 3);
    assert_int_equal(record_parse(&h, &r, &e), -1);
    char longer[400];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *const long_node[] = {"state", "paused", "gen", "1", "node", longer, "reason", longer};
    h = hash(8, long_node, spec, n);
    assert_int_equal(record_parse(&h, &r, &e), 0);
    assert_int_equal(strlen(r.node), NODE_ID_MAX);
    record_free(&r);
}

static void test_cursor(void **state)
{
    (void)state;
    char token[CURSOR_MAX], member[INDEX_MEMBER_LEN + 1];
    struct err e = {0};
    cursor_encode("8299999999999" ID, false, token);
    assert_int_equal(cursor_decode(token, false, member, &e), 0);
    assert_string_equal(member, "8299999999999" ID);
    assert_int_equal(cursor_decode(token, true, member, &e), -1);
    assert_string_equal(e.msg, "Invalid next token");
    assert_int_equal(cursor_decode("", true, member, &e), 0);
    assert_string_equal(member, "");
    const char *const bad[] = {"d", "x8299999999999" ID, "d829999999999x" ID,
                               "d8299999999999i0ABCDEFGHIJKLMNOPQRS", "d8299999999999" ID "x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cursor_decode(bad[i], false, member, &e), -1);
}

static void test_states(void **state)
{
    (void)state;
    assert_int_equal(state_parse("lost", 4), CUBE__V1__SANDBOX_STATE__LOST);
    assert_int_equal(state_parse("los", 3), STATE_NONE);
    assert_int_equal(STATE_LOST, CUBE__V1__SANDBOX_STATE__LOST);
    for (int s = 1; s < STATE_COUNT; s++) {
        /* Delete is legal from every state that is not at its end, and every transient state has a deadline.
         */
        if (s != STATE_KILLING && s != STATE_KILLED)
            assert_int_not_equal(state_edges[s][STATE_KILLING], EDGE_NONE);
        assert_true(!state_table[s].transient == !state_table[s].deadline_ms);
        assert_int_equal(state_edges[STATE_KILLED][s], EDGE_NONE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_bad_records),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
