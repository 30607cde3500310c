/* proto3 JSON into structs. Invariant: depth, size and memory are bounded by the message table, MAX_DEPTH and
 * the arena; what is not in the table is skipped, but must be well-formed JSON all the same. */
#include "guest/envd/codec_in.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

struct in {
    const char *p, *end;
    struct arena *arena;
    const char *bad;
};

static bool fail(struct in *in, const char *why)
{
    if (!in->bad)
        in->bad = why;
    return false;
}

static void space(struct in *in)
{
    while (in->p < in->end && (*in->p == ' ' || *in->p == '\t' || *in->p == '\n' || *in->p == '\r'))
        in->p++;
}

static bool accept(struct in *in, char c)
{
    space(in);
    if (in->p == in->end || *in->p != c)
        return false;
    in->p++;
    return true;
}

static bool expect(struct in *in, char c)
{
    return accept(in, c) || fail(in, "malformed JSON");
}

static bool literal(struct in *in, const char *word)
{
    size_t n = strlen(word);
    space(in);
    if ((size_t)(in->end - in->p) < n || memcmp(in->p, word, n))
        return false;
    in->p += n;
    return true;
}

static bool hex4(struct in *in, uint32_t *out)
{
    if (in->end - in->p < 4)
        return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = in->p[i], l = (char)(c | 32);
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if (l >= 'a' && l <= 'f')
            v = v * 16 + (uint32_t)(l - 'a' + 10);
        else
            return false;
    }
    in->p += 4;
    *out = v;
    return true;
}

static char *put_utf8(char *o, uint32_t c)
{
    if (c < 0x80) {
        *o++ = (char)c;
    } else if (c < 0x800) {
        *o++ = (char)(0xc0 | c >> 6);
        *o++ = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        *o++ = (char)(0xe0 | c >> 12);
        *o++ = (char)(0x80 | (c >> 6 & 63));
        *o++ = (char)(0x80 | (c & 63));
    } else {
        *o++ = (char)(0xf0 | c >> 18);
        *o++ = (char)(0x80 | (c >> 12 & 63));
        *o++ = (char)(0x80 | (c >> 6 & 63));
        *o++ = (char)(0x80 | (c & 63));
    }
    return o;
}

static bool escape(struct in *in, char **o)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (in->p == in->end)
        return false;
    char c = *in->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        *(*o)++ = to[at - from];
        return true;
    }
    uint32_t u, low;
    if (c != 'u' || !hex4(in, &u))
        return false;
    if (u >= 0xdc00 && u < 0xe000)
        return false;
    if (u >= 0xd800 && u < 0xdc00) {
        if (in->end - in->p < 6 || in->p[0] != '\\' || in->p[1] != 'u')
            return false;
        in->p += 2;
        if (!hex4(in, &low) || low < 0xdc00 || low >= 0xe000)
            return false;
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    *o = put_utf8(*o, u);
    return true;
}

/* A JSON string. The common one without escapes is copied as it stands. */
static bool string(struct in *in, struct bytes *out)
{
    if (!expect(in, '"'))
        return false;
    const char *start = in->p, *q = start;
    while (q < in->end && *q != '"' && *q != '\\' && (unsigned char)*q >= ' ')
        q++;
    if (q < in->end && *q == '"') {
        in->p = q + 1;
        char *s = arena_strndup(in->arena, start, (size_t)(q - start));
        *out = (struct bytes){s, (size_t)(q - start)};
        if (!s)
            return fail(in, "message too large");
        return utf8_valid(s, out->n) || fail(in, "invalid UTF-8 in a string");
    }
    const char *close = q;
    while (close < in->end && *close != '"')
        close += *close == '\\' ? 2 : 1;
    if (close >= in->end)
        return fail(in, "unterminated string");
    char *s = arena_alloc(in->arena, (size_t)(close - start) + 1), *o = s;
    if (!s)
        return fail(in, "message too large");
    while (in->p < in->end && *in->p != '"') {
        unsigned char c = (unsigned char)*in->p++;
        if (c < ' ')
            return fail(in, "control character in a string");
        if (c != '\\')
            *o++ = (char)c;
        else if (!escape(in, &o))
            return fail(in, "invalid escape in a string");
    }
    if (!expect(in, '"'))
        return false;
    *o = 0;
    *out = (struct bytes){s, (size_t)(o - s)};
    return utf8_valid(s, out->n) || fail(in, "invalid UTF-8 in a string");
}

