/* Rewrites heads on their way: what belongs to one hop is dropped, what the next hop needs is added.
 * Everything else is passed on byte by byte. */
#include "proxy/proxy.h"

#include <string.h>

struct out {
    char *p, *end;
    bool full;
};

static inline void put(struct out *o, const char *p, size_t n)
{
    if ((size_t)(o->end - o->p) < n) {
        o->full = true;
        return;
    }
    memcpy(o->p, p, n);
    o->p += n;
}

static inline void put_lit(struct out *o, const char *s)
{
    put(o, s, strlen(s));
}

static inline void put_header(struct out *o, const struct http_header *h)
{
    size_t n = (size_t)h->name.n + h->value.n + 4;
    if ((size_t)(o->end - o->p) < n) {
        o->full = true;
        return;
    }
    memcpy(o->p, h->name.p, h->name.n);
    o->p += h->name.n;
    *o->p++ = ':';
    *o->p++ = ' ';
    memcpy(o->p, h->value.p, h->value.n);
    o->p += h->value.n;
    *o->p++ = '\r';
    *o->p++ = '\n';
}

/* `${PORT}` in a masked host stands for the port (contracts/e2b.md §2.4). */
static struct str mask_fill(const char *mask, uint16_t port, char out[HOST_MASKED_MAX])
{
    uint32_t len = 0;
    for (const char *p = mask; *p && len < HOST_MASKED_MAX - 5;) {
        if (strncmp(p, "${PORT}", 7) == 0) {
            char digits[8];
            int n = 0;
            for (uint16_t v = port; v || n == 0; v /= 10)
                digits[n++] = (char)('0' + v % 10);
            while (n)
                out[len++] = digits[--n];
            p += 7;
        } else {
            out[len++] = *p++;
        }
    }
    return (struct str){out, len};
}

bool request_masked(const struct exchange *x)
{
    return !x->sandbox->is_api && x->port != ENVD_PORT && x->sandbox->route.mask_host[0];
}

struct str request_host(const struct exchange *x, const struct http_head *m, char out[HOST_MASKED_MAX])
{
    if (request_masked(x))
        return mask_fill(x->sandbox->route.mask_host, x->port, out);
    return m->authority.n ? m->authority : http_get(m, HDR_HOST);
}

bool request_passes(const struct exchange *x, const struct http_head *m, const struct http_header *h)
{
    return h->id != HDR_HOST && h->id != HDR_X_FORWARDED_FOR &&
           !(h->id == HDR_TRAFFIC_TOKEN && x->sandbox->route.private) && !http_hop_by_hop(m, h);
}

static bool wants_upgrade(const struct http_head *m)
{
    struct str to = http_get(m, HDR_UPGRADE);
    return m->upgrade && to.n && m->minor == 1 && !str_has_token(to, "h2c") && !m->chunked &&
           m->content_length <= 0;
}

