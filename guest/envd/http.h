/* HTTP/1.1 as bytes: the request head, chunked bodies, percent-decoding. Pure functions over memory (fuzzed).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_HEAD_MAX (32 * 1024)
#define HTTP_HEADERS_MAX 100

struct http_header {
    const char *name, *value; /* NUL-terminated, inside the caller's head buffer; the value is trimmed */
};

/** A parsed head; every pointer lies in the buffer given to `http_parse_head`. */
struct http_req {
    const char *method;
    char *path;        /* still percent-encoded, without query; runs of leading slashes are one */
    const char *query; /* after '?', or "" */
    int minor;         /* HTTP/1.minor */
    int n_headers;
    struct http_header headers[HTTP_HEADERS_MAX];
    bool chunked, has_length, keep_alive, expect_continue;
    uint64_t length;
};

/** Length of the head including its blank line when it is complete, 0 when more is needed, -1 when it is too
 * long. */
long http_head_complete(const char *p, size_t n, size_t scanned);

/** Parses a complete head in place (separators become NULs; head[n] must be a NUL). Returns 0, or the HTTP
 * status to answer with. Strict: no folding, no bare LF, no doubled Content-Length or Host, not both a length
 * and a transfer coding (RFC 9112 §6). */
int http_parse_head(char *head, size_t n, struct http_req *req);

/** The value of a header (case-insensitive), or NULL. */
const char *http_header(const struct http_req *req, const char *name);

/** Decodes one query parameter into `out` (percent and '+'); returns false when absent. `*bad` is set when it
 * is malformed, holds a NUL, or is longer than `cap`. */
bool http_query(const char *query, const char *name, char *out, size_t cap, bool *bad);

/** Percent-decodes n bytes; '+' becomes a space when `plus`. Returns the length, or -1 (malformed or no
 * room). */
long http_unescape(const char *s, size_t n, char *out, size_t cap, bool plus);

/** How much of a body is still to come. */
struct http_body {
    enum { BODY_NONE, BODY_LENGTH, BODY_CHUNKED } kind;
    uint64_t left; /* of the body, or of the current chunk */
    enum { CHUNK_SIZE, CHUNK_EXT, CHUNK_DATA, CHUNK_CR, CHUNK_LF, CHUNK_TRAILER, CHUNK_END } state;
    uint32_t digits, line; /* of the size; bytes of the line being skipped */
    bool done;
};

void http_body_start(struct http_body *b, const struct http_req *req);

/** Takes bytes from `p`: sets `data` and `len` to the next piece of payload (len 0 = none yet) and returns
 * how many bytes were consumed, or -1 for broken framing. Call until everything is consumed or b->done. */
long http_body_next(struct http_body *b, const char *p, size_t n, const char **data, size_t *len);

/** Reason phrase. */
const char *http_reason(int status);
