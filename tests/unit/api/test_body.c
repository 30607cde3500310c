/* Create bodies and network options against the rules of contracts/e2b.md §1.4 and contracts/internal.md §11.
 */
#include "tests/unit/api/check.h"

#include "api/create.h"
#include "api/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct result {
    int rc;
    struct err e;
    struct create c;
    json_t *body;
};

static struct result run(const char *text, bool v2, int64_t max_ms)
{
    struct result r = {0};
    r.rc = body_parse(text, strlen(text), false, &r.body, &r.e);
    if (r.rc == 0)
        r.rc = create_parse(r.body, v2, max_ms, &r.c, &r.e);
    return r;
}

static void end(struct result *r)
{
    create_free(&r->c);
    json_decref(r->body);
}

static void refused(const char *text, const char *message_part)
{
    struct result r = run(text, true, 3600000);
    if (r.rc == 0 || !strstr(r.e.msg, message_part)) {
        print_error("%s: %s\n", text, r.rc == 0 ? "was accepted" : r.e.msg);
        fail();
    }
    assert_int_equal(r.e.code, ERR_INVALID);
    end(&r);
}

static void the_smallest_body_has_the_defaults(void **state)
{
    struct result r = run("{\"templateID\":\"base\",\"metadata\":{},\"envVars\":{}}", true, 0);
    assert_int_equal(r.rc, 0);
    assert_string_equal(r.c.spec.template_id, "base");
    assert_int_equal(r.c.spec.timeout_ms, 300000);
    assert_true(r.c.spec.secure);
    assert_false(r.c.spec.auto_pause);
    assert_true(r.c.spec.auto_pause_memory);
    assert_false(r.c.spec.deny_internet);
    assert_int_equal(r.c.spec.n_metadata, 0);
    assert_int_equal(r.c.unknown.n, 0);
    end(&r);
    r = run("{\"templateID\":\"base\"}", false, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.c.spec.timeout_ms, 15000);
    assert_false(r.c.spec.secure);
    end(&r);
}

static void what_sdk_2_49_sends_is_taken(void **state)
{
    struct result r = run("{\"templateID\":\"base\",\"metadata\":{\"a\":\"b\"},\"envVars\":{\"K\":\"v\"},"
                          "\"timeout\":300,\"secure\":true,"
                          "\"allow_internet_access\":true,\"autoPause\":false,\"network\":{}}",
                          false, 0);
    assert_int_equal(r.rc, 0);
    assert_true(r.c.spec.secure);
    assert_int_equal(r.c.spec.timeout_ms, 300000);
    assert_int_equal(r.c.spec.n_metadata, 1);
    assert_string_equal(r.c.spec.metadata[0]->key, "a");
    assert_int_equal(r.c.spec.n_envs, 1);
    assert_string_equal(r.c.spec.envs[0]->value, "v");
    end(&r);
}

static void all_options_reach_the_spec(void **state)
{
    struct result r = run(
        "{\"templateID\":\"NS/Base:v1\",\"timeout\":60,\"autoPause\":true,\"autoResume\":{\"enabled\":true},"
        "\"allow_internet_access\":false,\"metadata\":{\"cube.idle\":\"90\"},"
        "\"network\":{\"allowPublicTraffic\":false,\"maskRequestHost\":\"localhost:${PORT}\"}}",
        true, 0);
    assert_int_equal(r.rc, 0);
    assert_string_equal(r.c.spec.template_id, "ns/base:v1");
    assert_true(r.c.spec.auto_pause);
    assert_true(r.c.spec.auto_resume);
    assert_true(r.c.spec.deny_internet);
    assert_true(r.c.spec.private_traffic);
    assert_string_equal(r.c.spec.mask_request_host, "localhost:${PORT}");
    assert_int_equal(r.c.spec.idle_ms, 90000);
    assert_non_null(strstr(r.c.spec.network_json, "allowPublicTraffic"));
    end(&r);
}

static void nulls_are_absent(void **state)
{
    struct result r = run(
        "{\"templateID\":\"base\",\"timeout\":null,\"autoPause\":null,\"autoResume\":null,\"network\":null,"
        "\"metadata\":null,\"envVars\":null,\"mcp\":null,\"iam\":null,\"volumeMounts\":null,"
        "\"autoPauseMemory\":null,\"allow_internet_access\":null}",
        true, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.c.spec.timeout_ms, 300000);
    end(&r);
}

