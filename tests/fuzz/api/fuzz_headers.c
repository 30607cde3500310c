/* What a client says outside of path, query and body: trace context, idempotency key, and the IDs and names
 * that a path holds. */
#include "api/names.h"
#include "api/trace.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), out[TRACEPARENT_LEN + 1], id[24], ref[TEMPLATE_REF_MAX + 1];
    struct err e = {0};
    memcpy(text, data, size);
    text[size] = 0;
    memset(out, 'x', sizeof out);
    trace_continue(text, out);
    if (strlen(out) != TRACEPARENT_LEN || strncmp(out, "00-", 3) != 0 || out[35] != '-' || out[52] != '-' ||
        strspn(out + 3, "0123456789abcdef") != 32 || strspn(out + 36, "0123456789abcdef") != 16 ||
        strspn(out + 53, "0123456789abcdef") != 2)
        abort(); /* what goes on is well-formed, whatever came in */
    if (idempotency_key_valid(text, strlen(text)) &&
        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(text))
        abort();
    if (sandbox_id_parse(text, id, &e) == 0 && strlen(id) >= sizeof id)
        abort();
    if (template_ref_parse(text, ref, &e) == 0) {
        template_ref_tagged(ref);
        if (strlen(ref) > TEMPLATE_REF_MAX)
            abort();
    }
    free(text);
    return 0;
}
