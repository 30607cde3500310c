/* Owns the form of errors in trailers; invariant: grpc-message and our own fields are percent-coded, so that
 * a message with any bytes passes HTTP/2 (gRPC over HTTP/2, "Status-Message"). */
#include "lib/net/rpc_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nghttp2_nv rpc_nv(const char *name, const char *value)
{
    return (nghttp2_nv){.name = (uint8_t *)name,
                        .namelen = strlen(name),
                        .value = (uint8_t *)value,
                        .valuelen = strlen(value)};
}

/* A space at either end would make the field malformed (RFC 9113 §8.2.1), and the reason would be lost. */
static void encode(const char *s, char *out)
{
    static const char digits[] = "0123456789ABCDEF";
    for (const char *first = s; *s; s++) {
        unsigned char c = (unsigned char)*s;
        bool edge = c == ' ' && (s == first || !s[1]);
        if (c >= 0x20 && c < 0x7f && c != '%' && !edge) {
            *out++ = (char)c;
        } else {
            *out++ = '%';
            *out++ = digits[c >> 4];
            *out++ = digits[c & 15];
        }
    }
    *out = '\0';
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* A broken escape stands for itself; control characters become spaces, since messages are single lines. */
static void decode(const char *s, size_t n, char *out, size_t room)
{
    size_t o = 0;
    for (size_t i = 0; i < n && o + 1 < room; i++) {
        char c = s[i];
        if (c == '%' && i + 2 < n && digit(s[i + 1]) >= 0 && digit(s[i + 2]) >= 0) {
            c = (char)(digit(s[i + 1]) << 4 | digit(s[i + 2]));
            i += 2;
        }
        out[o++] = (unsigned char)c < 0x20 ? ' ' : c;
    }
    out[o] = '\0';
}

size_t rpc_status_trailers(const struct err *e, struct rpc_status_text *text, nghttp2_nv nv[RPC_TRAILERS])
{
    snprintf(text->number, sizeof text->number, "%d", e ? err_code_grpc(e->code) : 0);
    nv[0] = rpc_nv("grpc-status", text->number);
    if (!e)
        return 1;
    size_t n = 1;
    encode(e->msg, text->message);
    nv[n++] = rpc_nv("grpc-message", text->message);
    nv[n++] = rpc_nv("cube-error-code", err_code_name(e->code));
    if (e->remedy[0]) {
        encode(e->remedy, text->remedy);
        nv[n++] = rpc_nv("cube-remedy", text->remedy);
    }
    return n;
}

static bool is(const char *name, size_t n, const char *want)
{
    return n == strlen(want) && memcmp(name, want, n) == 0;
}

void rpc_status_header(struct rpc_status *s, const char *name, size_t name_len, const char *value,
                       size_t value_len)
{
    char small[64];
    if (is(name, name_len, "grpc-status") && value_len > 0 && value_len <= 2) {
        memcpy(small, value, value_len);
        small[value_len] = '\0';
        s->grpc = atoi(small);
    } else if (is(name, name_len, "grpc-message")) {
        decode(value, value_len, s->err.msg, sizeof s->err.msg);
    } else if (is(name, name_len, "cube-remedy")) {
        decode(value, value_len, s->err.remedy, sizeof s->err.remedy);
    } else if (is(name, name_len, "cube-error-code") && value_len < sizeof small) {
        memcpy(small, value, value_len);
        small[value_len] = '\0';
        s->err.code = err_code_parse(small);
        s->ours = s->err.code != ERR_OK;
    }
}

/* What a status of a peer that is not ours means to us. */
static enum err_code from_grpc(int status)
{
    static const enum err_code codes[] = {
        ERR_OK,          ERR_CANCELLED, ERR_INTERNAL,     ERR_INVALID,  ERR_DEADLINE,       ERR_NOT_FOUND,
        ERR_CONFLICT,    ERR_FORBIDDEN, ERR_RATE_LIMITED, ERR_CONFLICT, ERR_CONFLICT,       ERR_INVALID,
        ERR_UNSUPPORTED, ERR_INTERNAL,  ERR_UNAVAILABLE,  ERR_INTERNAL, ERR_UNAUTHENTICATED};
    return status >= 0 && status <= 16 ? codes[status] : ERR_INTERNAL;
}

bool rpc_status_failed(const struct rpc_status *s, const char *path, struct err *e)
{
    if (s->grpc == 0)
        return false;
    if (s->grpc < 0) {
        err_set(e, ERR_UNAVAILABLE, "%s: the answer ended without a status", path);
        return true;
    }
    *e = s->err;
    if (!s->ours)
        e->code = from_grpc(s->grpc);
    if (!e->msg[0])
        snprintf(e->msg, sizeof e->msg, "%s: gRPC status %d", path, s->grpc);
    return true;
}

int64_t rpc_timeout_parse(const char *s, size_t n)
{
    if (n < 2 || n > 9) /* at most 8 digits and a unit */
        return -1;
    int64_t v = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        v = v * 10 + (s[i] - '0');
    }
    switch (s[n - 1]) {
    case 'H':
        return v * 3600000;
    case 'M':
        return v * 60000;
    case 'S':
        return v * 1000;
    case 'm':
        return v;
    case 'u':
        return (v + 999) / 1000;
    case 'n':
        return (v + 999999) / 1000000;
    }
    return -1;
}
