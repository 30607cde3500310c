/* Owns /openapi.json. Invariant: paths, parameters and statuses come from the table that routes, so the
 * document cannot promise what the server does not do. */
#include "api/openapi.h"

#include "api/handlers.h"
#include "api/route.h"
#include "api/server.h"
#include "lib/base/jsonw.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *json;
} schemas[] = {
#define SCHEMA(name, json) {#name, json},
#include "api/schemas.def"
#undef SCHEMA
};

const char *openapi_schema(const char *name)
{
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        if (strcmp(schemas[i].name, name) == 0)
            return schemas[i].json;
    return NULL;
}

static void schema_ref(struct jsonw *w, const char *name)
{
    char ref[96];
    size_t n = strcspn(name, "?[");
    bool list = name[n] == '[';
    snprintf(ref, sizeof ref, "#/components/schemas/%.*s", (int)n, name);
    jsonw_obj(w);
    if (list) {
        jsonw_kstr(w, "type", "array");
        jsonw_key(w, "items");
        jsonw_obj(w);
    }
    jsonw_kstr(w, "$ref", ref);
    if (list)
        jsonw_obj_end(w);
    jsonw_obj_end(w);
}

static void json_content(struct jsonw *w, const char *schema)
{
    jsonw_key(w, "content");
    jsonw_obj(w);
    jsonw_key(w, "application/json");
    jsonw_obj(w);
    jsonw_key(w, "schema");
    schema_ref(w, schema);
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

static void parameter(struct jsonw *w, const char *in, const char *name, size_t n, const char *type,
                      size_t type_n)
{
    bool date = type_n == 9 && memcmp(type, "date-time", 9) == 0;
    jsonw_obj(w);
    jsonw_kstr(w, "in", in);
    jsonw_key(w, "name");
    jsonw_strn(w, name, n);
    jsonw_kbool(w, "required", strcmp(in, "path") == 0);
    jsonw_key(w, "schema");
    jsonw_obj(w);
    jsonw_key(w, "type");
    jsonw_strn(w, date ? "string" : type, date ? 6 : type_n);
    if (date)
        jsonw_kstr(w, "format", "date-time");
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

static void parameters(struct jsonw *w, const struct route *r)
{
    jsonw_key(w, "parameters");
    jsonw_arr(w);
    for (const char *p = strchr(r->pattern, '{'); p; p = strchr(p, '{')) {
        size_t n = strcspn(++p, "}");
        parameter(w, "path", p, n, "string", 6);
    }
    for (const char *p = r->query; *p;) {
        size_t n = strcspn(p, ":"), type = strcspn(p + n + 1, ",");
        parameter(w, "query", p, n, p + n + 1, type);
        p += n + 1 + type;
        p += *p == ',';
    }
    jsonw_arr_end(w);
}

static void responses(struct jsonw *w, const struct route *r)
{
    char status[8];
    jsonw_key(w, "responses");
    jsonw_obj(w);
    snprintf(status, sizeof status, "%d", r->status ? r->status : 501);
    jsonw_key(w, status);
    jsonw_obj(w);
    jsonw_kstr(w, "description", r->status ? "Success" : "Not implemented yet");
    if (*r->response)
        json_content(w, r->response);
    jsonw_obj_end(w);
    jsonw_key(w, "default");
    jsonw_obj(w);
    jsonw_kstr(w, "description", "Error");
    json_content(w, "Error");
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

static void operation(struct jsonw *w, const struct route *r)
{
    static const char *const schemes[] = {NULL, "ApiKeyAuth", "AdminTokenAuth"};
    char method[8];
    snprintf(method, sizeof method, "%s", route_method_name(r->method));
    for (char *p = method; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    jsonw_key(w, method);
    jsonw_obj(w);
    jsonw_kstr(w, "operationId", r->name);
    if (r->status) {
        jsonw_kstr(w, "summary", r->summary);
    } else {
        char text[160];
        snprintf(text, sizeof text, "Not implemented yet: needs %s", r->summary);
        jsonw_kstr(w, "summary", text);
        jsonw_kbool(w, "x-not-implemented", true);
    }
    jsonw_key(w, "security");
    jsonw_arr(w);
    if (schemes[r->auth]) {
        jsonw_obj(w);
        jsonw_key(w, schemes[r->auth]);
        jsonw_arr(w);
        jsonw_arr_end(w);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
    parameters(w, r);
    if (*r->request) {
        jsonw_key(w, "requestBody");
        jsonw_obj(w);
        jsonw_kbool(w, "required", !strchr(r->request, '?'));
        json_content(w, r->request);
        jsonw_obj_end(w);
    }
    responses(w, r);
    jsonw_obj_end(w);
}

static void paths(struct jsonw *w)
{
    bool done[ROUTE_COUNT] = {false};
    jsonw_key(w, "paths");
    jsonw_obj(w);
    for (int i = 0; i < ROUTE_COUNT; i++) {
        if (done[i])
            continue;
        jsonw_key(w, routes[i].pattern);
        jsonw_obj(w);
        for (int k = i; k < ROUTE_COUNT; k++)
            if (strcmp(routes[k].pattern, routes[i].pattern) == 0) {
                operation(w, &routes[k]);
                done[k] = true;
            }
        jsonw_obj_end(w);
    }
    jsonw_obj_end(w);
}

static void security_scheme(struct jsonw *w, const char *name, const char *header)
{
    jsonw_key(w, name);
    jsonw_obj(w);
    jsonw_kstr(w, "type", "apiKey");
    jsonw_kstr(w, "in", "header");
    jsonw_kstr(w, "name", header);
    jsonw_obj_end(w);
}

void openapi_write(struct buf *out)
{
    struct jsonw w = jsonw_start(out);
    jsonw_obj(&w);
    jsonw_kstr(&w, "openapi", "3.0.3");
    jsonw_key(&w, "info");
    jsonw_obj(&w);
    jsonw_kstr(&w, "title", "cube-api");
    jsonw_kstr(&w, "version", CUBE_VERSION);
    jsonw_kstr(&w, "description", "E2B-compatible sandbox API; what is ours alone is under /cube/v1.");
    jsonw_obj_end(&w);
    paths(&w);
    jsonw_key(&w, "components");
    jsonw_obj(&w);
    jsonw_key(&w, "securitySchemes");
    jsonw_obj(&w);
    security_scheme(&w, "ApiKeyAuth", "X-API-Key");
    security_scheme(&w, "AdminTokenAuth", "X-Admin-Token");
    jsonw_obj_end(&w);
    jsonw_key(&w, "schemas");
    jsonw_obj(&w);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        jsonw_key(&w, schemas[i].name);
        jsonw_raw(&w, schemas[i].json, strlen(schemas[i].json));
    }
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
}
