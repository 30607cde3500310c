/* Owns the text form of JSON values; invariant: whatever bytes come in, what goes out is valid JSON in valid
 * UTF-8. */
#include "lib/base/jsonw.h"

#include "lib/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void before_value(struct jsonw *w)
{
    if (w->comma)
        buf_putc(w->out, ',');
    w->comma = true;
}

void jsonw_obj(struct jsonw *w)
{
    before_value(w);
    buf_putc(w->out, '{');
    w->comma = false;
}

void jsonw_obj_end(struct jsonw *w)
{
    buf_putc(w->out, '}');
    w->comma = true;
}

void jsonw_arr(struct jsonw *w)
{
    before_value(w);
    buf_putc(w->out, '[');
    w->comma = false;
}

void jsonw_arr_end(struct jsonw *w)
{
    buf_putc(w->out, ']');
    w->comma = true;
}

/* Length of the UTF-8 sequence at `s` (of `n` bytes), 0 when it is not one: overlong forms, surrogates and
 * values above U+10FFFF are refused (RFC 3629 §4). */
static size_t sequence(const uint8_t *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        return n >= 2 && (s[1] & 0xc0) == 0x80 ? 2 : 0;
    if (s[0] >= 0xe0 && s[0] <= 0xef) {
        uint8_t low = s[0] == 0xe0 ? 0xa0 : 0x80, high = s[0] == 0xed ? 0x9f : 0xbf;
        return n >= 3 && s[1] >= low && s[1] <= high && (s[2] & 0xc0) == 0x80 ? 3 : 0;
    }
    if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        uint8_t low = s[0] == 0xf0 ? 0x90 : 0x80, high = s[0] == 0xf4 ? 0x8f : 0xbf;
        bool ok = n >= 4 && s[1] >= low && s[1] <= high && (s[2] & 0xc0) == 0x80 && (s[3] & 0xc0) == 0x80;
        return ok ? 4 : 0;
    }
    return 0;
}

/* The escape of a character that must not stand for itself, or NULL. Besides what JSON asks for, the line
 * separators that break consumers of lines are escaped: U+0085, U+2028, U+2029. */
static const char *escape(const uint8_t *s, size_t len, char text[8])
{
    if (len == 1) {
        switch (s[0]) {
        case '"':
            return "\\\"";
        case '\\':
            return "\\\\";
        case '\n':
            return "\\n";
        case '\r':
            return "\\r";
        case '\t':
            return "\\t";
        }
        if (s[0] >= 0x20 && s[0] != 0x7f)
            return NULL;
        snprintf(text, 8, "\\u%04x", s[0]);
        return text;
    }
    if (len == 2 && s[0] == 0xc2 && s[1] == 0x85)
        return "\\u0085";
    if (len == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0xa8 || s[2] == 0xa9))
        return s[2] == 0xa8 ? "\\u2028" : "\\u2029";
    return NULL;
}

static void put_string(struct buf *out, const char *text, size_t n)
{
    const uint8_t *s = (const uint8_t *)text;
    buf_putc(out, '"');
    size_t from = 0, at = 0;
    while (at < n) {
        if (s[at] >= 0x20 && s[at] < 0x7f && s[at] != '"' && s[at] != '\\') {
            at++;
            continue;
        }
        char esc_buf[8];
        size_t len = sequence(s + at, n - at);
        const char *esc = len == 0 ? "\xef\xbf\xbd" : escape(s + at, len, esc_buf);
        if (esc) {
            buf_append(out, s + from, at - from);
            buf_puts(out, esc);
            from = at + (len ? len : 1);
        }
        at += len ? len : 1;
    }
    buf_append(out, s + from, n - from);
    buf_putc(out, '"');
}

void jsonw_key(struct jsonw *w, const char *key)
{
    if (w->comma)
        buf_putc(w->out, ',');
    put_string(w->out, key, strlen(key));
    buf_putc(w->out, ':');
    w->comma = false;
}

void jsonw_strn(struct jsonw *w, const char *s, size_t n)
{
    before_value(w);
    put_string(w->out, s, n);
}

void jsonw_str(struct jsonw *w, const char *s)
{
    if (s)
        jsonw_strn(w, s, strlen(s));
    else
        jsonw_null(w);
}

void jsonw_int(struct jsonw *w, int64_t v)
{
    before_value(w);
    char text[24];
    char *at = text + sizeof text;
    uint64_t rest = v < 0 ? -(uint64_t)v : (uint64_t)v;
    do {
        *--at = (char)('0' + rest % 10);
    } while (rest /= 10);
    if (v < 0)
        *--at = '-';
    buf_append(w->out, at, (size_t)(text + sizeof text - at));
}

void jsonw_uint(struct jsonw *w, uint64_t v)
{
    before_value(w);
    buf_printf(w->out, "%llu", (unsigned long long)v);
}

void jsonw_double(struct jsonw *w, double v, int decimals)
{
    if (!isfinite(v)) {
        jsonw_null(w);
        return;
    }
    before_value(w);
    buf_printf(w->out, "%.*f", decimals, v);
}

void jsonw_bool(struct jsonw *w, bool v)
{
    before_value(w);
    buf_puts(w->out, v ? "true" : "false");
}

void jsonw_null(struct jsonw *w)
{
    before_value(w);
    buf_puts(w->out, "null");
}

void jsonw_raw(struct jsonw *w, const char *json, size_t n)
{
    before_value(w);
    buf_append(w->out, json, n);
}

void jsonw_base64(struct jsonw *w, const void *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *in = p;
    before_value(w);
    if (!buf_reserve(w->out, (n + 2) / 3 * 4 + 2))
        return;
    buf_putc(w->out, '"');
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t v =
            (uint32_t)in[i] << 16 | (have > 1 ? (uint32_t)in[i + 1] << 8 : 0) | (have > 2 ? in[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], have > 1 ? digits[v >> 6 & 63] : '=',
                        have > 2 ? digits[v & 63] : '='};
        buf_append(w->out, four, 4);
    }
    buf_putc(w->out, '"');
}

void jsonw_time_ms(struct jsonw *w, int64_t unix_ms)
{
    char text[CLOCK_TEXT_BYTES + 2] = "\"";
    if (!clock_text(unix_ms, text + 1)) {
        jsonw_null(w);
        return;
    }
    text[CLOCK_TEXT_BYTES] = '"';
    before_value(w);
    buf_append(w->out, text, CLOCK_TEXT_BYTES + 1);
}

void jsonw_kstr(struct jsonw *w, const char *key, const char *s)
{
    jsonw_key(w, key);
    jsonw_str(w, s);
}

void jsonw_kint(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key);
    jsonw_int(w, v);
}

void jsonw_kbool(struct jsonw *w, const char *key, bool v)
{
    jsonw_key(w, key);
    jsonw_bool(w, v);
}
