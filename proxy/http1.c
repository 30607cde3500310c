/* The strict head parser. Invariant: a head that is accepted has exactly one reading: one Host, one way to
 * tell where the body ends, CRLF line ends, no folded lines, names that are tokens. */
#include "proxy/http1.h"

#include <string.h>
#include <strings.h>

/* tchar of RFC 9110 §5.6.2 */
static const uint8_t token_char[256] = {
    ['!'] = 1, ['#'] = 1, ['$'] = 1, ['%'] = 1,         ['&'] = 1,         ['\''] = 1,
    ['*'] = 1, ['+'] = 1, ['-'] = 1, ['.'] = 1,         ['^'] = 1,         ['_'] = 1,
    ['`'] = 1, ['|'] = 1, ['~'] = 1, ['0' ... '9'] = 1, ['a' ... 'z'] = 1, ['A' ... 'Z'] = 1};

static inline bool value_char(uint8_t c)
{
    return (c >= 0x20 && c != 0x7f) || c == '\t';
}

bool http_name_valid(const char *p, size_t n)
{
    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!token_char[(uint8_t)p[i]])
            return false;
    return true;
}

bool http_value_valid(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!value_char((uint8_t)p[i]))
            return false;
    return true;
}

bool str_is(struct str s, const char *lower)
{
    return strlen(lower) == s.n && strncasecmp(s.p, lower, s.n) == 0;
}

static struct str trim(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return (struct str){p, (uint32_t)(end - p)};
}

bool str_has_token(struct str list, const char *lower)
{
    const char *p = list.p, *end = list.p + list.n;
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma ? comma : end;
        if (str_is(trim(p, stop), lower))
            return true;
        p = stop + 1;
    }
    return false;
}

static const struct {
    const char *name;
    uint8_t id;
} by_name[] = {
    {"host", HDR_HOST},
    {"content-length", HDR_CONTENT_LENGTH},
    {"transfer-encoding", HDR_TRANSFER_ENCODING},
    {"connection", HDR_CONNECTION},
    {"keep-alive", HDR_KEEP_ALIVE},
    {"proxy-connection", HDR_PROXY_CONNECTION},
    {"te", HDR_TE},
    {"upgrade", HDR_UPGRADE},
    {"expect", HDR_EXPECT},
    {"e2b-sandbox-id", HDR_SANDBOX_ID},
    {"e2b-sandbox-port", HDR_SANDBOX_PORT},
    {"e2b-traffic-access-token", HDR_TRAFFIC_TOKEN},
    {"x-access-token", HDR_ACCESS_TOKEN},
    {"content-type", HDR_CONTENT_TYPE},
    {"accept", HDR_ACCEPT},
    {"user-agent", HDR_USER_AGENT},
    {"sec-fetch-mode", HDR_SEC_FETCH_MODE},
    {"x-requested-with", HDR_X_REQUESTED_WITH},
    {"x-forwarded-for", HDR_X_FORWARDED_FOR},
    {"x-forwarded-proto", HDR_X_FORWARDED_PROTO},
    {"x-forwarded-host", HDR_X_FORWARDED_HOST},
    {"traceparent", HDR_TRACEPARENT},
    {"connect-protocol-version", HDR_CONNECT_PROTOCOL},
    {"server-timing", HDR_SERVER_TIMING},
    {"http2-settings", HDR_HTTP2_SETTINGS},
};

/* First byte and length tell nearly all of them apart; the comparison confirms. */
static uint8_t header_id(struct str name)
{
    static const uint32_t first =
        1u << ('h' - 'a') | 1u << ('c' - 'a') | 1u << ('t' - 'a') | 1u << ('k' - 'a') | 1u << ('p' - 'a') |
        1u << ('u' - 'a') | 1u << ('e' - 'a') | 1u << ('x' - 'a') | 1u << ('a' - 'a') | 1u << ('s' - 'a');
    uint8_t c = (uint8_t)(name.p[0] | 0x20);
    if (c < 'a' || c > 'z' || !(first >> (c - 'a') & 1))
        return HDR_OTHER;
    for (size_t i = 0; i < sizeof by_name / sizeof by_name[0]; i++)
        if ((uint8_t)by_name[i].name[0] == c && str_is(name, by_name[i].name))
            return by_name[i].id;
    return HDR_OTHER;
}

int http_head_end(struct http_scan *s, const char *p, size_t n)
{
    while (s->at < n) {
        const char *lf = memchr(p + s->at, '\n', n - s->at);
        if (lf == NULL) {
            s->at = (uint32_t)n;
            break;
        }
        uint32_t i = (uint32_t)(lf - p);
        if (i == 0 || p[i - 1] != '\r')
            return HTTP_BAD;
        bool empty = i == s->line + 1;
        s->at = s->line = i + 1;
        if (i + 1 > HTTP_HEAD_MAX)
            return HTTP_TOO_LARGE;
        if (empty)
            return (int)(i + 1);
    }
    return n > HTTP_HEAD_MAX ? HTTP_TOO_LARGE : HTTP_MORE;
}

