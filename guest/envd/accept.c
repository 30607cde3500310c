/* Choosing a content coding. */
#include "guest/envd/accept.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool coding_is(const char *p, size_t n, const char *name)
{
    return strlen(name) == n && !strncasecmp(p, name, n);
}

enum encoding accept_encoding(const char *header)
{
    bool gzip = false, identity = false, identity_off = false, other = false, star = false, star_off = false;
    if (!header || !*header)
        return ENCODING_IDENTITY;
    for (const char *p = header; *p;) {
        while (*p == ' ' || *p == ',' || *p == '\t')
            p++;
        size_t all = strcspn(p, ","), n = strcspn(p, ",; \t");
        if (!all)
            break;
        char item[64] = "";
        memcpy(item, p, all < sizeof(item) - 1 ? all : sizeof(item) - 1);
        const char *q = strstr(item, "q=");
        bool off = q && strtod(q + 2, NULL) <= 0;
        if (coding_is(p, n, "gzip") || coding_is(p, n, "x-gzip"))
            gzip = !off;
        else if (coding_is(p, n, "identity"))
            *(off ? &identity_off : &identity) = true;
        else if (coding_is(p, n, "*"))
            *(off ? &star_off : &star) = true;
        else if (!off)
            other = true;
        p += all;
    }
    bool identity_ok = identity || !(identity_off || star_off);
    bool only_gzip = gzip && !identity && !other && !star;
    if (gzip && (only_gzip || !identity_ok))
        return ENCODING_GZIP;
    if (identity_ok)
        return ENCODING_IDENTITY;
    return star && !gzip ? ENCODING_GZIP : ENCODING_NONE;
}
