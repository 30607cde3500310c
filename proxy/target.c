/* Request routing by Host, headers or path. Invariant: the decision depends on this request alone, never on
 * the connection. */
#include "proxy/target.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Host without its port; IPv6 keeps its brackets. */
static struct str host_name(struct str h)
{
    if (h.n && h.p[0] == '[') {
        const char *close = memchr(h.p, ']', h.n);
        return close ? (struct str){h.p, (uint32_t)(close - h.p + 1)} : h;
    }
    const char *colon = memchr(h.p, ':', h.n);
    return colon ? (struct str){h.p, (uint32_t)(colon - h.p)} : h;
}

static bool is_address(struct str h)
{
    if (h.n && h.p[0] == '[')
        return true;
    uint32_t dots = 0;
    for (uint32_t i = 0; i < h.n; i++) {
        if (h.p[i] == '.')
            dots++;
        else if (h.p[i] < '0' || h.p[i] > '9')
            return false;
    }
    return dots == 3;
}

static bool has_prefix(struct str s, const char *lower)
{
    size_t n = strlen(lower);
    return s.n >= n && strncasecmp(s.p, lower, n) == 0;
}

static void bad(struct target *t, const char *why)
{
    t->kind = TARGET_BAD;
    t->wrong = why;
}

static bool port_parse(struct str s, uint16_t *port)
{
    uint32_t v = 0;
    if (s.n == 0 || s.n > 5)
        return false;
    for (uint32_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        v = v * 10 + (uint32_t)(s.p[i] - '0');
    }
    *port = (uint16_t)v;
    return v > 0 && v <= 65535;
}

/* Old clients append "-<client ID>"; host names are case-insensitive. */
static bool sandbox_parse(struct str s, char out[SANDBOX_ID_LEN + 1])
{
    const char *dash = memchr(s.p, '-', s.n);
    uint32_t n = dash ? (uint32_t)(dash - s.p) : s.n;
    if (n == 0)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        char c = s.p[i];
        if (c >= 'A' && c <= 'Z')
            c |= 0x20;
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')))
            return false;
        if (i < SANDBOX_ID_LEN)
            out[i] = c;
    }
    out[n < SANDBOX_ID_LEN ? n : SANDBOX_ID_LEN] = 0;
    if (n > SANDBOX_ID_LEN)
        out[0] = '-'; /* too long to be one: no ID starts like this, so it is not found */
    return true;
}

static void sandbox_set(struct target *t, struct str id, struct str port)
{
    if (!sandbox_parse(id, t->sandbox))
        bad(t, "Invalid sandbox ID");
    else if (!port_parse(port, &t->port))
        bad(t, "Invalid sandbox port");
    else
        t->kind = TARGET_SANDBOX;
}

static struct str take_segment(struct str *path)
{
    uint32_t i = 0;
    while (i < path->n && path->p[i] != '/' && path->p[i] != '?')
        i++;
    struct str s = {path->p, i};
    path->p += i;
    path->n -= i;
    return s;
}

/* /sandbox/<id>/<port>[/rest]; false when the path is of another kind. */
static bool by_path(const struct http_head *m, struct target *t)
{
    struct str rest = m->target;
    if (!(rest.n >= 9 && memcmp(rest.p, "/sandbox/", 9) == 0))
        return false;
    rest.p += 9;
    rest.n -= 9;
    struct str id = take_segment(&rest);
    if (rest.n == 0 || rest.p[0] != '/')
        return false;
    rest.p++;
    rest.n--;
    struct str port = take_segment(&rest);
    t->by_path = true;
    t->path = rest.n ? rest : STR("/");
    sandbox_set(t, id, port);
    return true;
}

static void by_label(struct str host, struct target *t)
{
    const char *dot = memchr(host.p, '.', host.n);
    struct str label = {host.p, dot ? (uint32_t)(dot - host.p) : host.n};
    const char *dash = memchr(label.p, '-', label.n);
    if (dot == NULL || dash == NULL) {
        bad(t, "Invalid host");
        return;
    }
    struct str port = {label.p, (uint32_t)(dash - label.p)};
    struct str id = {dash + 1, (uint32_t)(label.p + label.n - dash - 1)};
    sandbox_set(t, id, port);
}

