/* Answers: which fields are there, null or absent; errors; and the OpenAPI document against the table of
 * routes. */
#include "tests/unit/api/check.h"

#include "api/errors.h"
#include "api/openapi.h"
#include "api/present.h"
#include "api/route.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static Cube__V1__Pair pair = {.base = {&cube__v1__pair__descriptor}, .key = "k", .value = "v\"\n"};
static Cube__V1__Pair *pair_list[] = {&pair};

static void fill(Cube__V1__Sandbox *s, Cube__V1__SandboxSpec *spec, Cube__V1__Limits *limits)
{
    cube__v1__sandbox__init(s);
    cube__v1__sandbox_spec__init(spec);
    cube__v1__limits__init(limits);
    limits->vcpus = 2;
    limits->memory_mib = 512;
    limits->disk_mib = 1024;
    spec->limits = limits;
    spec->sandbox_id = "i0abcdefghij012345678";
    spec->template_id = "tpl";
    spec->secure = true;
    spec->metadata = pair_list;
    spec->n_metadata = 1;
    s->spec = spec;
    s->state = CUBE__V1__SANDBOX_STATE__RUNNING;
    s->envd_version = "0.6.13";
    s->envd_token = "tok";
    s->traffic_token = "traffic";
    s->started_ms = 1767225600000;
    s->end_ms = 1767225900000;
}

static json_t *parsed(struct buf *out)
{
    json_error_t je;
    json_t *j = json_loadb(out->data, out->len, JSON_REJECT_DUPLICATES, &je);
    if (!j)
        print_error("%s: %.*s\n", je.text, (int)out->len, out->data);
    assert_non_null(j);
    return j;
}

static const char *text_of(json_t *j, const char *key)
{
    return json_string_value(json_object_get(j, key));
}

static void a_sandbox_has_what_the_sdks_need(void **state)
{
    Cube__V1__Sandbox s;
    Cube__V1__SandboxSpec spec;
    Cube__V1__Limits limits;
    _cleanup_buf_ struct buf out = {0};
    struct jsonw w = jsonw_start(&out);
    fill(&s, &spec, &limits);
    present_sandbox(&w, &s, "");
    json_t *j = parsed(&out);
    assert_string_equal(text_of(j, "clientID"), "6532622b");
    assert_string_equal(text_of(j, "envdVersion"), "0.6.13");
    assert_string_equal(text_of(j, "envdAccessToken"), "tok");
    assert_true(json_is_null(json_object_get(j, "trafficAccessToken")));
    assert_true(json_is_null(json_object_get(j, "domain")));
    assert_null(json_object_get(j, "alias"));
    json_decref(j);
}

static void tokens_are_shown_only_when_due(void **state)
{
    Cube__V1__Sandbox s;
    Cube__V1__SandboxSpec spec;
    Cube__V1__Limits limits;
    _cleanup_buf_ struct buf out = {0};
    struct jsonw w = jsonw_start(&out);
    fill(&s, &spec, &limits);
    spec.secure = false;
    spec.private_traffic = true;
    spec.alias = "base";
    present_sandbox(&w, &s, "example.org");
    json_t *j = parsed(&out);
    assert_null(json_object_get(j, "envdAccessToken"));
    assert_string_equal(text_of(j, "trafficAccessToken"), "traffic");
    assert_string_equal(text_of(j, "domain"), "example.org");
    assert_string_equal(text_of(j, "alias"), "base");
    json_decref(j);
}