size_t request_build(struct exchange *x, bool *chunked)
{
    struct worker *w = x->worker;
    const struct http_head *m = exchange_request(x);
    struct out o = {w->head, w->head + sizeof w->head, false};
    char masked[HOST_MASKED_MAX];
    struct str host = request_host(x, m, masked), path = m->target;
    if (x->by_path) {
        struct target t;
        target_resolve(m, w->proxy->cfg.domain, &t);
        path = t.path;
    }
    put(&o, m->method.p, m->method.n);
    put(&o, " ", 1);
    if (path.p[0] == '?')
        put(&o, "/", 1);
    put(&o, path.p, path.n);
    put_lit(&o, " HTTP/1.1\r\nHost: ");
    put(&o, host.p, host.n);
    put_lit(&o, "\r\n");
    bool upgrade = x->may_upgrade = wants_upgrade(m) && !x->front_decodes;
    for (uint16_t i = 0; i < m->count; i++) {
        const struct http_header *h = &m->h[i];
        if (h->id == HDR_UPGRADE ? upgrade : request_passes(x, m, h))
            put_header(&o, h);
    }
    *chunked = m->chunked || (x->front_decodes && x->request_body && m->content_length < 0);
    if (*chunked)
        put_lit(&o, "Transfer-Encoding: chunked\r\n");
    /* Trailers pass, so who asks for them asks the service. */
    bool trailers = http_has(m, HDR_TE) && str_has_token(http_get(m, HDR_TE), "trailers");
    if (trailers)
        put_lit(&o, "TE: trailers\r\n");
    if (upgrade)
        put_lit(&o, trailers ? "Connection: Upgrade, TE\r\n" : "Connection: Upgrade\r\n");
    else if (trailers)
        put_lit(&o, "Connection: TE\r\n");
    put_lit(&o, "X-Forwarded-For: ");
    struct str forwarded = http_get(m, HDR_X_FORWARDED_FOR);
    if (forwarded.n) {
        put(&o, forwarded.p, forwarded.n);
        put_lit(&o, ", ");
    }
    put_lit(&o, x->client);
    if (!http_has(m, HDR_X_FORWARDED_PROTO))
        put_lit(&o, x->tls ? "\r\nX-Forwarded-Proto: https" : "\r\nX-Forwarded-Proto: http");
    if ((request_masked(x) || x->by_path) && !http_has(m, HDR_X_FORWARDED_HOST)) {
        struct str asked = m->authority.n ? m->authority : http_get(m, HDR_HOST);
        put_lit(&o, "\r\nX-Forwarded-Host: ");
        put(&o, asked.p, asked.n);
    }
    put_lit(&o, "\r\n\r\n");
    return o.full ? 0 : (size_t)(o.p - w->head);
}

static void put_number(struct out *o, int64_t v)
{
    char digits[24];
    int n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v > 0);
    while (n)
        put(o, &digits[--n], 1);
}

/* An interim answer and a 204 have no length (RFC 9110 §8.6); clients of HTTP/2 end the stream over one. */
bool response_passes(const struct http_head *m, const struct http_header *h)
{
    return !http_hop_by_hop(m, h) &&
           !(h->id == HDR_CONTENT_LENGTH && (m->status == 204 || (m->status && m->status < 200)));
}

size_t response_build(struct exchange *x, const struct http_head *m, bool close, char *out, size_t cap)
{
    struct out o = {out, out + cap, false};
    put_lit(&o, "HTTP/1.1 ");
    put_number(&o, m->status);
    put(&o, " ", 1);
    put(&o, m->reason.p, m->reason.n);
    put_lit(&o, "\r\n");
    bool upgrade = m->status == 101;
    for (uint16_t i = 0; i < m->count; i++) {
        const struct http_header *h = &m->h[i];
        if (h->id == HDR_UPGRADE ? upgrade : response_passes(m, h))
            put_header(&o, h);
    }
    if (m->status >= 200 && x->answer_body == BODY_CHUNKED && !x->http10)
        put_lit(&o, "Transfer-Encoding: chunked\r\n");
    if (upgrade)
        put_lit(&o, "Connection: Upgrade\r\n");
    else if (close && m->status >= 200)
        put_lit(&o, "Connection: close\r\n");
    else if (x->http10 && m->status >= 200)
        put_lit(&o, "Connection: keep-alive\r\n");
    if (x->woke && (m->status >= 200 || upgrade)) {
        put_lit(&o, "Server-Timing: wake;dur=");
        put_number(&o, x->wake_ms);
        put_lit(&o, "\r\n");
    }
    if (m->status >= 200) {
        /* A page of a sandbox under the shared origin must not become a page of the API's origin (DESIGN.md
         * §5). */
        if (x->by_path)
            put_lit(&o, "Content-Security-Policy: sandbox allow-scripts allow-forms\r\n");
    }
    put_lit(&o, "\r\n");
    return o.full ? 0 : (size_t)(o.p - out);
}
