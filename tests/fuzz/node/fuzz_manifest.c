/* manifest.json of an artifact, which may come from another machine. What is accepted can be written and read
 * again, and is the same. */
#include "node/store/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    struct manifest m, again;
    if (manifest_parse((const char *)data, n, "fuzz", &m, &e) < 0)
        return 0;
    struct buf out = {0}, out2 = {0};
    manifest_write(&m, &out);
    if (manifest_parse(out.data, out.len, "fuzz", &again, &e) < 0)
        abort();
    manifest_write(&again, &out2);
    if (out.len != out2.len || memcmp(out.data, out2.data, out.len) != 0)
        abort();
    manifest_check_class(&m, &again.class, &e);
    buf_free(&out);
    buf_free(&out2);
    return 0;
}
