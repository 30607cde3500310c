/* Request routing and the proxy's own answers, as contracts/e2b.md §2.4 and §7 say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "proxy/answer.h"
#include "proxy/target.h"

#include <stdio.h>
#include <string.h>

static struct http_head m;
static struct target t;

static void route(const char *target, const char *host, const char *headers)
{
    static char text[HTTP_HEAD_MAX];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, host, headers);
    assert_int_equal(http_parse_request(text, strlen(text), &m), 0);
    target_resolve(&m, "cube.test", &t);
}

static void is_sandbox(const char *id, int port, const char *path)
{
    assert_int_equal(t.kind, TARGET_SANDBOX);
    assert_string_equal(t.sandbox, id);
    assert_int_equal(t.port, port);
    assert_true(t.path.n == strlen(path) && memcmp(t.path.p, path, t.path.n) == 0);
}

static void is_bad(const char *why)
{
    assert_int_equal(t.kind, TARGET_BAD);
    assert_string_equal(t.wrong, why);
}

#define ID "i0abcdefghijklmnopqrs"

static void by_host(void **state)
{
    route("/x", "3000-" ID ".cube.test", "");
    is_sandbox(ID, 3000, "/x");
    route("/x", "3000-" ID "-6532622b.cube.test:3021", "");
    is_sandbox(ID, 3000, "/x");
    route("/x", "49983-I0ABCDEFGHIJKLMNOPQRS.Cube.Test", "");
    is_sandbox(ID, 49983, "/x");
    route("/x", "3000-" ID ".localhost:3020", "");
    is_sandbox(ID, 3000, "/x");
    /* A real host name decides, whatever the headers say. */
    route("/x", "3000-" ID ".cube.test", "E2b-Sandbox-Id: other\r\nE2b-Sandbox-Port: 1\r\n");
    is_sandbox(ID, 3000, "/x");
    route("/x", "3000" ID, "");
    is_bad("Invalid host");
    route("/x", "www.cube.test", "");
    is_bad("Invalid host");
    route("/x", "3000-a_b.cube.test", "");
    is_bad("Invalid sandbox ID");
    route("/x", "0-" ID ".cube.test", "");
    is_bad("Invalid sandbox port");
    route("/x", "65536-" ID ".cube.test", "");
    is_bad("Invalid sandbox port");
    route("/x", "x-" ID ".cube.test", "");
    is_bad("Invalid sandbox port");
}

static void by_headers(void **state)
{
    static const char both[] = "E2b-Sandbox-Id: " ID "\r\ne2b-sandbox-port: 49999\r\n";
    static const char *const hosts[] = {"127.0.0.1:3020", "[::1]:3020",        "localhost",
                                        "LOCALHOST:1",    "sandbox.cube.test", "sandbox.any.thing",
                                        "cube-proxy:3020"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        route("/execute", hosts[i], both);
        is_sandbox(ID, 49999, "/execute");
    }
    route("/", "localhost", "E2b-Sandbox-Id: " ID "\r\n");
    is_bad("missing header");
    route("/", "localhost", "E2b-Sandbox-Port: 1\r\n");
    is_bad("missing header");
    route("/", "localhost", "E2b-Sandbox-Id: ../x\r\nE2b-Sandbox-Port: 1\r\n");
    is_bad("Invalid sandbox ID");
    route("/", "localhost", "E2b-Sandbox-Id: " ID "-old\r\nE2b-Sandbox-Port: 1\r\n");
    is_sandbox(ID, 1, "/");
    route("/", "sandbox.cube.test", "");
    is_bad("missing header");
}

static void by_path(void **state)
{
    route("/sandbox/" ID "/8080/a/b?c", "127.0.0.1", "");
    is_sandbox(ID, 8080, "/a/b?c");
    assert_true(t.by_path);
    route("/sandbox/" ID "/8080", "localhost", "");
    is_sandbox(ID, 8080, "/");
    route("/sandbox/" ID "/8080?q", "localhost", "");
    is_sandbox(ID, 8080, "?q");
    route("/sandbox/" ID "/x/a", "localhost", "");
    is_bad("Invalid sandbox port");
    route("/sandbox/" ID, "localhost", "");
    assert_int_equal(t.kind, TARGET_API);
    /* On a sandbox's own host the path is the service's. */
    route("/sandbox/" ID "/8080/a", "3000-" ID ".cube.test", "");
    is_sandbox(ID, 3000, "/sandbox/" ID "/8080/a");
}

