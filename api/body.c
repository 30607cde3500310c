/* Owns the reading of JSON bodies. Invariant: whatever passes has the type that the caller asked for and no
 * NUL byte in any string, so that it can be put into protobuf-c messages, whose strings end at a NUL. */
#include "api/body.h"

#include "lib/net/jsonin.h"

#include <stdio.h>
#include <string.h>

int body_parse(const char *p, size_t n, bool optional, json_t **out, struct err *e)
{
    *out = NULL;
    if (n == 0 && !optional)
        return err_set(e, ERR_INVALID, "validation error: a JSON request body is required");
    if (n == 0)
        return (*out = json_object()) ? 0
                                      : err_set(e, ERR_INTERNAL, "reading the request body: out of memory");
    json_t *root = jsonin_load(p, n, BODY_MAX, e);
    if (!root)
        return e && e->code == ERR_INVALID
                   ? err_wrap(e, "validation error: the request body is not valid JSON")
                   : -1;
    if (optional && json_is_null(root)) {
        json_decref(root);
        return body_parse(NULL, 0, true, out, e);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_INVALID, "validation error: the request body must be a JSON object");
    }
    *out = root;
    return 0;
}

static int wrong(struct err *e, const char *path, const char *key, const char *what)
{
    return err_set(e, ERR_INVALID, "validation error: '%s%s%s' must be %s", path, *path ? "." : "", key,
                   what);
}

static const json_t *field(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

int body_bool(const json_t *obj, const char *path, const char *key, bool *out, bool *present, struct err *e)
{
    const json_t *v = field(obj, key);
    if (present)
        *present = v != NULL;
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return wrong(e, path, key, "a boolean");
    *out = json_is_true(v);
    return 0;
}

int body_int(const json_t *obj, const char *path, const char *key, int64_t min, int64_t max, int64_t *out,
             bool *present, struct err *e)
{
    const json_t *v = field(obj, key);
    if (present)
        *present = v != NULL;
    if (!v)
        return 0;
    if (!json_is_integer(v))
        return wrong(e, path, key, "an integer");
    if (json_integer_value(v) < min || json_integer_value(v) > max) {
        char range[64];
        snprintf(range, sizeof range, "between %lld and %lld", (long long)min, (long long)max);
        return wrong(e, path, key, range);
    }
    *out = json_integer_value(v);
    return 0;
}

int body_str(const json_t *obj, const char *path, const char *key, size_t max_len, const char **out,
             struct err *e)
{
    const json_t *v = field(obj, key);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return wrong(e, path, key, "a string");
    if (json_string_length(v) > max_len) {
        char what[64];
        snprintf(what, sizeof what, "at most %zu bytes long", max_len);
        return wrong(e, path, key, what);
    }
    *out = json_string_value(v);
    return 0;
}

int body_obj(const json_t *obj, const char *path, const char *key, const json_t **out, struct err *e)
{
    const json_t *v = field(obj, key);
    if (v && !json_is_object(v))
        return wrong(e, path, key, "an object");
    *out = v;
    return 0;
}

int body_arr(const json_t *obj, const char *path, const char *key, size_t max_items, const json_t **out,
             struct err *e)
{
    const json_t *v = field(obj, key);
    if (v && !json_is_array(v))
        return wrong(e, path, key, "an array");
    if (v && json_array_size(v) > max_items) {
        char what[64];
        snprintf(what, sizeof what, "an array of at most %zu items", max_items);
        return wrong(e, path, key, what);
    }
    *out = v;
    return 0;
}

static bool is_known(const char *key, const char *const *known)
{
    for (; *known; known++)
        if (strcmp(*known, key) == 0)
            return true;
    return false;
}

void body_unknown(const json_t *obj, const char *path, const char *const *known, struct unknown *u)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)obj, key, v)
    {
        if (is_known(key, known))
            continue;
        u->n++;
        size_t used = strlen(u->names);
        size_t need = strlen(path) + strlen(key) + 4;
        if (used + need >= sizeof u->names)
            continue;
        snprintf(u->names + used, sizeof u->names - used, "%s%s%s%s", used ? ", " : "", path,
                 *path ? "." : "", key);
        for (char *p = u->names + used; *p; p++)
            if (*p < 0x20 || *p > 0x7e || *p == '"' || *p == '\\')
                *p = '?';
    }
}