static bool length_parse(struct str v, int64_t *out)
{
    if (v.n == 0 || v.n > 18)
        return false;
    int64_t n = 0;
    for (uint32_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9')
            return false;
        n = n * 10 + (v.p[i] - '0');
    }
    *out = n;
    return true;
}

static bool note(struct http_head *m, struct http_header *h, int16_t index)
{
    bool first = m->known[h->id] < 0;
    if (first)
        m->known[h->id] = index;
    switch (h->id) {
    case HDR_HOST:
    case HDR_SANDBOX_ID:
    case HDR_SANDBOX_PORT:
        return first; /* two of these could be read differently by two readers */
    case HDR_CONTENT_LENGTH:
        return first && length_parse(h->value, &m->content_length);
    case HDR_TRANSFER_ENCODING:
        m->chunked = true;
        return first && str_is(h->value, "chunked");
    case HDR_CONNECTION:
        m->close |= str_has_token(h->value, "close");
        m->keep_alive |= str_has_token(h->value, "keep-alive");
        m->upgrade |= str_has_token(h->value, "upgrade");
        return true;
    default:
        return true;
    }
}

static int headers_parse(const char *p, const char *end, struct http_head *m)
{
    memset(m->known, 0xff, sizeof m->known);
    m->content_length = -1;
    m->chunked = m->close = m->keep_alive = m->upgrade = false;
    m->count = 0;
    while (p < end) {
        if (*p == '\r')
            return end - p == 2 && p[1] == '\n' ? 0 : HTTP_BAD;
        const char *name = p;
        while (p < end && token_char[(uint8_t)*p])
            p++;
        if (p == name || p >= end || *p != ':')
            return HTTP_BAD; /* also a folded line: it starts with a blank */
        struct str n = {name, (uint32_t)(p - name)};
        p++;
        const char *value = p;
        while (p < end && value_char((uint8_t)*p))
            p++;
        if (end - p < 2 || p[0] != '\r' || p[1] != '\n')
            return HTTP_BAD;
        if (m->count == HTTP_HEADERS_MAX)
            return HTTP_TOO_LARGE;
        struct http_header *h = &m->h[m->count];
        *h = (struct http_header){n, trim(value, p), header_id(n)};
        if (!note(m, h, (int16_t)m->count))
            return HTTP_BAD;
        m->count++;
        p += 2;
    }
    return HTTP_BAD;
}

static bool version_parse(const char *p, int *minor)
{
    if (memcmp(p, "HTTP/1.", 7) != 0 || (p[7] != '0' && p[7] != '1'))
        return false;
    *minor = p[7] - '0';
    return true;
}

static bool authority_valid(struct str a)
{
    for (uint32_t i = 0; i < a.n; i++) {
        char c = a.p[i];
        bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  strchr("-._:[]", c) != NULL;
        if (!ok || c == 0)
            return false;
    }
    return true;
}

/* Reduces http://authority/path to its parts; leaves the other forms. */
static int target_forms(struct http_head *m)
{
    struct str t = m->target;
    m->authority = (struct str){"", 0};
    if (t.p[0] == '/')
        return 0;
    if (str_eq(m->method, STR("CONNECT")))
        return 0; /* refused by the caller, whatever it names */
    if (t.n == 1 && t.p[0] == '*')
        return str_eq(m->method, STR("OPTIONS")) ? 0 : HTTP_BAD;
    uint32_t skip = t.n > 7 && strncasecmp(t.p, "http://", 7) == 0    ? 7
                    : t.n > 8 && strncasecmp(t.p, "https://", 8) == 0 ? 8
                                                                      : 0;
    if (skip == 0)
        return HTTP_BAD;
    uint32_t i = skip;
    while (i < t.n && t.p[i] != '/' && t.p[i] != '?')
        i++;
    m->authority = (struct str){t.p + skip, i - skip};
    if (m->authority.n == 0 || !authority_valid(m->authority) || (i < t.n && t.p[i] == '?'))
        return HTTP_BAD;
    m->target = i < t.n ? (struct str){t.p + i, t.n - i} : STR("/");
    return 0;
}

