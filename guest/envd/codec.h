/* Messages of the Connect RPCs in both encodings: one table per message drives decoding from proto3 JSON and
 * from binary protobuf; one writer drives encoding. No message is recursive. */
#pragma once

#include "guest/common/arena.h"
#include "lib/base/jsonw.h"

#include <stdbool.h>
#include <stdint.h>

enum codec { CODEC_JSON, CODEC_PROTO };

struct bytes {
    const char *p;
    size_t n;
};
struct strings {
    const char **v;
    size_t n, cap;
};
struct pair {
    const char *key, *value;
};
struct pairs {
    struct pair *v;
    size_t n, cap;
};

enum field_kind { F_STRING, F_BYTES, F_UINT32, F_BOOL, F_ENUM, F_MESSAGE, F_STRINGS, F_MAP, F_GIVEN };

struct enum_name {
    const char *name;
    int value;
};

#define FIELD_NO_PRESENCE SIZE_MAX

/** One field: where it lies in the C struct and how it is named. C types by kind: const char *, struct bytes,
 * uint32_t, bool, int32_t, the sub-struct itself, struct strings, struct pairs, bool (F_GIVEN, JSON only: any
 * value, true when it is not empty). `has_at` is the offset of a bool. */
struct field {
    uint32_t num;
    enum field_kind kind;
    const char *name, *json; /* proto name and lowerCamelCase */
    size_t at, has_at;
    const struct message *sub;
    const struct enum_name *names;
};

struct message {
    size_t size;
    size_t n_fields;
    const struct field *fields;
};

/** Decodes into zeroed `out`; strings are copied into the arena, valid UTF-8 without NUL, never NULL
 * afterwards (absent ones are ""). Returns NULL, or what is wrong (a static or arena string). */
const char *codec_decode(enum codec codec, const struct message *m, const char *p, size_t n, void *out,
                         struct arena *a);

/** Whether the bytes are UTF-8 (RFC 3629). */
bool utf8_valid(const char *p, size_t n);

/** Decodes base64, standard or url-safe, padding optional. Returns the length or -1; `out` holds n*3/4+3
 * bytes. */
long base64_decode(const char *s, size_t n, char *out);

/** Length of the padded encoding, and the encoding itself (no NUL); the output tools of the hot path. */
static inline size_t base64_length(size_t n)
{
    return (n + 2) / 3 * 4;
}
void base64_encode(const void *p, size_t n, char *out);

/** Writes one message. Fields with default values are left out by the caller or written: both are legal. */
struct msgw {
    enum codec codec;
    struct buf *out;
    struct jsonw json;
    size_t start[8];
    int depth;
};

void msgw_start(struct msgw *w, enum codec codec, struct buf *out);
void msgw_end(struct msgw *w);
void msgw_open(struct msgw *w, const char *name, uint32_t num); /* a nested message */
void msgw_close(struct msgw *w);
void msgw_list(struct msgw *w,
               const char *name); /* a repeated message: list, then item…close, then list_end */
void msgw_item(struct msgw *w, uint32_t num);
void msgw_list_end(struct msgw *w);
void msgw_str(struct msgw *w, const char *name, uint32_t num, const char *s);
void msgw_bytes(struct msgw *w, const char *name, uint32_t num, const void *p, size_t n);
void msgw_u32(struct msgw *w, const char *name, uint32_t num, uint32_t v);
void msgw_i64(struct msgw *w, const char *name, uint32_t num, int64_t v); /* JSON: a string, as proto3 asks */
void msgw_s32(struct msgw *w, const char *name, uint32_t num, int32_t v); /* zigzag */
void msgw_bool(struct msgw *w, const char *name, uint32_t num, bool v);
void msgw_enum(struct msgw *w, const char *name, uint32_t num, const char *label, int v);
void msgw_time(struct msgw *w, const char *name, uint32_t num, int64_t s, int32_t ns);
void msgw_map(struct msgw *w, const char *name, uint32_t num, const struct pair *v, size_t n);
void msgw_strings(struct msgw *w, const char *name, uint32_t num, const char *const *v, size_t n);
