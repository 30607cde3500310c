/* Owns the growth of byte buffers; invariant: len <= cap, and a failed buffer never grows again. */
#include "lib/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
}

bool buf_reserve(struct buf *b, size_t extra)
{
    if (b->failed)
        return false;
    if (b->cap - b->len >= extra)
        return true;
    size_t want = b->len + extra;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < want && cap <= SIZE_MAX / 2)
        cap *= 2;
    char *p = want < b->len || cap < want ? NULL : realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *p, size_t n)
{
    if (n == 0 || !buf_reserve(b, n))
        return;
    memcpy(b->data + b->len, p, n);
    b->len += n;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !buf_reserve(b, (size_t)n + 1))
        return;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

const char *buf_cstr(struct buf *b)
{
    if (!buf_reserve(b, 1))
        return "";
    b->data[b->len] = '\0';
    return b->data;
}
