/* Heads and bodies: whatever is accepted stays inside the buffer, and a body comes out the same however it is
 * cut. */
#include "guest/envd/http.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t body_hash(const struct http_req *req, const char *p, size_t n, size_t step, bool *ok)
{
    struct http_body b;
    uint64_t h = 14695981039346656037u;
    http_body_start(&b, req);
    *ok = true;
    for (size_t at = 0; at < n && !b.done;) {
        const char *piece;
        size_t len, avail = n - at < step ? n - at : step;
        long used = http_body_next(&b, p + at, avail, &piece, &len);
        if (used < 0 || (used == 0 && !b.done)) {
            *ok = false;
            return 0;
        }
        if (len && (piece < p + at || piece + len > p + at + avail))
            abort();
        for (size_t i = 0; i < len; i++)
            h = (h ^ (unsigned char)piece[i]) * 1099511628211u;
        at += (size_t)used;
    }
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct http_req req;
    char out[256];
    bool bad = false, ok[2];
    long head = http_head_complete((const char *)data, n, 0);
    if (head <= 0)
        return 0;
    char *text = malloc((size_t)head + 1);
    memcpy(text, data, (size_t)head);
    text[head] = 0;
    if (http_parse_head(text, (size_t)head, &req) == 0) {
        http_query(req.query, "path", out, sizeof(out), &bad);
        http_unescape(req.path, strlen(req.path), out, sizeof(out), true);
        http_header(&req, "x-access-token");
        const char *rest = (const char *)data + head;
        uint64_t a = body_hash(&req, rest, n - (size_t)head, n, &ok[0]);
        uint64_t b = body_hash(&req, rest, n - (size_t)head, 1 + data[0] % 7, &ok[1]);
        if (ok[0] != ok[1] || (ok[0] && a != b))
            abort();
    }
    free(text);
    return 0;
}
