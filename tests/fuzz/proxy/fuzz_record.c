/* Route records: fields of a hash in Redis, here NAME NUL VALUE NUL …. What is taken can be put into a head
 * and names a relay by address. */
#include "proxy/route.h"

#include <stdlib.h>
#include <string.h>

static void text_check(const char *s, size_t cap)
{
    size_t n = strnlen(s, cap);
    if (n == cap || !http_value_valid(s, n))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct route r = {0};
    bool ok = true;
    for (size_t at = 0; ok && at < size;) {
        struct str field[2];
        char *copy[2]; /* exact size, so that a read past the end is seen */
        for (int i = 0; i < 2; i++) {
            size_t n = strnlen((const char *)data + at, size - at);
            copy[i] = malloc(n ? n : 1);
            memcpy(copy[i], data + at, n);
            field[i] = (struct str){copy[i], (uint32_t)n};
            at += at + n < size ? n + 1 : n;
        }
        ok = route_record_take(&r, field[0], field[1]);
        free(copy[0]);
        free(copy[1]);
    }
    if (!ok)
        return 0;
    text_check(r.node, sizeof r.node);
    text_check(r.mask_host, sizeof r.mask_host);
    if (strpbrk(r.mask_host, " \t\r\n,;/@"))
        abort();
    if (r.relay_len && r.relay.ss_family != AF_INET && r.relay.ss_family != AF_INET6)
        abort();
    if (r.state < ROUTE_NONE || r.state > ROUTE_RESUMING)
        abort();
    return 0;
}