/* A number as text, checked against JSON's grammar. */
static bool number(struct in *in, char *out, size_t cap)
{
    space(in);
    size_t n = 0;
    const char *p = in->p;
    while (p < in->end && *p && strchr("+-0123456789.eE", *p) && n + 1 < cap)
        out[n++] = *p++;
    out[n] = 0;
    const char *d = out + (out[0] == '-');
    if (*d < '0' || *d > '9' || (d[0] == '0' && d[1] >= '0' && d[1] <= '9') ||
        (n && (out[n - 1] < '0' || out[n - 1] > '9')))
        return fail(in, "malformed JSON");
    char *rest;
    strtod(out, &rest);
    if (*rest || n + 1 >= cap)
        return fail(in, "malformed number");
    in->p = p;
    return true;
}

static bool skip(struct in *in, int depth)
{
    if (depth > MAX_DEPTH)
        return fail(in, "JSON is nested too deeply");
    space(in);
    if (in->p == in->end)
        return fail(in, "malformed JSON");
    struct bytes s;
    char text[64];
    switch (*in->p) {
    case '"':
        return string(in, &s);
    case 't':
        return literal(in, "true") || fail(in, "malformed JSON");
    case 'f':
        return literal(in, "false") || fail(in, "malformed JSON");
    case 'n':
        return literal(in, "null") || fail(in, "malformed JSON");
    case '{':
        in->p++;
        if (accept(in, '}'))
            return true;
        do {
            if (!string(in, &s) || !expect(in, ':') || !skip(in, depth + 1))
                return false;
        } while (accept(in, ','));
        return expect(in, '}');
    case '[':
        in->p++;
        if (accept(in, ']'))
            return true;
        do {
            if (!skip(in, depth + 1))
                return false;
        } while (accept(in, ','));
        return expect(in, ']');
    default:
        return number(in, text, sizeof(text));
    }
}

static bool integer(struct in *in, int64_t min, int64_t max, int64_t *out)
{
    char text[64];
    space(in);
    if (in->p < in->end && *in->p == '"') {
        struct bytes s;
        if (!string(in, &s))
            return false;
        struct in inner = {.p = s.p, .end = s.p + s.n, .arena = in->arena};
        if (!number(&inner, text, sizeof(text)) || inner.p != inner.end)
            return fail(in, "wrong type: expected an integer");
    } else if (!number(in, text, sizeof(text))) {
        return fail(in, "wrong type: expected an integer");
    }
    double d = strtod(text, NULL);
    if (!(d >= (double)min && d <= (double)max) || d != (double)(int64_t)d)
        return fail(in, "integer out of range");
    *out = (int64_t)d;
    return true;
}

static bool cstring(struct in *in, const char **out)
{
    struct bytes s;
    space(in);
    if (in->p < in->end && *in->p != '"')
        return fail(in, "wrong type: expected a string");
    if (!string(in, &s))
        return false;
    if (memchr(s.p, 0, s.n))
        return fail(in, "a string holds a NUL character");
    *out = s.p;
    return true;
}

static bool base64(struct in *in, struct bytes *out)
{
    struct bytes s;
    if (!string(in, &s))
        return false;
    long n = base64_decode(s.p, s.n, (char *)s.p); /* shrinks in place: the arena copy is ours */
    if (n < 0)
        return fail(in, "invalid base64");
    *out = (struct bytes){s.p, (size_t)n};
    return true;
}

static bool enumeration(struct in *in, const struct enum_name *names, int32_t *out)
{
    space(in);
    if (in->p < in->end && *in->p == '"') {
        struct bytes s;
        if (!string(in, &s))
            return false;
        for (; names->name; names++)
            if (!strcmp(names->name, s.p)) {
                *out = names->value;
                return true;
            }
        return fail(in, "unknown enum value");
    }
    int64_t v;
    if (!integer(in, INT32_MIN, INT32_MAX, &v))
        return false;
    *out = (int32_t)v;
    return true;
}

