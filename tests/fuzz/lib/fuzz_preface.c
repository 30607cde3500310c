/* What decodes must encode to the same bytes, except for the MAC, which the ticket decides. */
#include "lib/net/preface.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const uint8_t ticket[32] = {1, 2, 3};
    uint8_t in[PREFACE_LEN] = {0}, out[PREFACE_LEN], again[PREFACE_ANSWER_LEN];
    memcpy(in, data, n < sizeof in ? n : sizeof in);
    struct preface p;
    if (preface_decode(in, &p)) {
        preface_encode(&p, ticket, out);
        if (memcmp(in, out, 48) != 0)
            abort();
        if (preface_check(out, ticket, p.expiry_s) != PREFACE_OK)
            abort();
    }
    preface_check(in, ticket, 1700000000);
    enum preface_status status;
    uint64_t gen;
    if (preface_answer_decode(in, &status, &gen)) {
        preface_answer_encode(status, gen, again);
        if (memcmp(in, again, sizeof again) != 0)
            abort();
    }
    return 0;
}
