/* Routing: whatever the head, the decision is one of three, an ID is made of its alphabet, and the path lies
 * inside the target. */
#include "proxy/target.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct http_head m;
    char *p = malloc(size ? size : 1);
    memcpy(p, data, size);
    struct http_scan scan = {0};
    int n = http_head_end(&scan, p, size);
    if (n > 0 && http_parse_request(p, (size_t)n, &m) == 0) {
        struct target t;
        target_resolve(&m, "cube.test", &t);
        if (t.kind == TARGET_SANDBOX &&
            (t.port == 0 || strspn(t.sandbox, "-abcdefghijklmnopqrstuvwxyz0123456789") != strlen(t.sandbox)))
            abort();
        if (t.kind == TARGET_BAD && t.wrong == NULL)
            abort();
        bool own = t.path.n == 1 && t.path.p[0] == '/';
        if (t.path.n == 0 || (!own && (t.path.p < p || t.path.p + t.path.n > p + size)))
            abort();
    }
    free(p);
    return 0;
}
