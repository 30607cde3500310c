/* Heads of requests, answers and trailers. What is accepted points into the input, has one Host and one
 * framing, and is accepted in the same way when it arrives in two pieces. */
#include "proxy/answer.h"
#include "proxy/http1.h"

#include <stdlib.h>
#include <string.h>

static void inside(struct str s, const char *p, size_t n)
{
    if (s.n && (s.p < p || s.p + s.n > p + n))
        abort();
}

static void check(const struct http_head *m, const char *p, size_t n)
{
    size_t framings = 0, hosts = 0;
    for (uint16_t i = 0; i < m->count; i++) {
        inside(m->h[i].name, p, n);
        inside(m->h[i].value, p, n);
        if (!http_name_valid(m->h[i].name.p, m->h[i].name.n) ||
            !http_value_valid(m->h[i].value.p, m->h[i].value.n))
            abort();
        framings += m->h[i].id == HDR_CONTENT_LENGTH || m->h[i].id == HDR_TRANSFER_ENCODING;
        hosts += m->h[i].id == HDR_HOST;
        http_hop_by_hop(m, &m->h[i]);
    }
    if (framings > 1 || hosts > 1)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct http_head m;
    char *p = malloc(size ? size : 1); /* exact size, so that a read past the end is seen */
    memcpy(p, data, size);
    struct http_scan whole = {0}, pieces = {0};
    int n = http_head_end(&whole, p, size);
    int first = http_head_end(&pieces, p, size / 2);
    if (first == HTTP_MORE && http_head_end(&pieces, p, size) != n)
        abort();
    if (n > 0) {
        if (http_parse_request(p, (size_t)n, &m) == 0) {
            check(&m, p, (size_t)n);
            answer_form(&m);
            if (m.minor == 1 && !http_has(&m, HDR_HOST))
                abort();
        }
        if (http_parse_response(p, (size_t)n, &m) == 0)
            check(&m, p, (size_t)n);
        if (http_parse_trailers(p, (size_t)n, &m) == 0)
            check(&m, p, (size_t)n);
    }
    free(p);
    return 0;
}
