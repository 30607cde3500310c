/* Basic authorization names a user; it is no secret (the token is). */
#include "guest/envd/request_user.h"

#include <string.h>
#include <strings.h>

#include "guest/envd/codec.h"

int request_basic_user(const struct http_req *req, char *out, size_t cap)
{
    const char *h = http_header(req, "authorization");
    char text[512];
    out[0] = 0;
    if (!h || strncasecmp(h, "basic ", 6))
        return 0;
    h += 6;
    size_t n = strlen(h);
    if (n > 400)
        return -1;
    long len = base64_decode(h, n, text);
    if (len < 0)
        return -1;
    char *colon = memchr(text, ':', (size_t)len);
    size_t name = colon ? (size_t)(colon - text) : (size_t)len;
    if (name >= cap || memchr(text, 0, name))
        return -1;
    memcpy(out, text, name);
    out[name] = 0;
    return 0;
}
