/* Any create body: refused with a message, or a spec that packs. */
#include "api/create.h"
#include "api/network.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct network_support all = {true, true, true, true, true, true};
    struct err e = {0};
    json_t *body;
    if (body_parse((const char *)data, size, false, &body, &e) < 0) {
        if (!e.msg[0])
            abort();
        return 0;
    }
    for (int v2 = 0; v2 < 2; v2++) {
        struct create c;
        if (create_parse(body, v2, 3600000, &c, &e) == 0) {
            size_t n = cube__v1__sandbox_spec__get_packed_size(&c.spec);
            uint8_t *packed = malloc(n);
            if (cube__v1__sandbox_spec__pack(&c.spec, packed) != n || c.spec.timeout_ms <= 0)
                abort();
            free(packed);
        } else if (!e.msg[0]) {
            abort();
        }
        create_free(&c);
    }
    struct network net;
    struct unknown u = {0};
    network_parse(body, "", false, true, &all, &net, &u, &e);
    network_parse(body, "", true, true, &all, &net, &u, &e);
    json_decref(body);
    return 0;
}