static void wrong_bodies_are_refused(void **state)
{
    refused("", "a JSON request body is required");
    refused("{", "not valid JSON");
    refused("[]", "must be a JSON object");
    refused("null", "must be a JSON object");
    refused("{\"templateID\":\"a\",\"templateID\":\"b\"}", "not valid JSON");
    refused("{\"templateID\":\"a\\u0000b\"}", "not valid JSON");
    refused("{\"templateID\":\"\xff\"}", "not valid JSON");
    refused("{}", "'templateID' is missing");
    refused("{\"templateID\":null}", "'templateID' is missing");
    refused("{\"templateID\":5}", "'templateID' must be a string");
    refused("{\"templateID\":\"\"}", "must not be empty");
    refused("{\"templateID\":\"a b\"}", "Invalid template reference");
    refused("{\"templateID\":\"base\",\"timeout\":0}", "Timeout must be greater than 0");
    refused("{\"templateID\":\"base\",\"timeout\":-1}", "Timeout must be greater than 0");
    refused("{\"templateID\":\"base\",\"timeout\":3601}", "Timeout cannot be greater than 1 hours");
    refused("{\"templateID\":\"base\",\"timeout\":1.5}", "'timeout' must be an integer");
    refused("{\"templateID\":\"base\",\"timeout\":\"60\"}", "'timeout' must be an integer");
    refused("{\"templateID\":\"base\",\"timeout\":4294967296}", "'timeout' must be between");
    refused("{\"templateID\":\"base\",\"autoPause\":1}", "'autoPause' must be a boolean");
    refused("{\"templateID\":\"base\",\"autoPauseMemory\":false}", "only valid with 'autoPause: true'");
    refused("{\"templateID\":\"base\",\"autoPause\":true,\"autoPauseMemory\":false,\"autoResume\":{"
            "\"enabled\":true}}",
            "incompatible with 'autoResume'");
    refused("{\"templateID\":\"base\",\"autoResume\":true}", "'autoResume' must be an object");
    refused("{\"templateID\":\"base\",\"metadata\":[]}", "'metadata' must be an object");
    refused("{\"templateID\":\"base\",\"metadata\":{\"a\":1}}", "'metadata.a' must be a string");
    refused("{\"templateID\":\"base\",\"envVars\":{\"A=B\":\"x\"}}", "illegal name");
    refused("{\"templateID\":\"base\",\"envVars\":{\"\":\"x\"}}", "illegal name");
    refused("{\"templateID\":\"base\",\"metadata\":{\"cube.idle\":\"soon\"}}", "cube.idle");
    refused("{\"templateID\":\"base\",\"metadata\":{\"cube.idle\":\"0\"}}", "cube.idle");
}

static void deep_and_large_bodies_are_refused(void **state)
{
    char deep[400] = "{\"templateID\":\"base\",\"mcp\":";
    size_t n = strlen(deep);
    memset(deep + n, '[', 100);
    memset(deep + n + 100, ']', 100);
    strcpy(deep + n + 200, "}");
    refused(deep, "nested deeper");
    size_t size = 300 << 10;
    char *large = malloc(size + 128);
    n = (size_t)sprintf(large, "{\"templateID\":\"base\",\"envVars\":{\"A\":\"");
    memset(large + n, 'x', size);
    strcpy(large + n + size, "\"}}");
    refused(large, "'envVars' is larger than");
    free(large);
}

static void later_parts_are_named(void **state)
{
    refused("{\"templateID\":\"base\",\"volumeMounts\":[{\"name\":\"a\",\"path\":\"/a\"}]}",
            "'volumeMounts' is not supported");
    refused("{\"templateID\":\"base\",\"iam\":{\"tokens\":{\"a\":{\"audience\":\"x\",\"tokenType\":\"JWT-"
            "SVID\"}}}}",
            "'iam.tokens' is not supported");
    refused("{\"templateID\":\"base\",\"network\":{\"egressProxy\":{\"address\":\"h:1080\"}}}",
            "'network.egressProxy' is not supported");
    refused("{\"templateID\":\"base\",\"network\":{\"dnsServers\":[]}}",
            "'network.dnsServers' is not supported");
    refused("{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[8443]}}",
            "'network.httpsPorts' is not supported");
    refused("{\"templateID\":\"base\",\"network\":{\"rules\":{\"a.b\":[{}]}}}",
            "'network.rules' is not supported");
    static const char *const fine[] = {
        "{\"templateID\":\"base\",\"volumeMounts\":[],\"iam\":{\"tokens\":{}},\"mcp\":{\"github\":{}}}",
        "{\"templateID\":\"base\",\"network\":{\"allowOut\":[],\"denyOut\":[],\"rules\":{},"
        "\"egressProxy\":null,\"httpsPorts\":[],\"allowPublicTraffic\":true}}",
        "{\"templateID\":\"base\",\"network\":{\"denyOut\":[\"0.0.0.0/0\"]}}",
        "{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"*.example.com\",\"1.1.1.1\"],\"denyOut\":[\"0."
        "0.0.0/0\"]}}",
        "{\"templateID\":\"base\",\"network\":{\"denyOut\":[\"1.1.1.1\"]}}",
        NULL};
    for (int i = 0; fine[i]; i++) {
        struct result r = run(fine[i], true, 0);
        if (r.rc)
            print_error("%s\n", r.e.msg);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.c.spec.deny_internet, i == 2);
        assert_int_equal(r.c.unknown.n, 0);
        end(&r);
    }
}