static bool object(struct in *in, const struct message *m, void *out, int depth);

static bool list_of_strings(struct in *in, struct strings *out)
{
    const char *s;
    if (!accept(in, '['))
        return fail(in, "wrong type: expected an array");
    if (accept(in, ']'))
        return true;
    do {
        if (!cstring(in, &s))
            return false;
        if (!strings_add(out, s, in->arena))
            return fail(in, "message too large");
    } while (accept(in, ','));
    return expect(in, ']');
}

static bool map_of_strings(struct in *in, struct pairs *out)
{
    struct pair p;
    if (!accept(in, '{'))
        return fail(in, "wrong type: expected an object");
    if (accept(in, '}'))
        return true;
    do {
        if (!cstring(in, &p.key) || !expect(in, ':') || !cstring(in, &p.value))
            return false;
        if (!pairs_add(out, p, in->arena))
            return fail(in, "message too large");
    } while (accept(in, ','));
    return expect(in, '}');
}

/* Any value; whether it is more than an empty string, list or object. */
static bool given(struct in *in, bool *out, int depth)
{
    space(in);
    const char *from = in->p + 1;
    if (!skip(in, depth + 1))
        return false;
    *out = !strchr("[{\"", from[-1]);
    for (; from + 1 < in->p; from++)
        *out = *out || !strchr(" \t\r\n", *from);
    return true;
}

static bool value(struct in *in, const struct field *f, char *out, int depth)
{
    int64_t v;
    switch (f->kind) {
    case F_STRING:
        return cstring(in, (const char **)(out + f->at));
    case F_BYTES:
        return base64(in, (struct bytes *)(out + f->at));
    case F_UINT32:
        if (!integer(in, 0, UINT32_MAX, &v))
            return false;
        *(uint32_t *)(out + f->at) = (uint32_t)v;
        return true;
    case F_BOOL: {
        bool yes = literal(in, "true");
        if (!yes && !literal(in, "false"))
            return fail(in, "wrong type: expected a boolean");
        *(bool *)(out + f->at) = yes;
        return true;
    }
    case F_ENUM:
        return enumeration(in, f->names, (int32_t *)(out + f->at));
    case F_MESSAGE:
        return object(in, f->sub, out + f->at, depth + 1);
    case F_STRINGS:
        return list_of_strings(in, (struct strings *)(out + f->at));
    case F_MAP:
        return map_of_strings(in, (struct pairs *)(out + f->at));
    case F_GIVEN:
        return given(in, (bool *)(out + f->at), depth);
    }
    return false;
}

static bool member(struct in *in, const struct message *m, char *out, uint64_t *seen, int depth)
{
    struct bytes key;
    if (!string(in, &key) || !expect(in, ':'))
        return false;
    for (size_t i = 0; i < m->n_fields; i++) {
        const struct field *f = &m->fields[i];
        if (strcmp(key.p, f->json) && strcmp(key.p, f->name))
            continue;
        if (*seen >> i & 1)
            return fail(in, "duplicate field");
        *seen |= (uint64_t)1 << i;
        if (literal(in, "null"))
            return true;
        if (!value(in, f, out, depth))
            return false;
        if (f->has_at != FIELD_NO_PRESENCE)
            *(bool *)(out + f->has_at) = true;
        return true;
    }
    return skip(in, depth + 1);
}

static bool object(struct in *in, const struct message *m, void *out, int depth)
{
    uint64_t seen = 0;
    if (depth > MAX_DEPTH)
        return fail(in, "JSON is nested too deeply");
    if (!accept(in, '{'))
        return fail(in, "wrong type: expected an object");
    if (accept(in, '}'))
        return true;
    do {
        if (!member(in, m, out, &seen, depth))
            return false;
    } while (accept(in, ','));
    return expect(in, '}');
}

const char *codec_decode_json(const struct message *m, const char *p, size_t n, void *out, struct arena *a)
{
    struct in in = {.p = p, .end = p + n, .arena = a};
    space(&in);
    if (!object(&in, m, out, 0))
        return in.bad ? in.bad : "malformed JSON";
    space(&in);
    return in.p == in.end ? NULL : "data after the JSON value";
}
