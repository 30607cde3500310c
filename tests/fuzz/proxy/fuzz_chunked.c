/* Chunked bodies: the scanner gives the same end and the same payload whether the bytes come at once or in
 * pieces, and lets no trailers pass that the parser of trailers would refuse. */
#include "proxy/chunked.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a of the payload, and where the body ended. */
static uint64_t run(const char *p, size_t n, size_t piece, int *ended, size_t *end)
{
    static char trailers[HTTP_TRAILER_MAX * 2];
    static struct http_head m;
    size_t trailer_len = 0;
    struct chunked c = {0};
    uint64_t hash = 14695981039346656037u;
    size_t at = 0;
    *ended = CHUNKED_MORE;
    while (at < n) {
        size_t take = n - at < piece ? n - at : piece, used = 0;
        struct str span;
        enum chunked_event ev = chunked_next(&c, p + at, take, &used, &span);
        if (used > take)
            abort();
        if (ev == CHUNKED_BAD || ev == CHUNKED_END) {
            *ended = ev;
            break;
        }
        if (ev == CHUNKED_DATA || ev == CHUNKED_TRAILER)
            for (uint32_t i = 0; i < span.n; i++)
                hash = (hash ^ (uint8_t)span.p[i]) * 1099511628211u;
        if (ev == CHUNKED_TRAILER && trailer_len + span.n > sizeof trailers)
            abort();
        if (ev == CHUNKED_TRAILER) {
            memcpy(trailers + trailer_len, span.p, span.n);
            trailer_len += span.n;
        }
        if (ev != CHUNKED_MORE && used == 0)
            abort();
        at += used;
    }
    if (c.state == CHUNKED_STATE_END)
        *ended = CHUNKED_END;
    if (*ended == CHUNKED_END && trailer_len > 2 && http_parse_trailers(trailers, trailer_len, &m) != 0)
        abort();
    *end = at;
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *p = malloc(size ? size : 1);
    memcpy(p, data, size);
    int ended1, ended2;
    size_t end1, end2;
    uint64_t one = run(p, size, SIZE_MAX, &ended1, &end1), two = run(p, size, 3, &ended2, &end2);
    if (ended1 != ended2 || (ended1 == CHUNKED_END && (one != two || end1 != end2)))
        abort();
    free(p);
    return 0;
}
