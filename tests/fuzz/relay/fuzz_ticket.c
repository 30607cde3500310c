/* The ticket file and the names of generations, as a relay reads them: one form each. */
#include "node/relay/relay.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t key[32] = {0};
    uint64_t gen = 0;
    char *p = malloc(size + 1);
    memcpy(p, data, size);
    p[size] = 0;
    if (generation_parse(p, &gen)) {
        char again[24];
        int n = snprintf(again, sizeof again, "%llu", (unsigned long long)gen);
        size_t zeros = strspn(p, "0");
        if (strcmp(p + zeros, gen ? again : "") != 0 || n > 19)
            abort();
    }
    char *exact = malloc(size ? size : 1);
    memcpy(exact, data, size);
    bool ok = ticket_parse(exact, size, key);
    if (ok && size != 32 && size != 64 && size != 65)
        abort();
    if (!ok && size == 32)
        abort();
    if (ok && size == 32 && memcmp(key, data, 32) != 0)
        abort();
    free(exact);
    free(p);
    return 0;
}
