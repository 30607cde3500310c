/* Owns the way in for JSON; invariant: no document reaches jansson's recursive parser before its size and
 * nesting are known to be within bounds. */
#include "lib/net/jsonin.h"

#include <inttypes.h>
#include <string.h>

/* Depth of brackets outside strings; the text need not be valid. */
static size_t depth_of(const char *s, size_t n)
{
    size_t depth = 0, most = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > most)
                most = depth;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return most;
}

json_t *jsonin_load(const char *text, size_t n, size_t max, struct err *e)
{
    if (n > max) {
        err_set(e, ERR_TOO_LARGE, "the JSON document has %zu bytes; at most %zu are allowed", n, max);
        return NULL;
    }
    if (depth_of(text, n) > JSONIN_MAX_DEPTH) {
        err_set(e, ERR_INVALID, "the JSON document is nested deeper than %d", JSONIN_MAX_DEPTH);
        return NULL;
    }
    json_error_t je;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!v)
        err_set(e, ERR_INVALID, "malformed JSON at line %d, column %d: %s", je.line, je.column, je.text);
    return v;
}

json_t *jsonin_load_object(const char *text, size_t n, size_t max, struct err *e)
{
    json_t *v = jsonin_load(text, n, max, e);
    if (!v || json_is_object(v))
        return v;
    err_set(e, ERR_INVALID, "the JSON document must be an object, not %s", jsonin_type(v));
    json_decref(v);
    return NULL;
}

const char *jsonin_type(const json_t *v)
{
    static const char *const names[] = {[JSON_OBJECT] = "an object",
                                        [JSON_ARRAY] = "an array",
                                        [JSON_STRING] = "a string",
                                        [JSON_INTEGER] = "an integer",
                                        [JSON_REAL] = "a number with a fraction",
                                        [JSON_TRUE] = "a boolean",
                                        [JSON_FALSE] = "a boolean",
                                        [JSON_NULL] = "null"};
    return v ? names[json_typeof(v)] : "absent";
}

static int wrong(const char *key, const char *want, const json_t *v, struct err *e)
{
    return err_set(e, ERR_INVALID, "%.60s must be %s, not %s", key, want, jsonin_type(v));
}

static const json_t *member(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

int jsonin_str(const json_t *obj, const char *key, size_t max, const char **out, struct err *e)
{
    const json_t *v = member(obj, key);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return wrong(key, "a string", v, e);
    if (json_string_length(v) > max)
        return err_set(e, ERR_INVALID, "%.60s has %zu bytes; at most %zu are allowed", key,
                       json_string_length(v), max);
    *out = json_string_value(v); /* jansson has refused \u0000 in strings already */
    return 1;
}

int jsonin_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e)
{
    const json_t *v = member(obj, key);
    if (!v)
        return 0;
    int64_t n;
    if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else if (json_is_real(v) && json_real_value(v) >= -9007199254740992.0 &&
               json_real_value(v) <= 9007199254740992.0 &&
               (double)(int64_t)json_real_value(v) == json_real_value(v)) {
        n = (int64_t)json_real_value(v); /* JavaScript knows one kind of number: 5.0 and 5e0 are 5 */
    } else {
        return wrong(key, "an integer", v, e);
    }
    if (n < min || n > max)
        return err_set(e, ERR_INVALID, "%.60s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, key,
                       n, min, max);
    *out = n;
    return 1;
}

int jsonin_bool(const json_t *obj, const char *key, bool *out, struct err *e)
{
    const json_t *v = member(obj, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return wrong(key, "a boolean", v, e);
    *out = json_is_true(v);
    return 1;
}

int jsonin_obj(const json_t *obj, const char *key, const json_t **out, struct err *e)
{
    const json_t *v = member(obj, key);
    if (!v)
        return 0;
    if (!json_is_object(v))
        return wrong(key, "an object", v, e);
    *out = v;
    return 1;
}

int jsonin_arr(const json_t *obj, const char *key, size_t max_items, const json_t **out, struct err *e)
{
    const json_t *v = member(obj, key);
    if (!v)
        return 0;
    if (!json_is_array(v))
        return wrong(key, "an array", v, e);
    if (json_array_size(v) > max_items)
        return err_set(e, ERR_INVALID, "%.60s has %zu items; at most %zu are allowed", key,
                       json_array_size(v), max_items);
    *out = v;
    return 1;
}

static int needed(int got, const char *key, struct err *e)
{
    if (got == 0)
        return err_set(e, ERR_INVALID, "%.60s is missing", key);
    return got < 0 ? -1 : 0;
}

int jsonin_need_str(const json_t *obj, const char *key, size_t max, const char **out, struct err *e)
{
    return needed(jsonin_str(obj, key, max, out, e), key, e);
}

int jsonin_need_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e)
{
    return needed(jsonin_int(obj, key, min, max, out, e), key, e);
}
