/* Reading JSON from outside: jansson with limits, and getters that say exactly what is wrong with a member.
 */
#pragma once

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSONIN_MAX_DEPTH 32

/** Parses one document of at most `max` bytes: valid UTF-8, no duplicate keys, nothing behind it, nested at
 * most JSONIN_MAX_DEPTH deep. The caller owns the result (json_decref). NULL: ERR_INVALID, or ERR_TOO_LARGE.
 */
json_t *jsonin_load(const char *text, size_t n, size_t max, struct err *e);

/** The same, and the document must be an object. */
json_t *jsonin_load_object(const char *text, size_t n, size_t max, struct err *e);

/* Getters of one member. Returns 1 when it is there, 0 when it is absent or null (`out` is untouched), -1
 * with an error that names member, wanted and found type. Strings belong to the document. `max` bounds the
 * bytes of a string. */
int jsonin_str(const json_t *obj, const char *key, size_t max, const char **out, struct err *e);
int jsonin_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e);
int jsonin_bool(const json_t *obj, const char *key, bool *out, struct err *e);
int jsonin_obj(const json_t *obj, const char *key, const json_t **out, struct err *e);
int jsonin_arr(const json_t *obj, const char *key, size_t max_items, const json_t **out, struct err *e);

/** As the getters, but an absent member is an error as well: returns 0 or -1. */
int jsonin_need_str(const json_t *obj, const char *key, size_t max, const char **out, struct err *e);
int jsonin_need_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                    struct err *e);

/** "string", "integer", … as people call it. */
const char *jsonin_type(const json_t *v);

static inline void cleanup_json(json_t **v)
{
    json_decref(*v);
}
#define _cleanup_json_ __attribute__((cleanup(cleanup_json)))