/* The path as a lenient server could read it: escapes decoded, empty and dot segments dropped, lower-cased.
 */
static void path_normal(struct str path, char *out, size_t cap)
{
    size_t n = 0, segment = 1;
    out[n++] = '/';
    for (uint32_t i = 0; i <= path.n; i++) {
        int c = i < path.n ? (uint8_t)path.p[i] : '?';
        if (c == '%' && i + 2 < path.n) {
            unsigned v;
            char hex[3] = {path.p[i + 1], path.p[i + 2], 0};
            if (sscanf(hex, "%2x", &v) == 1) {
                c = (int)v;
                i += 2;
                if (c == '?')
                    c = 1;
            }
        }
        if (c >= 'A' && c <= 'Z')
            c |= 0x20;
        if (c == ';') { /* path parameters */
            while (i + 1 < path.n && path.p[i + 1] != '/' && path.p[i + 1] != '?')
                i++;
            continue;
        }
        if (c == '/' || c == '\\' || c == '?') {
            size_t len = n - segment;
            if (len == 1 && out[segment] == '.') {
                n = segment;
            } else if (len == 2 && out[segment] == '.' && out[segment + 1] == '.') {
                n = segment > 1 ? segment - 1 : 1;
                while (n > 1 && out[n - 1] != '/')
                    n--;
            } else if (len > 0 && c != '?') {
                out[n++] = '/';
            }
            segment = n;
            if (c == '?')
                break;
        } else {
            out[n++] = (char)c;
        }
        if (n + 2 >= cap)
            break;
    }
    while (n > 1 && out[n - 1] == '/')
        n--;
    out[n] = 0;
}

static bool envd_internal(struct str path)
{
    static const char *const internal[] = {"/init",     "/freeze", "/unfreeze", "/collapse",
                                           "/fsfreeze", "/fsthaw", "/upgrade"};
    char normal[HTTP_HEAD_MAX + 2]; /* all of it: what a short buffer cuts off could be "/../init" */
    path_normal(path, normal, sizeof normal);
    for (size_t i = 0; i < sizeof internal / sizeof internal[0]; i++)
        if (strcmp(normal, internal[i]) == 0)
            return true;
    return false;
}

static bool is_api_name(struct str host, const char *domain)
{
    size_t n = strlen(domain);
    return n && host.n == n + 4 && strncasecmp(host.p, "api.", 4) == 0 &&
           strncasecmp(host.p + 4, domain, n) == 0;
}

void target_resolve(const struct http_head *m, const char *domain, struct target *t)
{
    struct str host = host_name(m->authority.n ? m->authority : http_get(m, HDR_HOST));
    *t = (struct target){.kind = TARGET_API, .path = m->target};
    bool local = is_address(host) || str_is(host, "localhost") || host.n == 0;
    bool shared = has_prefix(host, "sandbox.");
    bool headers = http_has(m, HDR_SANDBOX_ID) || http_has(m, HDR_SANDBOX_PORT);
    /* A host name without a dot (a container's) cannot carry a sandbox, so the headers may. */
    if (headers && (local || shared || memchr(host.p, '.', host.n) == NULL)) {
        t->by_headers = true;
        if (!http_has(m, HDR_SANDBOX_ID) || !http_has(m, HDR_SANDBOX_PORT))
            bad(t, "missing header");
        else
            sandbox_set(t, http_get(m, HDR_SANDBOX_ID), http_get(m, HDR_SANDBOX_PORT));
    } else if (local || shared) {
        if (!by_path(m, t) && shared)
            bad(t, "missing header");
    } else if (!is_api_name(host, domain)) {
        by_label(host, t);
    }
    t->internal = t->kind == TARGET_SANDBOX && t->port == ENVD_PORT && envd_internal(t->path);
}
