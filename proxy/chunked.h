/* Chunked coding (RFC 9112 §7.1), scanned and not decoded: the bytes can be passed on as they are, with
 * extensions and trailers, while the scanner knows where the body ends and refuses what is not exactly the
 * grammar, and trailers that http_parse_trailers would refuse. */
#pragma once

#include "proxy/http1.h"

enum { CHUNKED_STATE_END = 11 }; /* `state` after the last byte */
enum { CHUNKED_NAME_MAX = 24 };

struct chunked {
    uint8_t state;
    uint8_t digits, lines; /* lines of trailers */
    uint8_t name_len;
    char name[CHUNKED_NAME_MAX + 1]; /* of the trailer, as far as it matters */
    uint32_t extra;                  /* bytes of this extension, or of the trailers */
    uint64_t left;                   /* of this chunk's data */
};

enum chunked_event {
    CHUNKED_MORE,    /* all input used, the body goes on */
    CHUNKED_DATA,    /* `span` is payload */
    CHUNKED_TRAILER, /* `span` is a piece of the trailer lines, the last with the empty line */
    CHUNKED_END,     /* the body is complete */
    CHUNKED_BAD,
};

/** Takes the next step; `*used` bytes of the input were eaten. Start with a zeroed struct. Call again until
 * CHUNKED_MORE, END or BAD. */
enum chunked_event chunked_next(struct chunked *c, const char *p, size_t n, size_t *used, struct str *span);

/** Passes over all input. CHUNKED_MORE (all used), CHUNKED_END (`*used` tells where) or CHUNKED_BAD. */
enum chunked_event chunked_skip(struct chunked *c, const char *p, size_t n, size_t *used);
