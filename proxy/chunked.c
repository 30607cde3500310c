/* The scanner of chunked bodies. Invariant: sizes are plain hex of at most 15 digits, every line ends in
 * CRLF, extensions and trailers are bounded;
 * trailers are header fields that may come late; nothing else is a chunked body. */
#include "proxy/chunked.h"

#include <string.h>

enum {
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER_START,
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    END_LF,
    END = CHUNKED_STATE_END
};
enum { EXTENSION_MAX = 1024 };
_Static_assert(sizeof "e2b-traffic-access-token" - 1 <= CHUNKED_NAME_MAX, "the longest forbidden name");

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool size_step(struct chunked *c, char ch)
{
    int v = hex_value(ch);
    if (v >= 0) {
        c->left = c->left << 4 | (uint64_t)v;
        return ++c->digits <= 15;
    }
    if (c->digits == 0)
        return false;
    if (ch == ';') {
        c->state = EXTENSION;
        c->extra = 0;
        return true;
    }
    c->state = SIZE_LF;
    return ch == '\r';
}

static bool extension_step(struct chunked *c, char ch)
{
    if (ch == '\r') {
        c->state = SIZE_LF;
        return true;
    }
    return http_value_valid(&ch, 1) && ++c->extra <= EXTENSION_MAX;
}

/* Of a name that is longer than all forbidden ones the rest is not needed. */
static bool name_step(struct chunked *c, char ch)
{
    if (c->name_len < sizeof c->name)
        c->name[c->name_len++] = ch;
    return http_name_valid(&ch, 1) && ++c->extra <= HTTP_TRAILER_MAX;
}

static bool step(struct chunked *c, char ch)
{
    switch (c->state) {
    case SIZE:
        return size_step(c, ch);
    case EXTENSION:
        return extension_step(c, ch);
    case SIZE_LF:
        c->state = c->left ? DATA : TRAILER_START;
        c->extra = 0;
        return ch == '\n';
    case DATA_CR:
        c->state = DATA_LF;
        return ch == '\r';
    case DATA_LF:
        c->state = SIZE;
        c->digits = 0;
        return ch == '\n';
    case TRAILER_START:
        c->state = ch == '\r' ? END_LF : TRAILER_NAME;
        c->name_len = 0;
        return ch == '\r' || (++c->lines <= HTTP_HEADERS_MAX && name_step(c, ch));
    case TRAILER_NAME:
        if (ch != ':')
            return name_step(c, ch);
        c->state = TRAILER_VALUE;
        return ++c->extra <= HTTP_TRAILER_MAX && !http_trailer_forbidden((struct str){c->name, c->name_len});
    case TRAILER_VALUE:
        if (ch == '\r')
            c->state = TRAILER_LF;
        return ++c->extra <= HTTP_TRAILER_MAX && (ch == '\r' || http_value_valid(&ch, 1));
    case TRAILER_LF:
        c->state = TRAILER_START;
        return ++c->extra <= HTTP_TRAILER_MAX && ch == '\n';
    case END_LF:
        c->state = ch == '\n' ? END : END_LF;
        return ch == '\n';
    default:
        return false;
    }
}

enum chunked_event chunked_next(struct chunked *c, const char *p, size_t n, size_t *used, struct str *span)
{
    size_t i = 0;
    while (i < n) {
        if (c->state == END) {
            *used = i;
            return CHUNKED_END;
        }
        if (c->state == DATA) {
            size_t take = n - i < c->left ? n - i : (size_t)c->left;
            *span = (struct str){p + i, (uint32_t)take};
            c->left -= take;
            if (c->left == 0)
                c->state = DATA_CR;
            *used = i + take;
            return CHUNKED_DATA;
        }
        if (c->state >= TRAILER_START) {
            size_t start = i;
            while (i < n && c->state != END)
                if (!step(c, p[i++]))
                    return CHUNKED_BAD;
            *span = (struct str){p + start, (uint32_t)(i - start)};
            *used = i;
            return CHUNKED_TRAILER;
        }
        if (!step(c, p[i++]))
            return CHUNKED_BAD;
    }
    *used = i;
    return c->state == END ? CHUNKED_END : CHUNKED_MORE;
}

enum chunked_event chunked_skip(struct chunked *c, const char *p, size_t n, size_t *used)
{
    size_t total = 0;
    for (;;) {
        size_t step_used = 0;
        struct str span;
        enum chunked_event ev = chunked_next(c, p + total, n - total, &step_used, &span);
        total += step_used;
        *used = total;
        if (ev != CHUNKED_DATA && ev != CHUNKED_TRAILER)
            return ev;
    }
}
