/* A sandbox's record as it lies on disk; the checksum is made right here, so that what is behind it is
 * reached. */
#include "lib/net/crypto.h"
#include "node/daemon/record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    Cube__Node__V1__Record *r = NULL;
    uint8_t sum[32];
    char *text = malloc(n + 8);
    if (!text)
        abort();
    sha256(data, n, sum);
    memcpy(text, sum, 8);
    memcpy(text + 8, data, n);
    if (record_decode(text, n + 8, "i0abcdefghijklmnopqrs", &r, &e) == 0)
        cube__node__v1__record__free_unpacked(r, NULL);
    else if (!e.code)
        abort();
    free(text);
    return 0;
}
