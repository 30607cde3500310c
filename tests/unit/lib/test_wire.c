/* The bytes on the wire between ingress and relay, and the tokens: fixed by stored values, so that they never
 * change unnoticed. */
#include "check.h"

#include "lib/net/crypto.h"
#include "lib/net/preface.h"
#include "lib/net/relay_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char sandbox[] = "ia0123456789abcdefghi";

static void hashes_match_published_vectors(void **state)
{
    char hex[65];
    uint8_t mac[32];
    sha256_hex("abc", 3, hex); /* FIPS 180-2, appendix B.1 */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, mac); /* RFC 4231, test case 2 */
    hex_encode(mac, 32, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void tokens_are_what_the_contract_says(void **state)
{
    struct seed seed = {.version = 1};
    char token[65];
    uint8_t ticket[32], expect[32];
    memset(seed.bytes, 7, sizeof seed.bytes);
    token_envd(&seed, sandbox, token);
    hmac_sha256(seed.bytes, 32, sandbox, 21, expect);
    uint8_t raw[32];
    assert_true(hex_decode(token, raw, 32));
    assert_memory_equal(raw, expect, 32);
    token_traffic(&seed, sandbox, token);
    hmac_sha256(seed.bytes, 32, "traffic-ia0123456789abcdefghi", 29, expect);
    assert_true(hex_decode(token, raw, 32));
    assert_memory_equal(raw, expect, 32);
    ticket_derive(&seed, sandbox, 12, ticket);
    hmac_sha256(seed.bytes, 32, "ticket-ia0123456789abcdefghi-12", 31, expect);
    assert_memory_equal(ticket, expect, 32);
}

static void preface_fields_lie_where_the_contract_puts_them(void **state)
{
    uint8_t ticket[32], bytes[PREFACE_LEN];
    memset(ticket, 9, sizeof ticket);
    struct preface p = {.flags = 3,
                        .port = 49983,
                        .gen = 0x0102030405060708,
                        .expiry_s = 1700000030,
                        .nonce = 0xdeadbeef},
                   back;
    memcpy(p.sandbox, sandbox, sizeof sandbox);
    preface_encode(&p, ticket, bytes);
    char hex[129];
    hex_encode(bytes, 48, hex);
    assert_string_equal(hex, "434252310103c33f"
                             "696130313233343536373839616263646566676869000000"
                             "01020304050607086553f11edeadbeef");
    assert_true(preface_decode(bytes, &back));
    assert_memory_equal(&p, &back, sizeof p);
    assert_int_equal(preface_check(bytes, ticket, 1700000000), PREFACE_OK);
    assert_int_equal(preface_check(bytes, ticket, 1700000030), PREFACE_OK);
    assert_int_equal(preface_check(bytes, ticket, 1700000031), PREFACE_BAD_MAC); /* expired */
    assert_int_equal(preface_check(bytes, ticket, 1699999969), PREFACE_BAD_MAC); /* 61 s ahead */
    for (size_t i = 0; i < PREFACE_LEN; i++) {
        bytes[i] ^= 1;
        assert_int_equal(preface_check(bytes, ticket, 1700000000), PREFACE_BAD_MAC);
        bytes[i] ^= 1;
    }
}

static void preface_refuses_what_is_not_one(void **state)
{
    uint8_t ticket[32] = {0}, bytes[PREFACE_LEN];
    struct preface p = {.port = 1}, back;
    memcpy(p.sandbox, sandbox, sizeof sandbox);
    preface_encode(&p, ticket, bytes);
    static const size_t vital[] = {0, 3, 4, 8, 29, 31};
    for (size_t i = 0; i < sizeof vital / sizeof *vital; i++) {
        uint8_t old = bytes[vital[i]];
        bytes[vital[i]] = '/';
        assert_false(preface_decode(bytes, &back));
        bytes[vital[i]] = old;
    }
    assert_true(preface_decode(bytes, &back));
}

static void answers_round_trip(void **state)
{
    uint8_t bytes[PREFACE_ANSWER_LEN];
    enum preface_status status;
    uint64_t gen;
    for (int s = PREFACE_OK; s <= PREFACE_LIMIT; s++) {
        preface_answer_encode((enum preface_status)s, 77, bytes);
        assert_true(preface_answer_decode(bytes, &status, &gen));
        assert_int_equal(status, s);
        assert_int_equal(gen, 77);
    }
    bytes[4] = 7;
    assert_false(preface_answer_decode(bytes, &status, &gen));
    bytes[4] = 0;
    bytes[6] = 1;
    assert_false(preface_answer_decode(bytes, &status, &gen));
}

static void link_messages_round_trip(void **state)
{
    uint8_t bytes[LINK_MSG_MAX], again[LINK_MSG_MAX], longer[LINK_MSG_MAX + 1];
    struct link_msg m = {.stream = 0x0102030405060708, .address = "127.0.0.1:3041", .used = true}, back;
    memset(m.preface, 7, sizeof m.preface);
    memset(m.answer, 8, sizeof m.answer);
    for (uint64_t i = 0; i < LINK_MOVED_MAX; i++)
        m.moved[i] = (struct link_moved){i, i << 40, UINT64_MAX - i};
    for (int type = LINK_HELLO; type <= LINK_HELD; type++) {
        m.type = (enum link_type)type;
        m.count = type == LINK_MOVED ? LINK_MOVED_MAX : 0;
        size_t n = link_encode(&m, bytes);
        memset(&back, 0, sizeof back);
        assert_true(link_decode(bytes, n, &back));
        assert_int_equal(back.type, type);
        assert_int_equal(link_encode(&back, again), n);
        assert_memory_equal(bytes, again, n);
        assert_false(link_decode(bytes, n - 1, &back));
        memcpy(longer, bytes, n);
        longer[n] = 0;
        assert_false(link_decode(longer, n + 1, &back));
        for (size_t i = 0; i < 5; i++) { /* magic and version */
            bytes[i] ^= 1;
            assert_false(link_decode(bytes, n, &back));
            bytes[i] ^= 1;
        }
        bytes[6] ^= 0x80; /* a number that does not fit the type or the length */
        assert_false(link_decode(bytes, n, &back));
    }
    m.type = LINK_MOVED;
    m.count = 0;
    assert_false(link_decode(bytes, link_encode(&m, bytes), &back));
    m.type = LINK_HELLO;
    memset(m.address, 'a', sizeof m.address); /* without its end */
    assert_false(link_decode(bytes, link_encode(&m, bytes), &back));
    m.address[2] = 0; /* something behind it */
    assert_false(link_decode(bytes, link_encode(&m, bytes), &back));
    bytes[5] = LINK_HELD + 1;
    assert_false(link_decode(bytes, LINK_HEAD_LEN + 8 + PREFACE_LEN, &back));
}

static void link_fields_lie_where_the_header_puts_them(void **state)
{
    uint8_t bytes[LINK_MSG_MAX];
    char hex[2 * 32 + 1];
    struct link_msg m = {.type = LINK_ENDED, .moved = {{0x0102030405060708, 0x1112131415161718, 0x21}}};
    assert_int_equal(link_encode(&m, bytes), 32);
    hex_encode(bytes, 32, hex);
    assert_string_equal(hex, "43424c3101050000"
                             "010203040506070811121314151617180000000000000021");
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    fchmod(fd, mode);
    close(fd);
}

static void seeds_are_read_only_from_safe_files(void **state)
{
    char dir[] = "/tmp/L-seed-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/seed", dir);
    static const char good[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    struct seed s;
    struct err e = {0};
    assert_int_equal(seed_load(path, &s, &e), -1);
    assert_int_equal(e.sys, ENOENT);
    write_file(path, good, 0600);
    assert_int_equal(seed_load(path, &s, &e), 0);
    assert_int_equal(s.bytes[31], 0x1f);
    write_file(path, good, 0644);
    assert_int_equal(seed_load(path, &s, &e), -1);
    assert_non_null(strstr(e.msg, "mode 0644"));
    write_file(path, "0001", 0600);
    assert_int_equal(seed_load(path, &s, &e), -1);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_match_published_vectors),
        cmocka_unit_test(tokens_are_what_the_contract_says),
        cmocka_unit_test(preface_fields_lie_where_the_contract_puts_them),
        cmocka_unit_test(preface_refuses_what_is_not_one),
        cmocka_unit_test(answers_round_trip),
        cmocka_unit_test(link_messages_round_trip),
        cmocka_unit_test(link_fields_lie_where_the_header_puts_them),
        cmocka_unit_test(seeds_are_read_only_from_safe_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
