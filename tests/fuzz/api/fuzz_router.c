/* Any path: the match either fails with an error or gives decoded parameters that end inside their memory. */
#include "api/names.h"
#include "api/route.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct route_match m;
    struct err e = {0};
    char *path = malloc(size + 1); /* exact size, so that a read past the end is seen */
    memcpy(path, data, size);
    for (int method = 0; method <= ROUTE_METHODS; method++) {
        if (route_match((enum route_method)method, path, size, &m, &e) < 0)
            continue;
        for (size_t i = 0; i < m.nargs; i++) {
            char id[24], ref[TEMPLATE_REF_MAX + 1];
            if (m.args[i] < m.mem || m.args[i] + strlen(m.args[i]) >= m.mem + sizeof m.mem)
                abort();
            if (sandbox_id_parse(m.args[i], id, &e) == 0 && strlen(id) != 21)
                abort();
            template_ref_parse(m.args[i], ref, &e);
        }
    }
    free(path);
    return 0;
}
