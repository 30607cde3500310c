/* gzip into an arena. Invariant: two passes, the first only counts and stops at the limit, so a small message
 * that would become a huge one takes no memory. */
#include "guest/envd/inflate.h"

#include <string.h>
#include <zlib.h>

#define BLOCK (32 * 1024)

static long count(z_stream *z, size_t max)
{
    static unsigned char drop[BLOCK]; /* one thread: the loop */
    size_t total = 0;
    for (;;) {
        z->next_out = drop;
        z->avail_out = sizeof(drop);
        int rc = inflate(z, Z_NO_FLUSH);
        total += sizeof(drop) - z->avail_out;
        if (total > max)
            return INFLATE_TOO_LARGE;
        if (rc == Z_STREAM_END)
            return z->avail_in ? INFLATE_MALFORMED : (long)total;
        if (rc != Z_OK)
            return INFLATE_MALFORMED; /* Z_BUF_ERROR: it is cut */
    }
}

static long unpack(z_stream *z, const char *p, size_t n, size_t max, struct arena *a, const char **out)
{
    z->next_in = (unsigned char *)p;
    z->avail_in = (uInt)n;
    long len = count(z, max);
    if (len < 0)
        return len;
    char *data = arena_alloc(a, (size_t)len + 1);
    if (!data || inflateReset(z) != Z_OK)
        return INFLATE_TOO_LARGE;
    z->next_in = (unsigned char *)p;
    z->avail_in = (uInt)n;
    z->next_out = (unsigned char *)data;
    z->avail_out = (uInt)len + 1;
    if (inflate(z, Z_FINISH) != Z_STREAM_END)
        return INFLATE_MALFORMED;
    *out = data;
    return len;
}

long gzip_unpack(const char *p, size_t n, size_t max, struct arena *a, const char **out)
{
    z_stream z = {0};
    if (inflateInit2(&z, 15 + 16) != Z_OK)
        return INFLATE_TOO_LARGE;
    long len = unpack(&z, p, n, max, a, out);
    inflateEnd(&z);
    return len;
}
