/* The message writer. Invariant: nested messages in binary form get their length put in front when they are
 * closed, so the caller writes each field once, in order, for both encodings. */
#include "guest/envd/codec.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void put_varint(struct buf *b, uint64_t v)
{
    while (v >= 0x80) {
        buf_putc(b, (char)(v | 0x80));
        v >>= 7;
    }
    buf_putc(b, (char)v);
}

static void put_tag(struct msgw *w, uint32_t num, unsigned wire)
{
    put_varint(w->out, (uint64_t)num << 3 | wire);
}

static void enter(struct msgw *w)
{
    w->start[w->depth++] = w->out->len;
}

static void leave(struct msgw *w)
{
    size_t at = w->start[--w->depth], n = w->out->len - at;
    char len[10];
    size_t k = 0;
    for (uint64_t v = n;; v >>= 7) {
        len[k++] = (char)(v >= 0x80 ? (v & 0x7f) | 0x80 : v);
        if (v < 0x80)
            break;
    }
    if (!buf_reserve(w->out, k))
        return;
    memmove(w->out->data + at + k, w->out->data + at, n);
    memcpy(w->out->data + at, len, k);
    w->out->len += k;
}

void msgw_start(struct msgw *w, enum codec codec, struct buf *out)
{
    *w = (struct msgw){.codec = codec, .out = out, .json = jsonw_start(out)};
    if (codec == CODEC_JSON)
        jsonw_obj(&w->json);
}

void msgw_end(struct msgw *w)
{
    if (w->codec == CODEC_JSON)
        jsonw_obj_end(&w->json);
}

void msgw_open(struct msgw *w, const char *name, uint32_t num)
{
    if (w->codec == CODEC_JSON) {
        jsonw_key(&w->json, name);
        jsonw_obj(&w->json);
        return;
    }
    put_tag(w, num, 2);
    enter(w);
}

void msgw_close(struct msgw *w)
{
    if (w->codec == CODEC_JSON)
        jsonw_obj_end(&w->json);
    else
        leave(w);
}

void msgw_list(struct msgw *w, const char *name)
{
    if (w->codec == CODEC_JSON) {
        jsonw_key(&w->json, name);
        jsonw_arr(&w->json);
    }
}

void msgw_item(struct msgw *w, uint32_t num)
{
    if (w->codec == CODEC_JSON) {
        jsonw_obj(&w->json);
        return;
    }
    put_tag(w, num, 2);
    enter(w);
}

void msgw_list_end(struct msgw *w)
{
    if (w->codec == CODEC_JSON)
        jsonw_arr_end(&w->json);
}

void msgw_bytes(struct msgw *w, const char *name, uint32_t num, const void *p, size_t n)
{
    if (w->codec == CODEC_JSON) {
        jsonw_key(&w->json, name);
        jsonw_base64(&w->json, p, n);
        return;
    }
    put_tag(w, num, 2);
    put_varint(w->out, n);
    buf_append(w->out, p, n);
}

/* Whether the text needs no escape: printable ASCII but for quote and backslash. Nearly all of a listing is.
 */
static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < ' ' || s[i] == '"' || s[i] == '\\' || s[i] == 0x7f)
            return false;
    return true;
}

static void put_key(struct msgw *w, const char *name)
{
    size_t n = strlen(name);
    if (!buf_reserve(w->out, n + 4))
        return;
    char *p = w->out->data + w->out->len;
    if (w->json.comma)
        *p++ = ',';
    *p++ = '"';
    memcpy(p, name, n);
    p += n;
    *p++ = '"';
    *p++ = ':';
    w->out->len = (size_t)(p - w->out->data);
    w->json.comma = false;
}

/* File names are bytes, but strings of protobuf must be UTF-8, or clients refuse the whole message: U+FFFD
 * for what is not, as in JSON. */
static void put_repaired(struct buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t k = 1;
        while (k <= 4 && i + k <= n && !utf8_valid(s + i, k))
            k++;
        bool bad = k > 4 || i + k > n;
        buf_append(b, bad ? "\xef\xbf\xbd" : s + i, bad ? 3 : k);
        i += bad ? 1 : k;
    }
}

void msgw_str(struct msgw *w, const char *name, uint32_t num, const char *s)
{
    if (w->codec == CODEC_JSON) {
        size_t n = strlen(s);
        put_key(w, name);
        if (!is_plain(s, n)) {
            jsonw_strn(&w->json, s, n);
            return;
        }
        if (!buf_reserve(w->out, n + 2))
            return;
        char *p = w->out->data + w->out->len;
        p[0] = '"';
        memcpy(p + 1, s, n);
        p[n + 1] = '"';
        w->out->len += n + 2;
        w->json.comma = true;
        return;
    }
    size_t n = strlen(s);
    if (utf8_valid(s, n)) {
        msgw_bytes(w, name, num, s, n);
        return;
    }
    _cleanup_buf_ struct buf b = {0};
    put_repaired(&b, s, n);
    msgw_bytes(w, name, num, b.data, b.len);
}

