/* What the HTTP/2 front and the h2c back share: outgoing bodies that wait for flow control, and header lists.
 */
#pragma once

#include "proxy/proxy.h"

enum {
    H2_WINDOW = 256 * 1024,
    H2_CONNECTION_WINDOW = 1024 * 1024,
    H2_STREAMS = 256,
    H2_OUT_FULL = 64 * 1024,
    H2_CONNECTION_FULL = 2 * 1024 * 1024, /* held by all streams of a client: then each gets little */
    H2_LITTLE = 16384
};

/** A body on its way out of one stream. */
struct h2_out {
    struct buf bytes;
    size_t off;
    bool end;            /* no more bytes follow */
    bool deferred;       /* nghttp2 waits for nghttp2_session_resume_data */
    struct buf trailers; /* header lines with an empty line, or empty */
};
static inline size_t h2_out_pending(const struct h2_out *o)
{
    return o->bytes.len - o->off;
}
void h2_out_append(struct h2_out *o, const char *p, size_t n);
void h2_out_trailers(struct h2_out *o, const struct http_head *trailers);
void h2_out_free(struct h2_out *o);
/** The body of a data provider's read callback. */
ssize_t h2_out_read(struct h2_out *o, nghttp2_session *session, int32_t stream, uint8_t *buf, size_t n,
                    uint32_t *flags);

/** A header list under construction: names are lower-cased into `names`. */
struct h2_list {
    nghttp2_nv nv[HTTP_HEADERS_MAX + 12];
    size_t count;
    char names[HTTP_HEAD_MAX];
    size_t names_len;
};
static inline void h2_list_start(struct h2_list *l)
{
    l->count = l->names_len = 0; /* no more: it is large */
}
void h2_list_add(struct h2_list *l, const char *name, size_t name_len, const char *value, size_t value_len);
void h2_list_lit(struct h2_list *l, const char *name, const char *value);
/** All headers of an answer (or trailers) but those of one hop. */
void h2_list_head(struct h2_list *l, const struct http_head *m);

/** Writes what the session has to send while the socket takes it; false when the session is broken. */
bool h2_flush(nghttp2_session *session, struct dp_io *io);
