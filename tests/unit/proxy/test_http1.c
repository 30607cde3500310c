/* The strict head parser and the chunk scanner: what must be accepted, and the request-smuggling set that
 * must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "proxy/chunked.h"
#include "proxy/http1.h"

#include <stdio.h>
#include <string.h>

static struct http_head m;

static int parse(const char *text)
{
    struct http_scan scan = {0};
    int n = http_head_end(&scan, text, strlen(text));
    return n <= 0 ? (n == HTTP_MORE ? 1 : n) : http_parse_request(text, (size_t)n, &m);
}

static void accepts(void **state)
{
    assert_int_equal(parse("GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-A:  1 \t\r\n\r\n"), 0);
    assert_true(str_eq(m.target, STR("/a?b=c")));
    assert_int_equal(m.count, 2);
    assert_true(str_eq(m.h[1].value, STR("1")));
    assert_int_equal(m.content_length, -1);
    assert_int_equal(
        parse("POST / HTTP/1.1\r\nhOsT: [::1]:3020\r\nContent-Length: 42\r\nConnection: a, Close\r\n\r\n"),
        0);
    assert_int_equal(m.content_length, 42);
    assert_true(m.close);
    assert_int_equal(parse("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: "
                           "keep-alive, Upgrade\r\n\r\n"),
                     0);
    assert_true(m.chunked && m.keep_alive && m.upgrade);
    assert_int_equal(parse("GET http://1-i.x:80/p HTTP/1.1\r\nHost: y\r\n\r\n"), 0);
    assert_true(str_eq(m.authority, STR("1-i.x:80")));
    assert_true(str_eq(m.target, STR("/p")));
    assert_int_equal(parse("OPTIONS * HTTP/1.1\r\nHost: y\r\n\r\n"), 0);
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n"), 0);
    assert_int_equal(m.minor, 0);
    assert_int_equal(parse("GET /\xc3\xa9 HTTP/1.1\r\nHost: y\r\nX: caf\xe9\r\nEmpty:\r\n\r\n"), 0);
}

static void refuses(void **state)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\nHost: x\n\n",                  /* bare LF */
        "GET / HTTP/1.1\r\nHost: x\n\r\n",              /* one bare LF */
        "GET / HTTP/1.1\r\nHost: x\rX: y\r\n\r\n",      /* bare CR */
        "GET / HTTP/1.1\r\n\r\n",                       /* no Host */
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", /* two, even if equal */
        "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", /* Host tricks */
        "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: x\r\n\r\n",              /* folded first line */
        "GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", /* obs-fold */
        "GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n\tb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : x\r\n\r\n", /* blank before colon */
        "GET / HTTP/1.1\r\nHost: x\r\nNo colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n: empty\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nX\x01: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nX: a\x7f\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1 1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", /* CL + TE */
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\x0b"
        "chunked\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: a\r\nE2b-Sandbox-Id: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Port: 1\r\nE2b-Sandbox-Port: 2\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: x\r\n\r\n",
        "GET / http/1.1\r\nHost: x\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET a HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http:///p HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://a@b/p HTTP/1.1\r\nHost: x\r\n\r\n",
        "G(T / HTTP/1.1\r\nHost: x\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse(bad[i]) >= 0)
            fail_msg("accepted: %s", bad[i]);
}

static void head_in_pieces(void **state)
{
    const char *text = "GET / HTTP/1.1\r\nHost: x\r\n\r\nbody";
    struct http_scan scan = {0};
    size_t whole = strlen(text) - 4;
    for (size_t n = 1; n < whole; n++)
        assert_int_equal(http_head_end(&scan, text, n), HTTP_MORE);
    assert_int_equal(http_head_end(&scan, text, whole), (int)whole);
}

static void limits(void **state)
{
    static char big[HTTP_HEAD_MAX + 100];
    memset(big, 'a', sizeof big);
    struct http_scan scan = {0};
    assert_int_equal(http_head_end(&scan, big, sizeof big), HTTP_TOO_LARGE);
    static char many[16384];
    strcpy(many, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < HTTP_HEADERS_MAX; i++)
        strcat(many, "a: b\r\n");
    strcat(many, "\r\n");
    assert_int_equal(http_parse_request(many, strlen(many), &m), HTTP_TOO_LARGE);
}

static void responses(void **state)
{
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", bare[] = "HTTP/1.1 204\r\n\r\n";
    assert_int_equal(http_parse_response(ok, sizeof ok - 1, &m), 0);
    assert_int_equal(m.status, 200);
    assert_int_equal(m.content_length, 3);
    assert_int_equal(http_parse_response(bare, sizeof bare - 1, &m), 0);
    static const char *const bad[] = {
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        "garbage garbage\r\n\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(http_parse_response(bad[i], strlen(bad[i]), &m), HTTP_BAD);
}

static void hop_by_hop(void **state)
{
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-Secret, host\r\nX-Secret: "
                           "1\r\nKeep-Alive: 5\r\nX: 2\r\n\r\n"),
                     0);
    static const bool dropped[] = {false, true, true, true,
                                   false}; /* Host stays, whatever Connection names */
    for (int i = 0; i < 5; i++)
        assert_int_equal(http_hop_by_hop(&m, &m.h[i]), dropped[i]);
}