static void to_api(void **state)
{
    static const char *const hosts[] = {"127.0.0.1:3020", "localhost:3020", "[::1]", "api.cube.test",
                                        "API.cube.test:443"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        route("/v2/sandboxes", hosts[i], "");
        assert_int_equal(t.kind, TARGET_API);
    }
    route("http://localhost/v2/sandboxes", "3000-" ID ".cube.test", "");
    assert_int_equal(t.kind, TARGET_API); /* the target's authority wins */
    route("/", "api.other.test", "");
    is_bad("Invalid host");
}

static void internal_paths(void **state)
{
    static const char *const internal[] = {
        "/init",    "/freeze",   "/unfreeze", "/collapse", "/fsfreeze",       "/fsthaw",
        "/upgrade", "/init?x=1", "//init",    "/init/",    "/./init",         "/a/../init",
        "/%69nit",  "/%2finit",  "/INIT",     "/init;x",   "/a/b/../../init", "/%2e/init"};
    static const char *const open[] = {
        "/", "/health", "/initial", "/files?path=/init", "/process.Process/Start", "/a/init", "/in"};
    for (size_t i = 0; i < sizeof internal / sizeof internal[0]; i++) {
        route(internal[i], "49983-" ID ".cube.test", "");
        if (!t.internal)
            fail_msg("open: %s", internal[i]);
        route(internal[i], "3000-" ID ".cube.test", "");
        assert_false(t.internal);
    }
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        route(open[i], "49983-" ID ".cube.test", "");
        assert_false(t.internal);
    }
    /* However far away the part begins that counts. */
    static char far[30000];
    for (size_t n = 1; n < sizeof far - 32; n += n < 300 ? 1 : 3000) {
        memset(far, 'a', n);
        far[0] = '/';
        strcpy(far + n, n % 2 ? "/../init" : "/%2e%2E//.//fReeze?");
        route(far, "49983-" ID ".cube.test", "");
        if (!t.internal)
            fail_msg("open behind %zu characters", n);
    }
}

/* ---- answers ---- */

static void body_is(struct answer a, int status, const char *want)
{
    _cleanup_buf_ struct buf body = {0}, extra = {0};
    const char *type;
    assert_int_equal(answer_status(&a), status);
    answer_write(&a, &body, &type, &extra);
    assert_string_equal(buf_cstr(&body), want);
}

static void json_bodies(void **state)
{
    body_is((struct answer){.kind = ANSWER_NOT_FOUND, .sandbox = ID}, 502,
            "{\"sandboxId\":\"" ID "\",\"message\":\"The sandbox was not found\",\"code\":502}");
    body_is((struct answer){.kind = ANSWER_PORT_CLOSED, .sandbox = ID, .port = 3000}, 502,
            "{\"sandboxId\":\"" ID
            "\",\"message\":\"The sandbox is running but port is not open\",\"port\":3000,\"code\":502}");
    body_is((struct answer){.kind = ANSWER_INTERNAL_PATH, .sandbox = ID, .path = STR("/init")}, 404,
            "{\"message\":\"Not found\",\"path\":\"/init\",\"code\":404}");
    body_is((struct answer){.kind = ANSWER_TOKEN_MISSING, .sandbox = ID}, 403,
            "{\"sandboxId\":\"" ID "\",\"message\":\"Sandbox is secured with traffic access token. Token "
            "header 'e2b-traffic-access-token' is missing\",\"code\":403}");
    body_is((struct answer){.kind = ANSWER_TOO_MANY_CONNECTIONS, .sandbox = ID, .limit = 7}, 429,
            "{\"sandboxId\":\"" ID
            "\",\"message\":\"Too many connections to the sandbox\",\"connectionLimit\":7,\"code\":429}");
    body_is((struct answer){.kind = ANSWER_BAD_REQUEST, .sandbox = "", .detail = "missing header"}, 400,
            "missing header");
}

static void framed_bodies(void **state)
{
    struct answer a = {.kind = ANSWER_NOT_FOUND, .form = FORM_CONNECT, .sandbox = ID};
    _cleanup_buf_ struct buf body = {0}, extra = {0};
    const char *type;
    answer_write(&a, &body, &type, &extra);
    static const char json[] =
        "{\"error\":{\"code\":\"unavailable\",\"message\":\"The sandbox was not found\"}}";
    assert_int_equal(body.len, 5 + sizeof json - 1);
    assert_memory_equal(body.data, "\2\0\0\0", 4);
    assert_int_equal((uint8_t)body.data[4], sizeof json - 1);
    assert_memory_equal(body.data + 5, json, sizeof json - 1);
    a.form = FORM_GRPC;
    buf_reset(&body);
    answer_write(&a, &body, &type, &extra);
    assert_int_equal(body.len, 0);
    assert_string_equal(buf_cstr(&extra), "grpc-status: 14\r\ngrpc-message: The sandbox was not found\r\n");
    assert_int_equal(answer_status(&a), 200);
}