static void a_detail_has_every_required_field(void **state)
{
    static const char *const needed[] = {"clientID",  "diskSizeMB", "cpuCount",   "memoryMB",
                                         "startedAt", "endAt",      "state",      "envdVersion",
                                         "metadata",  "sandboxID",  "templateID", NULL};
    Cube__V1__Sandbox s;
    Cube__V1__SandboxSpec spec;
    Cube__V1__Limits limits;
    _cleanup_buf_ struct buf out = {0};
    struct jsonw w = jsonw_start(&out);
    fill(&s, &spec, &limits);
    spec.network_json = "{\"egressProxy\":{\"address\":\"h:1\",\"username\":\"u\",\"password\":\"geheim\"}}";
    present_detail(&w, &s, NULL);
    assert_null(memmem(out.data, out.len, "geheim", 6));
    json_t *j = parsed(&out);
    for (int i = 0; needed[i]; i++)
        assert_non_null(json_object_get(j, needed[i]));
    assert_string_equal(text_of(j, "state"), "running");
    assert_string_equal(text_of(j, "startedAt"), "2026-01-01T00:00:00.000Z");
    assert_string_equal(text_of(json_object_get(j, "metadata"), "k"), "v\"\n");
    assert_string_equal(text_of(json_object_get(j, "lifecycle"), "onTimeout"), "kill");
    assert_string_equal(text_of(json_object_get(json_object_get(j, "network"), "egressProxy"), "username"),
                        "u");
    json_decref(j);
    buf_reset(&out);
    w = jsonw_start(&out);
    spec.network_json = "";
    s.state = CUBE__V1__SANDBOX_STATE__PAUSED;
    present_detail(&w, &s, NULL);
    j = parsed(&out);
    assert_null(json_object_get(j, "network"));
    assert_string_equal(text_of(j, "pauseMode"), "full");
    json_decref(j);
}

static void a_listed_one_has_no_secrets(void **state)
{
    Cube__V1__Sandbox s;
    Cube__V1__SandboxSpec spec;
    Cube__V1__Limits limits;
    _cleanup_buf_ struct buf out = {0};
    struct jsonw w = jsonw_start(&out);
    fill(&s, &spec, &limits);
    present_listed(&w, &s);
    json_t *j = parsed(&out);
    static const char *const absent[] = {"network",         "lifecycle",          "domain",
                                         "envdAccessToken", "trafficAccessToken", NULL};
    for (int i = 0; absent[i]; i++)
        assert_null(json_object_get(j, absent[i]));
    json_decref(j);
}

static void states_have_e2b_names(void **state)
{
    assert_string_equal(present_state(CUBE__V1__SANDBOX_STATE__CREATING), "running");
    assert_string_equal(present_state(CUBE__V1__SANDBOX_STATE__RESUMING), "running");
    assert_string_equal(present_state(CUBE__V1__SANDBOX_STATE__PAUSING), "paused");
    assert_string_equal(present_state(CUBE__V1__SANDBOX_STATE__PAUSED), "paused");
    assert_null(present_state(CUBE__V1__SANDBOX_STATE__KILLING));
    assert_null(present_state(CUBE__V1__SANDBOX_STATE__LOST));
    assert_string_equal(present_state_name(CUBE__V1__SANDBOX_STATE__LOST), "lost");
}

static void errors_have_the_status_as_a_number(void **state)
{
    _cleanup_buf_ struct buf out = {0};
    struct err e = {0};
    err_set(&e, ERR_CAPACITY, "Failed to place sandbox: memory");
    error_write(&out, 503, &e);
    json_t *j = parsed(&out);
    assert_int_equal(json_integer_value(json_object_get(j, "code")), 503);
    assert_string_equal(text_of(j, "message"), "Failed to place sandbox: memory");
    assert_string_equal(text_of(j, "error_code"), "sandbox_capacity_unavailable");
    assert_non_null(text_of(j, "remediation"));
    json_decref(j);
}

/* ---- the OpenAPI document ---- */

static void check_operation(json_t *op, const struct route *r)
{
    assert_non_null(op);
    assert_string_equal(text_of(op, "operationId"), r->name);
    char status[8];
    snprintf(status, sizeof status, "%d", r->status ? r->status : 501);
    assert_non_null(json_object_get(json_object_get(op, "responses"), status));
    size_t path_parameters = 0, i;
    json_t *p;
    json_array_foreach(json_object_get(op, "parameters"), i, p)
    {
        char braced[80];
        snprintf(braced, sizeof braced, "{%s}", text_of(p, "name"));
        if (strcmp(text_of(p, "in"), "path") == 0) {
            path_parameters++;
            assert_non_null(strstr(r->pattern, braced));
        }
    }
    size_t braces = 0;
    for (const char *s = r->pattern; *s; s++)
        braces += *s == '{';
    assert_int_equal(path_parameters, braces);
    assert_int_equal(json_object_get(op, "requestBody") != NULL, *r->request != '\0');
}