/* ---- chunks ---- */

static enum chunked_event pass_over(const char *text, size_t *used)
{
    struct chunked c = {0};
    return chunked_skip(&c, text, strlen(text), used);
}

static void chunks(void **state)
{
    size_t used;
    assert_int_equal(pass_over("5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\nNEXT", &used), CHUNKED_END);
    assert_int_equal(used, strlen("5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"));
    assert_int_equal(pass_over("000A\r\n0123456789\r\n", &used), CHUNKED_MORE);
    static const char *const bad[] = {"\r\n",
                                      "g\r\n",
                                      "+5\r\nhello\r\n",
                                      "-1\r\n",
                                      "0x5\r\nhello\r\n",
                                      " 5\r\nhello\r\n",
                                      "5 \r\nhello\r\n",
                                      "5\nhello\r\n",
                                      "5\r\nhello\n0\r\n",
                                      "5\r\nhelloX\r\n",
                                      "5\r\nhello\rX",
                                      "5;a\nb\r\n",
                                      "1234567890abcdef0\r\n",
                                      "0\r\n X: folded\r\n\r\n",
                                      "0\r\nX: y\n\r\n",
                                      "5\r\nhello0\r\n\r\n",
                                      "0\r\nno colon\r\n\r\n",
                                      "0\r\nGET / HTTP/1.1\r\n\r\n",
                                      "0\r\nX : y\r\n\r\n",
                                      "0\r\n: y\r\n\r\n",
                                      "0\r\nX(: y\r\n\r\n",
                                      "0\r\nX: a\x01\r\n\r\n",
                                      "0\r\nX: a\r\n\tfolded\r\n\r\n",
                                      "0\r\nOk: 1\r\nContent-Length: 5\r\n\r\n",
                                      "0\r\ntransfer-encoding: chunked\r\n\r\n",
                                      "0\r\nHOST: x\r\n\r\n",
                                      "0\r\nConnection: close\r\n\r\n",
                                      "0\r\nTrailer: x\r\n\r\n",
                                      "0\r\nX-Forwarded-For: 1\r\n\r\n",
                                      "0\r\nE2b-Traffic-Access-Token: x\r\n\r\n"};
    /* Names that only begin like a forbidden one. */
    assert_int_equal(pass_over("0\r\nHosts: x\r\ne2b-traffic-access-tokens: x\r\nTE-X:\r\n\r\n", &used),
                     CHUNKED_END);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (pass_over(bad[i], &used) != CHUNKED_BAD)
            fail_msg("accepted: %s", bad[i]);
}

static void trailers_are_bounded(void **state)
{
    static char many[HTTP_TRAILER_MAX * 2];
    size_t used, n = 0;
    for (int lines = HTTP_HEADERS_MAX; lines <= HTTP_HEADERS_MAX + 1; lines++) {
        n = (size_t)sprintf(many, "0\r\n");
        for (int i = 0; i < lines; i++)
            n += (size_t)sprintf(many + n, "a: b\r\n");
        strcpy(many + n, "\r\n");
        assert_int_equal(pass_over(many, &used), lines > HTTP_HEADERS_MAX ? CHUNKED_BAD : CHUNKED_END);
    }
    n = (size_t)sprintf(many, "0\r\na: ");
    memset(many + n, 'v', HTTP_TRAILER_MAX);
    strcpy(many + n + HTTP_TRAILER_MAX, "\r\n\r\n");
    assert_int_equal(pass_over(many, &used), CHUNKED_BAD);
}

static void chunks_byte_by_byte(void **state)
{
    const char *text = "3\r\nabc\r\n4;x\r\ndefg\r\n0\r\nT: 1\r\n\r\n";
    struct chunked c = {0};
    char data[16] = "", trailers[16] = "";
    enum chunked_event ev = CHUNKED_MORE;
    for (size_t i = 0; i < strlen(text); i++) {
        size_t used;
        struct str span;
        ev = chunked_next(&c, text + i, 1, &used, &span);
        assert_int_not_equal(ev, CHUNKED_BAD);
        if (ev == CHUNKED_DATA)
            strncat(data, span.p, span.n);
        if (ev == CHUNKED_TRAILER)
            strncat(trailers, span.p, span.n);
    }
    assert_string_equal(data, "abcdefg");
    assert_string_equal(trailers, "T: 1\r\n\r\n");
    assert_int_equal(c.state, CHUNKED_STATE_END);
    assert_int_equal(http_parse_trailers(trailers, strlen(trailers), &m), 0);
    assert_int_equal(http_parse_trailers("Content-Length: 4\r\n\r\n", 21, &m), HTTP_BAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(accepts),
                                       cmocka_unit_test(refuses),
                                       cmocka_unit_test(head_in_pieces),
                                       cmocka_unit_test(limits),
                                       cmocka_unit_test(responses),
                                       cmocka_unit_test(hop_by_hop),
                                       cmocka_unit_test(chunks),
                                       cmocka_unit_test(chunks_byte_by_byte),
                                       cmocka_unit_test(trailers_are_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
