/* What cube-node writes below <run>/sb/<id>: the name of a generation's directory and its ticket. */
#include "node/relay/relay.h"

#include "lib/base/ids.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool generation_parse(const char *s, uint64_t *gen)
{
    if (!isdigit((unsigned char)s[0]) || strlen(s) > 19)
        return false;
    char *end;
    *gen = strtoull(s, &end, 10);
    return *end == 0;
}

bool ticket_parse(const char *bytes, size_t n, uint8_t key[32])
{
    char text[65];
    if (n == 32) {
        memcpy(key, bytes, 32);
        return true;
    }
    if (n != 64 && !(n == 65 && bytes[64] == '\n'))
        return false;
    memcpy(text, bytes, 64);
    text[64] = 0;
    return hex_decode(text, key, 32);
}