static void scalar(struct msgw *w, uint32_t num, uint64_t v)
{
    put_tag(w, num, 0);
    put_varint(w->out, v);
}

/* Decimal digits without a trip through printf: a listing has thousands of numbers. */
static void put_decimal(struct buf *b, uint64_t v)
{
    char text[20];
    size_t n = sizeof(text);
    do {
        text[--n] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    buf_append(b, text + n, sizeof(text) - n);
}

void msgw_u32(struct msgw *w, const char *name, uint32_t num, uint32_t v)
{
    if (w->codec == CODEC_JSON) {
        put_key(w, name);
        put_decimal(w->out, v);
        w->json.comma = true;
        return;
    }
    scalar(w, num, v);
}

void msgw_i64(struct msgw *w, const char *name, uint32_t num, int64_t v)
{
    if (w->codec == CODEC_JSON) {
        put_key(w, name);
        buf_putc(w->out, '"');
        if (v < 0)
            buf_putc(w->out, '-');
        put_decimal(w->out, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
        buf_putc(w->out, '"');
        w->json.comma = true;
        return;
    }
    scalar(w, num, (uint64_t)v);
}

void msgw_s32(struct msgw *w, const char *name, uint32_t num, int32_t v)
{
    if (w->codec == CODEC_JSON) {
        put_key(w, name);
        jsonw_int(&w->json, v);
        return;
    }
    scalar(w, num, (uint32_t)v << 1 ^ (uint32_t)(v >> 31));
}

void msgw_bool(struct msgw *w, const char *name, uint32_t num, bool v)
{
    if (w->codec == CODEC_JSON) {
        put_key(w, name);
        jsonw_bool(&w->json, v);
        return;
    }
    scalar(w, num, v);
}

void msgw_enum(struct msgw *w, const char *name, uint32_t num, const char *label, int v)
{
    if (w->codec == CODEC_JSON)
        msgw_str(w, name, num, label);
    else
        scalar(w, num, (uint64_t)v);
}

static char *put_padded(char *p, unsigned v, int width)
{
    for (int i = width - 1; i >= 0; i--, v /= 10)
        p[i] = (char)('0' + v % 10);
    return p + width;
}

/* RFC 3339; years of four digits, as the format asks. */
static void time_text(int64_t s, int32_t ns, char out[48])
{
    struct tm tm;
    time_t t = s;
    if (!gmtime_r(&t, &tm) || tm.tm_year < -1900 || tm.tm_year > 9999 - 1900)
        return;
    const int parts[6] = {tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec};
    char *p = out;
    for (int i = 0; i < 6; i++) {
        p = put_padded(p, (unsigned)parts[i], i ? 2 : 4);
        *p++ = "--T::."[i];
    }
    if (ns)
        p = put_padded(p, (unsigned)ns, 9);
    else
        p--;
    *p++ = 'Z';
    *p = 0;
}

void msgw_time(struct msgw *w, const char *name, uint32_t num, int64_t s, int32_t ns)
{
    if (w->codec == CODEC_JSON) {
        char text[48] = "";
        time_text(s, ns, text);
        msgw_str(w, name, num, text);
        return;
    }
    msgw_open(w, name, num);
    scalar(w, 1, (uint64_t)s);
    scalar(w, 2, (uint64_t)ns);
    msgw_close(w);
}

void msgw_map(struct msgw *w, const char *name, uint32_t num, const struct pair *v, size_t n)
{
    if (w->codec == CODEC_JSON) {
        put_key(w, name);
        jsonw_obj(&w->json);
        for (size_t i = 0; i < n; i++)
            jsonw_kstr(&w->json, v[i].key, v[i].value);
        jsonw_obj_end(&w->json);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        msgw_item(w, num);
        msgw_str(w, "key", 1, v[i].key);
        msgw_str(w, "value", 2, v[i].value);
        msgw_close(w);
    }
}

void msgw_strings(struct msgw *w, const char *name, uint32_t num, const char *const *v, size_t n)
{
    if (w->codec == CODEC_JSON) {
        put_key(w, name);
        jsonw_arr(&w->json);
        for (size_t i = 0; i < n; i++)
            jsonw_strn(&w->json, v[i], strlen(v[i]));
        jsonw_arr_end(&w->json);
        return;
    }
    for (size_t i = 0; i < n; i++)
        msgw_bytes(w, name, num, v[i], strlen(v[i]));
}
