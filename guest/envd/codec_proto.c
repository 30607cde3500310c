/* Binary protobuf into structs, and what both decoders share. Invariant: a length is compared with what is
 * left before it is used; groups and recursion do not exist in our messages and are refused. */
#include "guest/envd/codec_in.h"

#include <string.h>

struct in {
    const uint8_t *p, *end;
};

static bool varint(struct in *in, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (in->p == in->end)
            return false;
        uint8_t b = *in->p++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

static bool chunk(struct in *in, struct in *out)
{
    uint64_t n;
    if (!varint(in, &n) || n > (uint64_t)(in->end - in->p))
        return false;
    *out = (struct in){in->p, in->p + n};
    in->p += n;
    return true;
}

static bool skip(struct in *in, unsigned wire)
{
    uint64_t v;
    struct in c;
    size_t n = wire == 1 ? 8 : 4;
    switch (wire) {
    case 0:
        return varint(in, &v);
    case 2:
        return chunk(in, &c);
    case 1:
    case 5:
        if ((size_t)(in->end - in->p) < n)
            return false;
        in->p += n;
        return true;
    default:
        return false;
    }
}

static const char *text(struct in c, const char **out, struct arena *a)
{
    size_t n = (size_t)(c.end - c.p);
    if (memchr(c.p, 0, n))
        return "a string holds a NUL character";
    if (!utf8_valid((const char *)c.p, n))
        return "invalid UTF-8 in a string";
    *out = arena_strndup(a, (const char *)c.p, n);
    return *out ? NULL : "message too large";
}

static const char *decode(const struct message *m, struct in in, char *out, struct arena *a);

static const char *map_entry(struct in in, struct pairs *out, struct arena *a)
{
    struct pair p = {"", ""};
    while (in.p < in.end) {
        uint64_t key;
        struct in c;
        if (!varint(&in, &key))
            return "malformed message";
        if (key != 10 && key != 18) {
            if (!skip(&in, key & 7))
                return "malformed message";
            continue;
        }
        if (!chunk(&in, &c))
            return "malformed message";
        const char *bad = text(c, key == 10 ? &p.key : &p.value, a);
        if (bad)
            return bad;
    }
    return pairs_add(out, p, a) ? NULL : "message too large";
}

static const char *length_delimited(const struct field *f, struct in c, char *out, struct arena *a)
{
    const char *s, *bad;
    switch (f->kind) {
    case F_STRING:
        return text(c, (const char **)(out + f->at), a);
    case F_BYTES:
        s = arena_strndup(a, (const char *)c.p, (size_t)(c.end - c.p));
        if (!s)
            return "message too large";
        *(struct bytes *)(out + f->at) = (struct bytes){s, (size_t)(c.end - c.p)};
        return NULL;
    case F_MESSAGE:
        return decode(f->sub, c, out + f->at, a);
    case F_STRINGS:
        bad = text(c, &s, a);
        if (bad)
            return bad;
        return strings_add((struct strings *)(out + f->at), s, a) ? NULL : "message too large";
    default:
        return map_entry(c, (struct pairs *)(out + f->at), a);
    }
}

static const char *decode(const struct message *m, struct in in, char *out, struct arena *a)
{
    while (in.p < in.end) {
        uint64_t key, v;
        if (!varint(&in, &key) || key >> 3 == 0 || key >> 32)
            return "malformed message";
        const struct field *f = NULL;
        for (size_t i = 0; i < m->n_fields && !f; i++)
            if (m->fields[i].num == key >> 3)
                f = &m->fields[i];
        bool scalar = f && (f->kind == F_UINT32 || f->kind == F_BOOL || f->kind == F_ENUM);
        if (!f || (key & 7) != (scalar ? 0u : 2u)) {
            if (!skip(&in, key & 7))
                return "malformed message";
            continue;
        }
        if (scalar) {
            if (!varint(&in, &v))
                return "malformed message";
            if (f->kind == F_BOOL)
                *(bool *)(out + f->at) = v != 0;
            else if (f->kind == F_ENUM)
                *(int32_t *)(out + f->at) = (int32_t)v;
            else
                *(uint32_t *)(out + f->at) = (uint32_t)v;
        } else {
            struct in c;
            if (!chunk(&in, &c))
                return "malformed message";
            const char *bad = length_delimited(f, c, out, a);
            if (bad)
                return bad;
        }
        if (f->has_at != FIELD_NO_PRESENCE)
            *(bool *)(out + f->has_at) = true;
    }
    return NULL;
}

const char *codec_decode_proto(const struct message *m, const char *p, size_t n, void *out, struct arena *a)
{
    return decode(m, (struct in){(const uint8_t *)p, (const uint8_t *)p + n}, out, a);
}

static bool grow(void **v, size_t n, size_t *cap, size_t item, struct arena *a)
{
    if (n < *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 8;
    void *fresh = arena_alloc(a, want * item);
    if (!fresh)
        return false;
    if (n)
        memcpy(fresh, *v, n * item);
    *v = fresh;
    *cap = want;
    return true;
}

bool strings_add(struct strings *l, const char *s, struct arena *a)
{
    if (!grow((void **)&l->v, l->n, &l->cap, sizeof(*l->v), a))
        return false;
    l->v[l->n++] = s;
    return true;
}

bool pairs_add(struct pairs *l, struct pair p, struct arena *a)
{
    if (!grow((void **)&l->v, l->n, &l->cap, sizeof(*l->v), a))
        return false;
    l->v[l->n++] = p;
    return true;
}

static void fill_strings(const struct message *m, char *out)
{
    for (size_t i = 0; i < m->n_fields; i++) {
        const struct field *f = &m->fields[i];
        if (f->kind == F_STRING && !*(const char **)(out + f->at))
            *(const char **)(out + f->at) = "";
        else if (f->kind == F_MESSAGE)
            fill_strings(f->sub, out + f->at);
    }
}

const char *codec_decode(enum codec codec, const struct message *m, const char *p, size_t n, void *out,
                         struct arena *a)
{
    memset(out, 0, m->size);
    if (!n)
        p = ""; /* an empty body has no address */
    const char *bad =
        codec == CODEC_JSON ? codec_decode_json(m, p, n, out, a) : codec_decode_proto(m, p, n, out, a);
    fill_strings(m, out);
    return bad;
}

bool utf8_valid(const char *text_, size_t n)
{
    const uint8_t *s = (const uint8_t *)text_, *end = s + n;
    while (s < end) {
        uint64_t word;
        while (end - s >= 8 && (memcpy(&word, s, 8), !(word & 0x8080808080808080u)))
            s += 8;
        if (s == end)
            break;
        uint8_t c = *s++;
        if (c < 0x80)
            continue;
        int more = c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
        if (!more || end - s < more)
            return false;
        uint8_t low = c == 0xe0   ? 0xa0
                      : c == 0xf0 ? 0x90
                                  : 0x80,
                high = c == 0xed   ? 0x9f
                       : c == 0xf4 ? 0x8f
                                   : 0xbf;
        if (s[0] < low || s[0] > high)
            return false;
        for (int i = 1; i < more; i++)
            if ((s[i] & 0xc0) != 0x80)
                return false;
        s += more;
    }
    return true;
}
