/* Append-only JSON writer: every JSON answer of the platform is written through it (c-libraries.md §5: a
 * tenth of the cost of building a tree). */
#pragma once

#include "lib/base/buf.h"

/** Writes into a buffer that the caller owns. Commas are put by the writer; nesting is the caller's duty. */
struct jsonw {
    struct buf *out;
    bool comma; /* the next value or key in this container needs a comma before it */
};

static inline struct jsonw jsonw_start(struct buf *out)
{
    return (struct jsonw){.out = out};
}

void jsonw_obj(struct jsonw *w);     /* { */
void jsonw_obj_end(struct jsonw *w); /* } */
void jsonw_arr(struct jsonw *w);     /* [ */
void jsonw_arr_end(struct jsonw *w); /* ] */
void jsonw_key(struct jsonw *w, const char *key);
void jsonw_str(struct jsonw *w, const char *s); /* NULL → null */
void jsonw_strn(struct jsonw *w, const char *s,
                size_t n); /* invalid UTF-8 becomes U+FFFD; U+2028/9, U+0085 are escaped */
void jsonw_int(struct jsonw *w, int64_t v);
void jsonw_uint(struct jsonw *w, uint64_t v);
void jsonw_double(struct jsonw *w, double v, int decimals); /* fixed decimals; not-finite → null */
void jsonw_bool(struct jsonw *w, bool v);
void jsonw_null(struct jsonw *w);
void jsonw_raw(struct jsonw *w, const char *json, size_t n); /* a value that is JSON already */
void jsonw_base64(struct jsonw *w, const void *p, size_t n); /* standard alphabet, padded, quoted */
void jsonw_time_ms(struct jsonw *w, int64_t unix_ms);        /* RFC 3339, UTC, milliseconds, quoted */

/* Key and value at once. */
void jsonw_kstr(struct jsonw *w, const char *key, const char *s);
void jsonw_kint(struct jsonw *w, const char *key, int64_t v);
void jsonw_kbool(struct jsonw *w, const char *key, bool v);
