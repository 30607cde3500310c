/* HTTP/1.1 parsing. Invariant: nothing is read outside [p, p+n), and a head that two parsers could read in
 * two ways is refused (the ingress in front of us must never disagree about where a request ends). */
#include "guest/envd/http.h"

#include <string.h>
#include <strings.h>

long http_head_complete(const char *p, size_t n, size_t scanned)
{
    size_t from = scanned > 3 ? scanned - 3 : 0;
    const char *end = memmem(p + from, n - from, "\r\n\r\n", 4);
    if (end)
        return end - p + 4 > HTTP_HEAD_MAX ? -1 : end - p + 4;
    return n >= HTTP_HEAD_MAX ? -1 : 0;
}

static bool is_token(unsigned char c)
{
    if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
        return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

static bool parse_length(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    size_t n = strlen(s);
    if (!n || n > 18)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *out = v;
    return true;
}

/* "METHOD SP target SP HTTP/1.x": exactly two spaces, no control characters. */
static int parse_request_line(char *line, size_t n, struct http_req *req)
{
    char *sp1 = memchr(line, ' ', n);
    if (!sp1 || sp1 == line)
        return 400;
    char *sp2 = memchr(sp1 + 1, ' ', (size_t)(line + n - sp1 - 1));
    if (!sp2 || sp2 == sp1 + 1)
        return 400;
    if (line + n - sp2 - 1 != 8 || memcmp(sp2 + 1, "HTTP/1.", 7))
        return 505;
    if (sp2[8] != '0' && sp2[8] != '1')
        return 505;
    for (char *c = line; c < sp1; c++)
        if (!is_token((unsigned char)*c))
            return 400;
    for (char *c = sp1 + 1; c < sp2; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return 400;
    *sp1 = *sp2 = 0;
    req->method = line;
    req->minor = sp2[8] - '0';
    char *target = sp1 + 1;
    if (!strncasecmp(target, "http://", 7)) {
        target = strchr(target + 7, '/');
        if (!target)
            return 400;
    }
    if (*target != '/' && strcmp(target, "*"))
        return 400;
    while (target[0] == '/' && target[1] == '/')
        target++;
    char *q = strchr(target, '?');
    req->query = q ? q + 1 : "";
    if (q)
        *q = 0;
    req->path = target;
    return 0;
}

static int parse_header(char *line, size_t n, struct http_req *req)
{
    char *colon = memchr(line, ':', n);
    if (!colon || colon == line)
        return 400;
    for (char *c = line; c < colon; c++)
        if (!is_token((unsigned char)*c))
            return 400;
    char *v = colon + 1, *end = line + n;
    for (char *c = v; c < end; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return 400;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *colon = *end = 0;
    if (req->n_headers == HTTP_HEADERS_MAX)
        return 431;
    req->headers[req->n_headers++] = (struct http_header){line, v};
    return 0;
}

static int check_framing(struct http_req *req)
{
    int hosts = 0, lengths = 0, codings = 0;
    req->keep_alive = req->minor == 1;
    for (int i = 0; i < req->n_headers; i++) {
        const struct http_header *h = &req->headers[i];
        if (!strcasecmp(h->name, "host")) {
            hosts++;
        } else if (!strcasecmp(h->name, "content-length")) {
            lengths++;
            if (!parse_length(h->value, &req->length))
                return 400;
            req->has_length = true;
        } else if (!strcasecmp(h->name, "transfer-encoding")) {
            codings++;
            if (strcasecmp(h->value, "chunked"))
                return 501;
            req->chunked = true;
        } else if (!strcasecmp(h->name, "connection")) {
            if (strcasestr(h->value, "close"))
                req->keep_alive = false;
            else if (!req->minor && strcasestr(h->value, "keep-alive"))
                req->keep_alive = true;
        } else if (!strcasecmp(h->name, "expect")) {
            if (strcasecmp(h->value, "100-continue"))
                return 417;
            req->expect_continue = true;
        }
    }
    if (hosts > 1 || lengths > 1 || codings > 1 || (lengths && codings) || (codings && !req->minor))
        return 400;
    return hosts || !req->minor ? 0 : 400;
}

int http_parse_head(char *head, size_t n, struct http_req *req)
{
    memset(req, 0, offsetof(struct http_req, headers));
    req->chunked = req->has_length = req->keep_alive = req->expect_continue = false;
    req->length = 0;
    req->method = req->query = "";
    req->path = head + n; /* the caller's NUL: empty until there is one */
    if (memchr(head, 0, n))
        return 400;
    char *p = head, *end = head + n - 2;
    bool first = true;
    while (p < end) {
        char *eol = memmem(p, (size_t)(end + 2 - p), "\r\n", 2);
        if (!eol)
            return 400;
        size_t len = (size_t)(eol - p);
        if (memchr(p, '\n', len) || memchr(p, '\r', len))
            return 400;
        int rc = first ? parse_request_line(p, len, req) : parse_header(p, len, req);
        if (rc)
            return rc;
        first = false;
        p = eol + 2;
    }
    return first ? 400 : check_framing(req);
}

const char *http_header(const struct http_req *req, const char *name)
{
    for (int i = 0; i < req->n_headers; i++)
        if (!strcasecmp(req->headers[i].name, name))
            return req->headers[i].value;
    return NULL;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

long http_unescape(const char *s, size_t n, char *out, size_t cap, bool plus)
{
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%') {
            if (n - i < 3)
                return -1;
            int h = hex(s[i + 1]), l = hex(s[i + 2]);
            if (h < 0 || l < 0)
                return -1;
            c = (char)(h * 16 + l);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (!c || o + 1 >= cap)
            return -1;
        out[o++] = c;
    }
    out[o] = 0;
    return (long)o;
}

bool http_query(const char *query, const char *name, char *out, size_t cap, bool *bad)
{
    size_t name_len = strlen(name);
    out[0] = 0;
    while (*query) {
        size_t n = strcspn(query, "&");
        const char *eq = memchr(query, '=', n);
        size_t klen = eq ? (size_t)(eq - query) : n;
        if (klen == name_len && !memcmp(query, name, klen)) {
            const char *v = eq ? eq + 1 : query + n;
            if (http_unescape(v, (size_t)(query + n - v), out, cap, true) < 0) {
                *bad = true;
                out[0] = 0;
            }
            return true;
        }
        query += n;
        if (*query)
            query++;
    }
    return false;
}

void http_body_start(struct http_body *b, const struct http_req *req)
{
    *b = (struct http_body){.kind = BODY_NONE, .done = true};
    if (req->chunked)
        *b = (struct http_body){.kind = BODY_CHUNKED};
    else if (req->has_length && req->length)
        *b = (struct http_body){.kind = BODY_LENGTH, .left = req->length};
}

/* One byte of chunk framing; returns false when it is broken. Trailers are skipped (nobody sends any to us).
 */
static bool chunk_byte(struct http_body *b, char c)
{
    if (++b->line > HTTP_HEAD_MAX)
        return false;
    switch (b->state) {
    case CHUNK_SIZE: {
        int h = hex(c);
        if (h >= 0) {
            if (++b->digits > 15)
                return false;
            b->left = b->left * 16 + (uint64_t)h;
            return true;
        }
        if (!b->digits)
            return false;
        if (c == ';' || c == ' ' || c == '\t') {
            b->state = CHUNK_EXT;
            return true;
        }
        b->state = CHUNK_LF;
        return c == '\r';
    }
    case CHUNK_EXT:
        if (c == '\r')
            b->state = CHUNK_LF;
        return c != '\n';
    case CHUNK_LF:
        if (c != '\n')
            return false;
        b->line = 0;
        b->state = b->digits == 0 ? CHUNK_SIZE : b->left ? CHUNK_DATA : CHUNK_TRAILER;
        b->digits = 0;
        return true;
    case CHUNK_CR:
        b->state = CHUNK_LF;
        return c == '\r';
    case CHUNK_TRAILER: /* `digits` counts the bytes of the current trailer line here */
        if (c == '\r')
            return true;
        if (c != '\n') {
            b->digits++;
            return true;
        }
        if (!b->digits) {
            b->state = CHUNK_END;
            b->done = true;
        }
        b->digits = 0;
        return true;
    default:
        return false;
    }
}

long http_body_next(struct http_body *b, const char *p, size_t n, const char **data, size_t *len)
{
    *len = 0;
    *data = p;
    size_t used = 0;
    if (b->done)
        return 0;
    if (b->kind == BODY_CHUNKED)
        while (used < n && b->state != CHUNK_DATA && !b->done)
            if (!chunk_byte(b, p[used++]))
                return -1;
    if (b->done || used == n)
        return (long)used;
    size_t take = n - used;
    if (take > b->left)
        take = b->left;
    *data = p + used;
    *len = take;
    b->left -= take;
    if (!b->left) {
        if (b->kind == BODY_LENGTH)
            b->done = true;
        else
            b->state = CHUNK_CR;
    }
    return (long)(used + take);
}

const char *http_reason(int status)
{
    switch (status) {
    case 100:
        return "Continue";
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 206:
        return "Partial Content";
    case 304:
        return "Not Modified";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 406:
        return "Not Acceptable";
    case 408:
        return "Request Timeout";
    case 409:
        return "Conflict";
    case 412:
        return "Precondition Failed";
    case 413:
        return "Content Too Large";
    case 415:
        return "Unsupported Media Type";
    case 416:
        return "Range Not Satisfiable";
    case 417:
        return "Expectation Failed";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 499:
        return "Client Closed Request";
    case 500:
        return "Internal Server Error";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 504:
        return "Gateway Timeout";
    case 505:
        return "HTTP Version Not Supported";
    case 507:
        return "Insufficient Storage";
    default:
        return "Status";
    }
}