static void unknown_fields_are_only_noted(void **state)
{
    struct result r = run("{\"templateID\":\"base\",\"brandNew\":1,\"network\":{\"other\\n\":2}}", true, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.c.unknown.n, 2);
    assert_non_null(strstr(r.c.unknown.names, "brandNew"));
    assert_non_null(strstr(r.c.unknown.names, "network.other?"));
    end(&r);
    r = run("{\"templateID\":\"base\",\"secure\":false}", true, 0); /* not a field of v2 */
    assert_int_equal(r.rc, 0);
    assert_true(r.c.spec.secure);
    assert_int_equal(r.c.unknown.n, 1);
    end(&r);
}

/* ---- network options as they will be once the nodes enforce them ---- */

static int network(const char *text, struct network *out, struct err *e)
{
    static const struct network_support all = {true, true, true, true, true, true};
    struct unknown u = {0};
    *e = (struct err){0};
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    int rc = network_parse(j, "network", false, true, &all, out, &u, e);
    out->mask_request_host = "";
    json_decref(j);
    return rc;
}

static void network_rules_hold(void **state)
{
    struct network n;
    struct err e;
    assert_int_equal(
        network("{\"allowOut\":[\"1.1.1.1\",\"10.0.0.0/8\"],\"denyOut\":[\"0.0.0.0/0\"]}", &n, &e), 0);
    assert_false(n.deny_internet);
    assert_int_equal(network("{\"allowOut\":[\"*.example.com\"],\"denyOut\":[\"0.0.0.0/0\"]}", &n, &e), 0);
    assert_int_equal(network("{\"allowOut\":[\"example.com\"]}", &n, &e), -1);
    assert_non_null(strstr(e.msg, "0.0.0.0/0"));
    assert_int_equal(network("{\"denyOut\":[\"example.com\"]}", &n, &e), -1);
    assert_int_equal(network("{\"allowOut\":[5]}", &n, &e), -1);
    assert_int_equal(
        network("{\"egressProxy\":{\"address\":\"h:1080\",\"username\":\"u\",\"password\":\"p\"}}", &n, &e),
        0);
    assert_int_equal(network("{\"egressProxy\":{}}", &n, &e), -1);
    assert_int_equal(network("{\"egressProxy\":{\"address\":\"h\"}}", &n, &e), -1);
    assert_int_equal(network("{\"egressProxy\":{\"address\":\"h:99999\"}}", &n, &e), -1);
    assert_int_equal(network("{\"dnsServers\":[\"8.8.8.8\"]}", &n, &e), 0);
    assert_int_equal(network("{\"dnsServers\":[\"::1\"]}", &n, &e), -1);
    assert_int_equal(network("{\"httpsPorts\":[443]}", &n, &e), 0);
    assert_int_equal(network("{\"httpsPorts\":[49983]}", &n, &e), -1);
    assert_int_equal(network("{\"httpsPorts\":[0]}", &n, &e), -1);
    assert_int_equal(network("{\"maskRequestHost\":\"a b\"}", &n, &e), -1);
    /* Whatever passes here, cube-proxy must write into a Host line; a route with more is refused there. */
    assert_int_equal(network("{\"maskRequestHost\":\"a_b.example:${PORT}\"}", &n, &e), 0);
    static const char *const hosts[] = {"a,b", "a@b", "a\\u00e9", "a;b", "a(b)", "a=b", "a/b", "a?b"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"maskRequestHost\":\"%s\"}", hosts[i]);
        assert_int_equal(network(text, &n, &e), -1);
    }
    assert_int_equal(network("{\"rules\":{\"a.b\":[{\"transform\":{\"headers\":{\"X-A\":\"v\"}}}]}}", &n, &e),
                     0);
    assert_int_equal(network("{\"rules\":{\"a.b\":[{},{}]}}", &n, &e), -1);
    assert_int_equal(network("{\"rules\":{\"a.b\":[{\"transform\":{\"headers\":{\"X A\":\"v\"}}}]}}", &n, &e),
                     -1);
    assert_int_equal(
        network("{\"rules\":{\"a.b\":[{\"transform\":{\"headers\":{\"X-A\":\"v\\r\\nB: c\"}}}]}}", &n, &e),
        -1);
}

static void private_traffic_needs_a_token(void **state)
{
    struct result r = run("{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":false}}", false, 0);
    assert_int_equal(r.rc, -1);
    assert_non_null(strstr(r.e.msg, "allowPublicTraffic"));
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_body_has_the_defaults),
        cmocka_unit_test(what_sdk_2_49_sends_is_taken),
        cmocka_unit_test(all_options_reach_the_spec),
        cmocka_unit_test(nulls_are_absent),
        cmocka_unit_test(wrong_bodies_are_refused),
        cmocka_unit_test(deep_and_large_bodies_are_refused),
        cmocka_unit_test(later_parts_are_named),
        cmocka_unit_test(unknown_fields_are_only_noted),
        cmocka_unit_test(network_rules_hold),
        cmocka_unit_test(private_traffic_needs_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
