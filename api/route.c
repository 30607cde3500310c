/* Owns the table of routes and the match against it. Invariant: the table is the only list of paths; a route
 * is found by the number of its segments and the first pattern that fits, and a literal segment stands before
 * a parameter in the table (checked by a test). */
#include "api/route.h"

#include <pthread.h>
#include <string.h>

const struct route routes[ROUTE_COUNT] = {
#define ROUTE(id, method, pattern, auth, status, request, response, query, summary)                          \
    {#id, ROUTE_##method, pattern, ROUTE_AUTH_##auth, status, request, response, query, summary},
#define MISSING(id, method, pattern, auth, needs)                                                            \
    {#id, ROUTE_##method, pattern, ROUTE_AUTH_##auth, 0, "", "", "", needs},
#include "api/routes.def"
#undef ROUTE
#undef MISSING
};

static const char *const method_names[ROUTE_METHODS] = {"GET", "POST", "PUT", "PATCH", "DELETE"};

#define MAX_SEGMENTS 6

/* The patterns, cut at start: what the first request would else do again and again. */
struct compiled {
    uint8_t segments;
    struct {
        const char *s; /* NULL = parameter */
        uint8_t n;
    } seg[MAX_SEGMENTS];
};
static struct compiled compiled[ROUTE_COUNT];
static uint16_t by_segments[MAX_SEGMENTS + 1][ROUTE_COUNT];
static uint16_t by_segments_n[MAX_SEGMENTS + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *route_method_name(enum route_method m)
{
    return method_names[m];
}

enum route_method route_method_parse(const char *s, size_t n)
{
    for (int i = 0; i < ROUTE_METHODS; i++)
        if (strlen(method_names[i]) == n && memcmp(method_names[i], s, n) == 0)
            return (enum route_method)i;
    return ROUTE_METHODS;
}

static void compile(void)
{
    for (uint16_t i = 0; i < ROUTE_COUNT; i++) {
        struct compiled *c = &compiled[i];
        for (const char *p = routes[i].pattern; *p == '/';) {
            const char *end = strchrnul(++p, '/');
            c->seg[c->segments].s = *p == '{' ? NULL : p;
            c->seg[c->segments++].n = (uint8_t)(end - p);
            p = end;
        }
        by_segments[c->segments][by_segments_n[c->segments]++] = i;
    }
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

ssize_t percent_decode(const char *s, size_t n, bool plus, char *out)
{
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%') {
            int hi = i + 2 < n ? hex_value(s[i + 1]) : -1;
            int lo = hi >= 0 ? hex_value(s[i + 2]) : -1;
            if (lo < 0)
                return -1;
            c = (char)(hi << 4 | lo);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == '\0')
            return -1;
        out[o++] = c;
    }
    return (ssize_t)o;
}

struct segment {
    const char *s;
    size_t n;
};

static bool fits(const struct compiled *c, const struct segment *seg)
{
    for (unsigned i = 0; i < c->segments; i++) {
        if (!c->seg[i].s) {
            if (seg[i].n == 0)
                return false;
        } else if (c->seg[i].n != seg[i].n || memcmp(c->seg[i].s, seg[i].s, seg[i].n) != 0) {
            return false;
        }
    }
    return true;
}

static int take_args(const struct compiled *c, const struct segment *seg, struct route_match *out,
                     struct err *e)
{
    size_t used = 0;
    for (unsigned i = 0; i < c->segments; i++) {
        if (c->seg[i].s)
            continue;
        char *at = out->mem + used;
        ssize_t n = percent_decode(seg[i].s, seg[i].n, false, at);
        if (n < 0)
            return err_set(e, ERR_INVALID, "path parameter %u is not properly percent-encoded",
                           (unsigned)out->nargs + 1);
        for (ssize_t k = 0; k < n; k++)
            if ((unsigned char)at[k] < 0x20 || at[k] == 0x7f)
                return err_set(e, ERR_INVALID, "path parameter %u has a control character",
                               (unsigned)out->nargs + 1);
        at[n] = '\0';
        out->args[out->nargs++] = at;
        used += (size_t)n +
                1; /* fits: a segment and its slash are never shorter than the decoded text and its NUL */
    }
    return 0;
}

int route_match(enum route_method method, const char *path, size_t n, struct route_match *out, struct err *e)
{
    pthread_once(&once, compile);
    out->nargs = 0;
    out->allowed = 0;
    out->id = ROUTE_COUNT;
    if (n >= ROUTE_MAX_PATH)
        return err_set(e, ERR_TOO_LARGE, "the path is longer than %d bytes", ROUTE_MAX_PATH);
    if (n == 0 || path[0] != '/')
        return err_set(e, ERR_INVALID, "the path does not begin with '/'");
    while (n > 1 && path[1] == '/') {
        path++;
        n--;
    }
    struct segment seg[MAX_SEGMENTS];
    unsigned count = 0;
    for (const char *p = path, *end = path + n; p < end;) {
        const char *start = p + 1;
        p = memchr(start, '/', (size_t)(end - start));
        if (!p)
            p = end;
        if (count == MAX_SEGMENTS)
            return err_set(e, ERR_NOT_FOUND, "no such path");
        seg[count++] = (struct segment){start, (size_t)(p - start)};
    }
    for (unsigned k = 0; k < by_segments_n[count]; k++) {
        enum route_id id = by_segments[count][k];
        if (out->id != ROUTE_COUNT && routes[id].method == method)
            continue;
        if (!fits(&compiled[id], seg))
            continue;
        out->allowed |= 1u << routes[id].method;
        if (routes[id].method == method)
            out->id = id;
    }
    if (out->id == ROUTE_COUNT)
        return out->allowed ? err_set(e, ERR_UNSUPPORTED, "this method is not allowed here")
                            : err_set(e, ERR_NOT_FOUND, "no such path");
    return take_args(&compiled[out->id], seg, out, e);
}
