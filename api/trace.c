/* Owns the handling of traceparent. Invariant: what goes on is always well-formed, whatever came in. */
#include "api/trace.h"

#include "lib/base/ids.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static bool lower_hex(const char *s, int n)
{
    bool nonzero = false;
    for (int i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
        nonzero |= s[i] != '0';
    }
    return nonzero;
}

#define ID_BYTES 24 /* a trace's ID and a span's */

/* Identifiers are no secrets, but must not repeat: the system is asked for many at once. */
static void take_ids(char hex[2 * ID_BYTES + 1])
{
    static _Thread_local uint8_t pool[64 * ID_BYTES];
    static _Thread_local size_t left;
    if (left == 0) {
        random_bytes(pool, sizeof pool);
        left = sizeof pool;
    }
    left -= ID_BYTES;
    hex_encode(pool + left, ID_BYTES, hex);
}

void trace_continue(const char *header, char *out)
{
    char hex[2 * ID_BYTES + 1];
    take_ids(hex);
    const char *trace = hex, *flags = "01";
    /* version "00" only has this form; a later version may add fields behind the flags, but never "ff" */
    if (header && strlen(header) >= TRACEPARENT_LEN && header[2] == '-' && header[35] == '-' &&
        header[52] == '-' && strncmp(header, "ff", 2) != 0 && lower_hex(header + 3, 32) &&
        lower_hex(header + 36, 16) && (strncmp(header, "00", 2) != 0 || !header[TRACEPARENT_LEN]) &&
        strspn(header + 53, "0123456789abcdef") >= 2) {
        trace = header + 3;
        flags = header + 53;
    }
    snprintf(out, TRACEPARENT_LEN + 1, "00-%.32s-%.16s-%.2s", trace, hex + 32, flags);
}
