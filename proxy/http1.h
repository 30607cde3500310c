/* HTTP/1.1 message heads, parsed strictly: whatever two parsers could read differently is refused (RFC 9112
 * §2.2, §5, §6.3 and the known smuggling tricks). Nothing is copied: a head points into the bytes it was
 * parsed from. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_HEADERS_MAX = 100, HTTP_HEAD_MAX = 32768, HTTP_TRAILER_MAX = 8192 };

struct str {
    const char *p;
    uint32_t n;
};
#define STR(lit) ((struct str){"" lit, sizeof(lit) - 1})
bool str_is(struct str s, const char *lower);           /* ASCII case-insensitive, `lower` in lower case */
bool str_has_token(struct str list, const char *lower); /* comma-separated list */
static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && __builtin_memcmp(a.p, b.p, a.n) == 0;
}

/** Headers that the proxy itself looks at. */
enum header_id {
    HDR_OTHER,
    HDR_HOST,
    HDR_CONTENT_LENGTH,
    HDR_TRANSFER_ENCODING,
    HDR_CONNECTION,
    HDR_KEEP_ALIVE,
    HDR_PROXY_CONNECTION,
    HDR_TE,
    HDR_UPGRADE,
    HDR_EXPECT,
    HDR_SANDBOX_ID,
    HDR_SANDBOX_PORT,
    HDR_TRAFFIC_TOKEN,
    HDR_ACCESS_TOKEN,
    HDR_CONTENT_TYPE,
    HDR_ACCEPT,
    HDR_USER_AGENT,
    HDR_SEC_FETCH_MODE,
    HDR_X_REQUESTED_WITH,
    HDR_X_FORWARDED_FOR,
    HDR_X_FORWARDED_PROTO,
    HDR_X_FORWARDED_HOST,
    HDR_TRACEPARENT,
    HDR_CONNECT_PROTOCOL,
    HDR_SERVER_TIMING,
    HDR_HTTP2_SETTINGS,
    HDR_IDS
};

struct http_header {
    struct str name, value; /* as sent; value without surrounding blanks */
    uint8_t id;
};

struct http_head {
    struct str method, target; /* request; the target in origin form, "*", or an authority for CONNECT */
    struct str authority;      /* of an absolute-form target, else empty */
    int status;                /* response */
    struct str reason;
    int minor;              /* HTTP/1.minor */
    int64_t content_length; /* -1: none */
    bool chunked;
    bool close, keep_alive, upgrade; /* tokens of Connection */
    uint16_t count;
    int16_t known[HDR_IDS]; /* index of the first header with this id, or -1 */
    struct http_header h[HTTP_HEADERS_MAX];
};

static inline struct str http_get(const struct http_head *m, enum header_id id)
{
    return m->known[id] >= 0 ? m->h[m->known[id]].value : (struct str){"", 0};
}
static inline bool http_has(const struct http_head *m, enum header_id id)
{
    return m->known[id] >= 0;
}

/** Where the search for the end of a head stands, so that a head that arrives byte by byte is not searched
 * again and again. */
struct http_scan {
    uint32_t at, line;
};
enum { HTTP_MORE = 0, HTTP_BAD = -1, HTTP_TOO_LARGE = -2 };
/** Length of the head with its empty line, HTTP_MORE, or HTTP_BAD (bare LF or CR, NUL) / HTTP_TOO_LARGE. */
int http_head_end(struct http_scan *s, const char *p, size_t n);

/** Parses a whole head of `n` bytes as http_head_end returned it. 0, HTTP_BAD or HTTP_TOO_LARGE (too many
 * headers). */
int http_parse_request(const char *p, size_t n, struct http_head *out);
int http_parse_response(const char *p, size_t n, struct http_head *out);
/** Whether a field may not come in a trailer: framing, routing and what belongs to one hop cannot be changed
 * after the fact (RFC 9110 §6.5.1), nor can what this proxy vouches for. */
bool http_trailer_forbidden(struct str name);
/** Header lines up to an empty line, without a first line (chunked trailers). A forbidden one is HTTP_BAD. */
int http_parse_trailers(const char *p, size_t n, struct http_head *out);

/** Whether the header belongs to one hop and is not passed on: Connection, what it names, and the classic
 * list. */
bool http_hop_by_hop(const struct http_head *m, const struct http_header *h);

/** A valid header name; a value without controls. For heads that come from HTTP/2. */
bool http_name_valid(const char *p, size_t n);
bool http_value_valid(const char *p, size_t n);
