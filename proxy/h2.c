/* Shared parts of both HTTP/2 codecs. Invariant: a body never holds more than its sender's limit, because the
 * other side is not read while H2_OUT_FULL bytes wait; memory is returned as soon as all of it is sent. */
#include "proxy/h2.h"

#include <string.h>

void h2_out_append(struct h2_out *o, const char *p, size_t n)
{
    if (o->off && o->off == o->bytes.len) {
        buf_reset(&o->bytes);
        o->off = 0;
    } else if (o->off > h2_out_pending(o)) {
        buf_consume(&o->bytes, o->off);
        o->off = 0;
    }
    buf_append(&o->bytes, p, n);
}

void h2_out_trailers(struct h2_out *o, const struct http_head *t)
{
    for (uint16_t i = 0; t && i < t->count; i++) {
        buf_append(&o->trailers, t->h[i].name.p, t->h[i].name.n);
        buf_puts(&o->trailers, ": ");
        buf_append(&o->trailers, t->h[i].value.p, t->h[i].value.n);
        buf_puts(&o->trailers, "\r\n");
    }
    if (o->trailers.len)
        buf_puts(&o->trailers, "\r\n");
}

void h2_out_free(struct h2_out *o)
{
    buf_free(&o->bytes);
    buf_free(&o->trailers);
}

static bool trailers_submit(struct h2_out *o, nghttp2_session *session, int32_t stream)
{
    struct http_head t;
    struct h2_list list;
    h2_list_start(&list);
    if (o->trailers.len == 0 || http_parse_trailers(o->trailers.data, o->trailers.len, &t) != 0)
        return false;
    h2_list_head(&list, &t);
    return list.count && nghttp2_submit_trailer(session, stream, list.nv, list.count) == 0;
}

ssize_t h2_out_read(struct h2_out *o, nghttp2_session *session, int32_t stream, uint8_t *buf, size_t n,
                    uint32_t *flags)
{
    size_t have = h2_out_pending(o);
    if (o->bytes.failed)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (have == 0 && !o->end) {
        o->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    if (n > have)
        n = have;
    if (n)
        memcpy(buf, o->bytes.data + o->off, n);
    o->off += n;
    if (o->off == o->bytes.len) {
        buf_free(&o->bytes);
        o->off = 0;
        if (o->end) {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
            if (trailers_submit(o, session, stream))
                *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        }
    }
    return (ssize_t)n;
}

void h2_list_add(struct h2_list *l, const char *name, size_t name_len, const char *value, size_t value_len)
{
    if (l->count == sizeof l->nv / sizeof l->nv[0] || l->names_len + name_len > sizeof l->names)
        return; /* cannot be: heads are bounded to fewer fields and fewer bytes before they get here */
    char *lower = l->names + l->names_len;
    for (size_t i = 0; i < name_len; i++)
        lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] | 0x20 : name[i]);
    l->names_len += name_len;
    l->nv[l->count++] =
        (nghttp2_nv){(uint8_t *)lower, (uint8_t *)value, name_len, value_len, NGHTTP2_NV_FLAG_NONE};
}

void h2_list_lit(struct h2_list *l, const char *name, const char *value)
{
    h2_list_add(l, name, strlen(name), value, strlen(value));
}

void h2_list_head(struct h2_list *l, const struct http_head *m)
{
    for (uint16_t i = 0; i < m->count; i++) {
        const struct http_header *h = &m->h[i];
        if (response_passes(m, h))
            h2_list_add(l, h->name.p, h->name.n, h->value.p, h->value.n);
    }
}

bool h2_flush(nghttp2_session *session, struct dp_io *io)
{
    char joined[16384 + 256];
    size_t have = 0;
    while (!dp_io_blocked(io)) {
        const uint8_t *p;
        ssize_t n = nghttp2_session_mem_send(session, &p);
        if (n < 0)
            return false;
        if (n == 0)
            break;
        if (have + (size_t)n > sizeof joined) {
            if (!dp_io_write(io, joined, have))
                return false;
            have = 0;
        }
        if ((size_t)n > sizeof joined) {
            if (!dp_io_write(io, p, (size_t)n))
                return false;
            continue;
        }
        memcpy(joined + have, p, (size_t)n);
        have += (size_t)n;
    }
    return have == 0 || dp_io_write(io, joined, have);
}