/* Whatever goes wrong is said in the caller's protocol: no kind is left out, and none says nothing. */
static void every_kind_in_every_form(void **state)
{
    static const char *const reasons[] = {NULL, "no room: memory \"7\" <b>%\xc3\xbc\r\nx: y"};
    for (int kind = 0; kind < ANSWER_KINDS; kind++)
        for (size_t i = 0; i < 2; i++) {
            struct answer a = {
                .kind = (enum answer_kind)kind, .sandbox = ID, .port = 80, .detail = reasons[i]};
            _cleanup_buf_ struct buf json = {0}, html = {0}, connect = {0}, grpc = {0}, extra = {0},
                                     none = {0};
            const char *type;
            int status = answer_status(&a);
            assert_true(status >= 400 && status < 600 && strcmp(http_reason(status), "Status") != 0);
            answer_write(&a, &json, &type, &none);
            assert_true(json.len > 0);
            a.form = FORM_HTML;
            assert_int_equal(answer_status(&a), status);
            answer_write(&a, &html, &type, &none);
            assert_non_null(strstr(buf_cstr(&html), "</html>"));
            assert_null(strstr(buf_cstr(&html), "<b>"));
            a.form = FORM_CONNECT;
            assert_int_equal(answer_status(&a), 200);
            answer_write(&a, &connect, &type, &none);
            assert_true(connect.len > 5 && connect.data[0] == 2);
            assert_int_equal((uint8_t)connect.data[3] << 8 | (uint8_t)connect.data[4], connect.len - 5);
            static const char begin[] = "{\"error\":{\"code\":\"";
            assert_memory_equal(connect.data + 5, begin, sizeof begin - 1);
            a.form = FORM_GRPC;
            answer_write(&a, &grpc, &type, &extra);
            int code = 0;
            assert_int_equal(sscanf(buf_cstr(&extra), "grpc-status: %d\r\n", &code), 1);
            assert_true(code >= 1 && code <= 16 && grpc.len == 0 && none.len == 0);
            /* Two lines, whatever a reason holds. */
            const char *second = strstr(buf_cstr(&extra), "\r\n") + 2;
            assert_memory_equal(second, "grpc-message: ", 14);
            assert_int_equal(strstr(second, "\r\n") + 2 - extra.data, extra.len);
        }
}

static void forms(void **state)
{
#define CHROME "User-Agent: Mozilla/5.0 Chrome/150\r\n"
    route("/", "localhost", CHROME "Accept: text/html,*/*\r\nSec-Fetch-Mode: navigate\r\n");
    assert_int_equal(answer_form(&m), FORM_HTML);
    route("/", "localhost", CHROME "Sec-Fetch-Mode: cors\r\n");
    assert_int_equal(answer_form(&m), FORM_JSON);
    route("/", "localhost", CHROME "Accept: application/json\r\n");
    assert_int_equal(answer_form(&m), FORM_JSON);
    route("/", "localhost", CHROME "X-Requested-With: XMLHttpRequest\r\n");
    assert_int_equal(answer_form(&m), FORM_JSON);
    route("/", "localhost", "User-Agent: curl/8\r\n");
    assert_int_equal(answer_form(&m), FORM_JSON);
    route("/", "localhost", "Content-Type: application/connect+json\r\n");
    assert_int_equal(answer_form(&m), FORM_CONNECT);
    route("/", "localhost", "Content-Type: application/grpc+proto\r\n");
    assert_int_equal(answer_form(&m), FORM_GRPC);
    route("/", "localhost", "Content-Type: application/grpc-web\r\n");
    assert_int_equal(answer_form(&m), FORM_JSON);
}

static void html_escapes(void **state)
{
    struct answer a = {.kind = ANSWER_BAD_REQUEST, .form = FORM_HTML, .sandbox = "<script>", .detail = "a<b"};
    _cleanup_buf_ struct buf body = {0}, extra = {0};
    const char *type;
    answer_write(&a, &body, &type, &extra);
    assert_null(strstr(buf_cstr(&body), "<script>"));
    assert_non_null(strstr(buf_cstr(&body), "a&lt;b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_host),        cmocka_unit_test(by_headers),
        cmocka_unit_test(by_path),        cmocka_unit_test(to_api),
        cmocka_unit_test(internal_paths), cmocka_unit_test(json_bodies),
        cmocka_unit_test(framed_bodies),  cmocka_unit_test(forms),
        cmocka_unit_test(html_escapes),   cmocka_unit_test(every_kind_in_every_form)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
