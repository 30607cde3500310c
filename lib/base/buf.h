/* A growing byte buffer. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Growing bytes. Zero-initialise; release with `buf_free`. `data` is not NUL-terminated unless `buf_cstr`
 * was called. */
struct buf {
    char *data;
    size_t len, cap;
    bool failed; /* an allocation failed; later appends do nothing, so one check at the end is enough */
};

void buf_free(struct buf *b);
void buf_reset(struct buf *b);                 /* keeps the memory */
bool buf_reserve(struct buf *b, size_t extra); /* false when out of memory */
void buf_append(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_consume(struct buf *b, size_t n); /* drops n bytes at the front */
const char *buf_cstr(struct buf *b);       /* NUL-terminates; "" when empty or failed */

static inline void cleanup_buf(struct buf *b)
{
    buf_free(b);
}
#define _cleanup_buf_ __attribute__((cleanup(cleanup_buf)))
