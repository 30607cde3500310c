/* cube.yaml of any bytes: a refusal has its place, and what is accepted has each key once. */
#include "lib/net/config_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct config_file f;
    struct err e = {0};
    if (n > 65536)
        return 0;
    if (config_parse("f", (const char *)data, n, &f, &e) < 0) {
        if (strncmp(e.msg, "f:", 2) != 0)
            abort();
    } else {
        for (const struct config_value *a = f.values; a; a = a->next)
            for (const struct config_value *b = a->next; b; b = b->next)
                if (strcmp(a->section, b->section) == 0 && strcmp(a->key, b->key) == 0)
                    abort();
        for (const struct config_value *a = f.values; a; a = a->next)
            config_key_near(a->section, a->key);
    }
    config_file_free(&f);
    return 0;
}
