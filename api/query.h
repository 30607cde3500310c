/* Query strings: parameters, typed reads with the contract's limits, and the threefold encoded metadata
 * filter. */
#pragma once

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define QUERY_MAX 32          /* parameters; more are an error */
#define QUERY_MAX_METADATA 32 /* pairs of a metadata filter */

struct query {
    size_t n;
    struct {
        const char *key, *value; /* decoded, NUL-terminated, in the caller's memory */
    } items[QUERY_MAX];
};

/** Parses "a=b&c=d" of `n` bytes. `mem` holds the decoded text and has room for n + 1 bytes; it must outlive
 * the query. */
int query_parse(struct query *q, const char *raw, size_t n, char *mem, struct err *e);

/** The first value of a key, or NULL. */
const char *query_get(const struct query *q, const char *key);

/** A decimal number in [min, max]; `fallback` when absent or empty. */
int query_int(const struct query *q, const char *key, int64_t min, int64_t max, int64_t fallback,
              int64_t *out, struct err *e);

/** An RFC 3339 time as milliseconds since the epoch (digits beyond milliseconds are cut); 0 when absent. */
int query_time(const struct query *q, const char *key, int64_t *out_ms, struct err *e);

/** RFC 3339, also with an offset and any number of digits after the second. */
int time_parse(const char *s, int64_t *out_ms);

struct metadata_filter {
    size_t n;
    struct {
        const char *key, *value;
    } items[QUERY_MAX_METADATA];
};

/** Decodes the value of `metadata` (already decoded once as a query parameter): unescape, split at '&' and
 * '=', unescape each part (contracts/e2b.md §1.4). Works in place on `text`. */
int metadata_parse(char *text, struct metadata_filter *out, struct err *e);
