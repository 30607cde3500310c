/* JSON request bodies: strict parsing (RFC 8259, no duplicate keys, bounded depth), typed reads whose errors
 * name the field, and the rule for fields that nobody knows (contracts/internal.md §11). */
#pragma once

#include "lib/base/err.h"

#include <jansson.h>
#include <stdint.h>

/** Names of unknown fields, for the Warning header; cut when there are many. */
struct unknown {
    char names[200]; /* "foo, network.bar": printable ASCII without quotes */
    unsigned n;
};

/** The largest body of a JSON request; contracts/e2b.md §1.2. */
#define BODY_MAX (16 << 20)

/** Parses a body into an object. An empty body gives an empty object when `optional`. The caller decrefs
 * `out`. */
int body_parse(const char *p, size_t n, bool optional, json_t **out, struct err *e);

/** Typed reads. A field that is absent or null leaves the output as it is and `present` (may be NULL) false.
 * `path` is the object's own name for messages, "" at the top. */
int body_bool(const json_t *obj, const char *path, const char *key, bool *out, bool *present, struct err *e);
int body_int(const json_t *obj, const char *path, const char *key, int64_t min, int64_t max, int64_t *out,
             bool *present, struct err *e);
int body_str(const json_t *obj, const char *path, const char *key, size_t max_len, const char **out,
             struct err *e);
int body_obj(const json_t *obj, const char *path, const char *key, const json_t **out, struct err *e);
int body_arr(const json_t *obj, const char *path, const char *key, size_t max_items, const json_t **out,
             struct err *e);

/** Records the fields of `obj` that are not in `known` (NULL-terminated). */
void body_unknown(const json_t *obj, const char *path, const char *const *known, struct unknown *u);
