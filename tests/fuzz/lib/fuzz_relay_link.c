/* What decodes must encode to the same bytes. */
#include "lib/net/relay_link.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct link_msg m;
    uint8_t out[LINK_MSG_MAX];
    if (link_decode(data, n, &m) && (link_encode(&m, out) != n || memcmp(out, data, n) != 0))
        abort();
    return 0;
}
