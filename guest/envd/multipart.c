/* The multipart parser. Invariant: payload is handed on as soon as it cannot be the beginning of a delimiter,
 * so memory is one header or one delimiter, however large the parts are. */
#include "guest/envd/multipart.h"

#include <string.h>
#include <strings.h>

/* The value of parameter `name` in a header value; handles quoting with backslashes. Returns false when
 * absent or too long. %22 in a file name is a quote that the browser's form encoding hid (contracts/e2b.md
 * §9.5). */
static bool parameter(const char *value, const char *name, char *out, size_t cap)
{
    size_t len = strlen(name);
    const char *p = value;
    while ((p = strchr(p, ';'))) {
        p++;
        while (*p == ' ' || *p == '\t')
            p++;
        bool match = !strncasecmp(p, name, len) && p[len] == '=';
        const char *v = match ? p + len + 1 : p;
        size_t o = 0;
        if (!match) {
            bool quoted = false; /* a ';' inside another parameter's quotes is no separator */
            for (; *p && (quoted || *p != ';'); p++) {
                if (quoted && *p == '\\' && p[1])
                    p++;
                else if (*p == '"')
                    quoted = !quoted;
            }
            continue;
        }
        bool quoted = *v == '"';
        if (quoted)
            v++;
        while (*v && (quoted ? *v != '"' : *v != ';' && *v != ' ')) {
            char c = *v;
            if (quoted && c == '\\' && (v[1] == '"' || v[1] == '\\'))
                c = *++v;
            else if (quoted && c == '%' && v[1] == '2' && v[2] == '2') {
                c = '"';
                v += 2;
            }
            if (o + 1 >= cap)
                return false;
            out[o++] = c;
            v++;
        }
        out[o] = 0;
        return true;
    }
    return false;
}

bool multipart_start(struct multipart *m, const char *content_type)
{
    char boundary[MULTIPART_BOUNDARY_MAX];
    if (strncasecmp(content_type, "multipart/form-data", 19))
        return false;
    if (!parameter(content_type, "boundary", boundary, sizeof(boundary)) || !*boundary)
        return false;
    memcpy(m->delimiter, "\r\n--", 4);
    strcpy(m->delimiter + 4, boundary);
    m->delimiter_len = strlen(boundary) + 4;
    m->state = MP_PREAMBLE;
    memcpy(m->hold, "\r\n", 2); /* the first delimiter may stand at the very beginning */
    m->held = 2;
    m->bad = NULL;
    return true;
}

bool multipart_complete(const struct multipart *m)
{
    return m->state == MP_END;
}

static int broken(struct multipart *m, const char *why)
{
    m->bad = why;
    return -1;
}

static int payload(struct multipart *m, const char *p, size_t n)
{
    return m->state == MP_DATA && n ? m->on_data(m->arg, p, n) : 0;
}

static int delimiter_seen(struct multipart *m)
{
    bool in_part = m->state == MP_DATA;
    m->state = MP_AFTER_DELIMITER;
    m->held = 0;
    return in_part ? m->on_part_end(m->arg) : 0;
}

/* Looks for the delimiter in held bytes and p together. Returns how many bytes of p are consumed, or -1. */
static long scan(struct multipart *m, const char *p, size_t n)
{
    size_t len = m->delimiter_len;
    if (m->held) { /* a delimiter may have begun in the bytes before: complete the candidate byte by byte */
        size_t used = 0;
        while (used < n && m->held) {
            if (p[used] == m->delimiter[m->held]) {
                m->hold[m->held++] = p[used++];
                if (m->held == len)
                    return delimiter_seen(m) < 0 ? -1 : (long)used;
                continue;
            }
            /* The held bytes are a prefix of the delimiter, whose only CR is its first byte: no shorter one
             * fits. */
            if (payload(m, m->delimiter, m->held) < 0)
                return -1;
            m->held = 0;
        }
        return (long)used;
    }
    const char *at = memmem(p, n, m->delimiter, len);
    if (at) {
        if (payload(m, p, (size_t)(at - p)) < 0 || delimiter_seen(m) < 0)
            return -1;
        return (long)(at - p + (long)len);
    }
    size_t keep = 0; /* the longest end of p that is a beginning of the delimiter */
    const char *cr = memrchr(p, '\r', n);
    if (cr && (size_t)(p + n - cr) < len && !memcmp(cr, m->delimiter, (size_t)(p + n - cr)))
        keep = (size_t)(p + n - cr);
    if (payload(m, p, n - keep) < 0)
        return -1;
    memcpy(m->hold, m->delimiter, keep);
    m->held = keep;
    return (long)n;
}

static int header_parse(struct multipart *m)
{
    m->name[0] = m->filename[0] = 0;
    m->has_filename = false;
    m->hold[m->held] = 0;
    if (strlen(m->hold) != m->held)
        return broken(m, "NUL in a part's header");
    for (char *line = m->hold; *line;) {
        char *eol = strstr(line, "\r\n");
        if (!eol)
            break;
        *eol = 0;
        if (!strncasecmp(line, "content-disposition:", 20)) {
            parameter(line, "name", m->name, sizeof(m->name));
            m->has_filename = parameter(line, "filename", m->filename, sizeof(m->filename));
        }
        line = eol + 2;
    }
    m->state = MP_DATA;
    m->held = 0;
    return m->on_part(m->arg);
}

static int header_byte(struct multipart *m, char c)
{
    if (m->held + 1 >= sizeof(m->hold))
        return broken(m, "a part's header is too long");
    m->hold[m->held++] = c;
    if (m->state ==
        MP_AFTER_DELIMITER) { /* "--" ends, CR LF begins a part; white space may pad the delimiter */
        if (m->held == 2 && !memcmp(m->hold, "--", 2)) {
            m->state = MP_END;
        } else if (m->held >= 2 && !memcmp(m->hold + m->held - 2, "\r\n", 2)) {
            m->state = MP_HEADER;
            m->held = 0;
        } else if (m->held > 2 && c != ' ' && c != '\t' && c != '\r') {
            return broken(m, "malformed delimiter");
        }
        return 0;
    }
    bool empty = m->held == 2 && !memcmp(m->hold, "\r\n", 2);
    if (empty || (m->held >= 4 && !memcmp(m->hold + m->held - 4, "\r\n\r\n", 4)))
        return header_parse(m);
    return 0;
}

int multipart_feed(struct multipart *m, const char *p, size_t n)
{
    while (n && m->state != MP_END) {
        long used = 1;
        if (m->state == MP_PREAMBLE || m->state == MP_DATA)
            used = scan(m, p, n);
        else if (header_byte(m, *p) < 0)
            return -1;
        if (used < 0)
            return -1;
        p += used;
        n -= (size_t)used;
    }
    return 0;
}
