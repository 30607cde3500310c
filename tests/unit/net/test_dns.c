/* DNS messages and the cache of cube-dns; reading of address ranges. */
#include "node/dns/cache.h"
#include "node/dns/message.h"
#include "node/net/vs_ranges.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t question[] = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03WwW\x07"
                                  "example\x04test\x00\x00\x01\x00\x01";
static const uint8_t answer[] = "\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x03www\x07"
                                "example\x04test\x00\x00\x01\x00\x01"
                                "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x5d\xb8\xd8\x22";

static void question_is_read(void **state)
{
    struct dns_question q;
    assert_true(dns_question_parse(question, sizeof question - 1, &q));
    assert_string_equal(q.name, "www.example.test");
    assert_int_equal(q.type, DNS_TYPE_A);
    assert_int_equal(q.id, 0x1234);
    assert_int_equal(q.end, sizeof question - 1);
    assert_int_equal(q.udp_size, 512);
}

static void every_cut_is_refused(void **state)
{
    struct dns_question q;
    struct dns_answer a;
    for (size_t n = 0; n < sizeof question - 1; n++)
        assert_false(dns_question_parse(question, n, &q));
    for (size_t n = 0; n < sizeof answer - 1; n++)
        assert_false(dns_answer_parse(answer, n, &a));
}

static void answer_is_read(void **state)
{
    struct dns_answer a;
    assert_true(dns_answer_parse(answer, sizeof answer - 1, &a));
    assert_int_equal(a.n_addresses, 1);
    assert_int_equal(a.addresses[0], inet_addr("93.184.216.34"));
    assert_int_equal(a.ttl, 60);
}

static void pointer_loops_end(void **state)
{
    uint8_t p[sizeof answer];
    struct dns_answer a;
    memcpy(p, answer, sizeof p);
    p[12] = 0xc0; /* the question's name points to itself */
    p[13] = 12;
    assert_false(dns_answer_parse(p, sizeof p - 1, &a));
}

static void refusal_repeats_the_question(void **state)
{
    struct dns_question q;
    uint8_t out[512];
    assert_true(dns_question_parse(question, sizeof question - 1, &q));
    size_t n = dns_refusal(question, &q, DNS_RCODE_REFUSED, out, sizeof out);
    assert_int_equal(n, q.end);
    assert_int_equal(out[3] & 15, DNS_RCODE_REFUSED);
    assert_true(out[2] & 0x80);
    assert_memory_equal(out + 12, question + 12, n - 12);
    assert_int_equal(dns_refusal(question, &q, DNS_RCODE_REFUSED, out, 10), 0);
}

static void cache_keeps_until_the_end_of_life(void **state)
{
    static struct dns_cache *c; /* there is one for as long as the process lives */
    c = dns_cache_new();
    struct dns_question q;
    uint8_t out[512];
    assert_true(dns_question_parse(question, sizeof question - 1, &q));
    assert_int_equal(dns_cache_get(c, &q, 100, out, sizeof out), 0);
    dns_cache_put(c, &q, answer, sizeof answer - 1, 60, 100);
    assert_int_equal(dns_cache_get(c, &q, 159, out, sizeof out), sizeof answer - 1);
    assert_int_equal(dns_cache_get(c, &q, 160, out, sizeof out), 0);
    q.type = DNS_TYPE_AAAA;
    assert_int_equal(dns_cache_get(c, &q, 101, out, sizeof out), 0);
}

static void ranges_are_read_strictly(void **state)
{
    static const char *const bad[] = {"",           "1.2.3",   "1.2.3.4/33", "1.2.3.4/",    "1.2.3.4/24",
                                      "1.2.3.4/+8", "a.b.c.d", "1.2.3.4/8x", "01.2.3.4.5/8"};
    struct vs_cidr c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(vs_cidr_parse(bad[i], &c, NULL), -1);
    assert_int_equal(vs_cidr_parse("10.0.0.0/8", &c, NULL), 0);
    assert_int_equal(c.bits, 8);
    assert_int_equal(vs_cidr_parse("0.0.0.0/0", &c, NULL), 0);
    assert_int_equal(c.bits, 0);
}

static void the_longest_prefix_decides(void **state)
{
    assert_true(vs_range_denied(inet_addr("10.1.2.3"), ""));
    assert_true(vs_range_denied(inet_addr("169.254.169.254"), ""));
    assert_false(vs_range_denied(inet_addr("8.8.8.8"), ""));
    assert_false(vs_range_denied(inet_addr("10.1.2.3"), "192.168.0.0/16,10.1.0.0/16"));
    assert_true(vs_range_denied(inet_addr("10.2.2.3"), "192.168.0.0/16,10.1.0.0/16"));
    assert_true(vs_range_denied(inet_addr("10.1.2.3"), "0.0.0.0/0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(question_is_read),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(answer_is_read),
        cmocka_unit_test(pointer_loops_end),
        cmocka_unit_test(refusal_repeats_the_question),
        cmocka_unit_test(cache_keeps_until_the_end_of_life),
        cmocka_unit_test(ranges_are_read_strictly),
        cmocka_unit_test(the_longest_prefix_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