static void check_refs(json_t *v, json_t *schemas)
{
    const char *key;
    json_t *child;
    size_t i;
    const char *ref = text_of(v, "$ref");
    if (ref) {
        static const char prefix[] = "#/components/schemas/";
        assert_memory_equal(ref, prefix, sizeof prefix - 1);
        if (!json_object_get(schemas, ref + sizeof prefix - 1))
            print_error("no schema %s\n", ref);
        assert_non_null(json_object_get(schemas, ref + sizeof prefix - 1));
    }
    if (json_is_object(v))
        json_object_foreach(v, key, child) check_refs(child, schemas);
    json_array_foreach(v, i, child) check_refs(child, schemas);
}

static void the_document_is_the_table(void **state)
{
    _cleanup_buf_ struct buf out = {0};
    openapi_write(&out);
    json_t *j = parsed(&out);
    json_t *paths = json_object_get(j, "paths");
    size_t operations = 0;
    for (int i = 0; i < ROUTE_COUNT; i++) {
        char method[8];
        snprintf(method, sizeof method, "%s", route_method_name(routes[i].method));
        for (char *p = method; *p; p++)
            *p |= 0x20;
        check_operation(json_object_get(json_object_get(paths, routes[i].pattern), method), &routes[i]);
    }
    const char *key;
    json_t *path;
    json_object_foreach(paths, key, path) operations += json_object_size(path);
    assert_int_equal(operations, ROUTE_COUNT);
    check_refs(j, json_object_get(json_object_get(j, "components"), "schemas"));
    json_decref(j);
}

/* A field of the schema that create_parse does not know would show up as unknown in test_body.c's way; here:
 * the schema lists what the contract lists. */
static void the_create_schema_is_complete(void **state)
{
    static const char *const fields[] = {"templateID", "timeout",
                                         "autoPause",  "autoPauseMemory",
                                         "autoResume", "allow_internet_access",
                                         "network",    "metadata",
                                         "envVars",    "mcp",
                                         "iam",        "volumeMounts",
                                         NULL};
    json_t *j = json_loads(openapi_schema("NewSandboxV2"), 0, NULL);
    json_t *properties = json_object_get(j, "properties");
    for (int i = 0; fields[i]; i++)
        assert_non_null(json_object_get(properties, fields[i]));
    assert_int_equal(json_object_size(properties), sizeof fields / sizeof *fields - 1);
    json_decref(j);
}

/* docs/api.md, given as the program's argument, lists every call. */
static const char *document_path;

static void every_call_is_documented(void **state)
{
    FILE *f = fopen(document_path, "re");
    assert_non_null(f);
    static char text[1 << 18];
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    for (int i = 0; i < ROUTE_COUNT; i++) {
        char call[160];
        snprintf(call, sizeof call, "| `%s %s` |", route_method_name(routes[i].method), routes[i].pattern);
        if (!strstr(text, call))
            print_error("docs/api.md lacks %s\n", call);
        assert_non_null(strstr(text, call));
    }
}

int main(int argc, char **argv)
{
    document_path = argc > 1 ? argv[1] : "docs/api.md";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sandbox_has_what_the_sdks_need),
        cmocka_unit_test(tokens_are_shown_only_when_due),
        cmocka_unit_test(a_detail_has_every_required_field),
        cmocka_unit_test(a_listed_one_has_no_secrets),
        cmocka_unit_test(states_have_e2b_names),
        cmocka_unit_test(errors_have_the_status_as_a_number),
        cmocka_unit_test(the_document_is_the_table),
        cmocka_unit_test(the_create_schema_is_complete),
        cmocka_unit_test(every_call_is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
