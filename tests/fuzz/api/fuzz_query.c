/* Any query string: its parameters, numbers, times and the metadata filter. */
#include "api/query.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct query q;
    struct err e = {0};
    struct metadata_filter f;
    char *raw = malloc(size + 1), *mem = malloc(size + 1);
    memcpy(raw, data, size);
    if (query_parse(&q, raw, size, mem, &e) == 0) {
        for (size_t i = 0; i < q.n; i++) {
            int64_t v;
            if (q.items[i].value + strlen(q.items[i].value) > mem + size)
                abort();
            query_int(&q, q.items[i].key, 0, 100, 1, &v, &e);
            query_time(&q, q.items[i].key, &v, &e);
            char *text = strdup(q.items[i].value);
            if (metadata_parse(text, &f, &e) == 0)
                for (size_t k = 0; k < f.n; k++)
                    if (!f.items[k].key[0] || !f.items[k].value)
                        abort();
            free(text);
        }
    }
    free(raw);
    free(mem);
    return 0;
}