int http_parse_request(const char *p, size_t n, struct http_head *m)
{
    const char *end = p + n, *q = p;
    m->status = 0;
    while (q < end && token_char[(uint8_t)*q])
        q++;
    if (q == p || q - p > 32 || q >= end || *q != ' ')
        return HTTP_BAD;
    m->method = (struct str){p, (uint32_t)(q - p)};
    const char *t = ++q;
    while (q < end && (uint8_t)*q > 0x20 && *q != 0x7f && *q != '#')
        q++;
    if (q == t || end - q < 11 || *q != ' ' || !version_parse(q + 1, &m->minor) || q[9] != '\r' ||
        q[10] != '\n')
        return HTTP_BAD;
    m->target = (struct str){t, (uint32_t)(q - t)};
    int rc = target_forms(m);
    if (rc == 0)
        rc = headers_parse(q + 11, end, m);
    if (rc != 0)
        return rc;
    if (m->chunked && (m->content_length >= 0 || m->minor == 0))
        return HTTP_BAD;
    if (m->minor == 1 && !http_has(m, HDR_HOST))
        return HTTP_BAD;
    return authority_valid(http_get(m, HDR_HOST)) ? 0 : HTTP_BAD;
}

int http_parse_response(const char *p, size_t n, struct http_head *m)
{
    const char *end = p + n;
    m->method = m->target = m->authority = (struct str){"", 0};
    if (n < 15 || !version_parse(p, &m->minor) || p[8] != ' ')
        return HTTP_BAD;
    m->status = 0;
    for (int i = 9; i < 12; i++) {
        if (p[i] < '0' || p[i] > '9')
            return HTTP_BAD;
        m->status = m->status * 10 + (p[i] - '0');
    }
    const char *q = p + 12;
    if (m->status < 100 || m->status > 599 || (*q != ' ' && *q != '\r'))
        return HTTP_BAD;
    const char *reason = *q == ' ' ? q + 1 : q;
    for (q = reason; q < end && value_char((uint8_t)*q);)
        q++;
    if (end - q < 4 || q[0] != '\r' || q[1] != '\n')
        return HTTP_BAD;
    m->reason = (struct str){reason, (uint32_t)(q - reason)};
    int rc = headers_parse(q + 2, end, m);
    if (rc != 0)
        return rc;
    return m->chunked && (m->content_length >= 0 || m->minor == 0) ? HTTP_BAD : 0;
}

bool http_trailer_forbidden(struct str name)
{
    switch (header_id(name)) {
    case HDR_HOST:
    case HDR_CONTENT_LENGTH:
    case HDR_TRANSFER_ENCODING:
    case HDR_CONNECTION:
    case HDR_KEEP_ALIVE:
    case HDR_PROXY_CONNECTION:
    case HDR_TE:
    case HDR_UPGRADE:
    case HDR_HTTP2_SETTINGS:
    case HDR_EXPECT:
    case HDR_SANDBOX_ID:
    case HDR_SANDBOX_PORT:
    case HDR_TRAFFIC_TOKEN:
    case HDR_X_FORWARDED_FOR:
    case HDR_X_FORWARDED_PROTO:
    case HDR_X_FORWARDED_HOST:
        return true;
    default:
        return str_is(name, "trailer") || str_is(name, "content-encoding") || str_is(name, "content-range");
    }
}

int http_parse_trailers(const char *p, size_t n, struct http_head *m)
{
    m->method = m->target = m->authority = m->reason = (struct str){"", 0};
    m->status = 0;
    m->minor = 1;
    int rc = headers_parse(p, p + n, m);
    for (uint16_t i = 0; i < m->count && rc == 0; i++)
        rc = http_trailer_forbidden(m->h[i].name) ? HTTP_BAD : 0;
    return rc;
}

bool http_hop_by_hop(const struct http_head *m, const struct http_header *h)
{
    switch (h->id) {
    case HDR_CONNECTION:
    case HDR_KEEP_ALIVE:
    case HDR_PROXY_CONNECTION:
    case HDR_UPGRADE:
    case HDR_TE:
    case HDR_TRANSFER_ENCODING:
    case HDR_HTTP2_SETTINGS:
        return true;
    default:
        break;
    }
    if (m->known[HDR_CONNECTION] < 0)
        return false;
    for (uint16_t i = (uint16_t)m->known[HDR_CONNECTION]; i < m->count; i++) {
        if (m->h[i].id != HDR_CONNECTION)
            continue;
        struct str list = m->h[i].value;
        const char *p = list.p, *end = list.p + list.n;
        while (p < end) {
            const char *comma = memchr(p, ',', (size_t)(end - p));
            const char *stop = comma ? comma : end;
            struct str token = trim(p, stop);
            if (token.n == h->name.n && strncasecmp(token.p, h->name.p, token.n) == 0)
                return h->id != HDR_HOST &&
                       h->id != HDR_CONTENT_LENGTH; /* these decide framing and routing */
            p = stop + 1;
        }
    }
    return false;
}
