/* Base64, both ways. The encoder looks up two output characters per 12 bits: it feeds stdout into sockets,
 * where it is the dearest step. */
#include "guest/envd/codec.h"

#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static uint16_t pairs_of[4096];

__attribute__((constructor)) static void pairs_fill(void)
{
    for (unsigned i = 0; i < 4096; i++) {
        char two[2] = {alphabet[i >> 6], alphabet[i & 63]};
        memcpy(&pairs_of[i], two, 2);
    }
}

void base64_encode(const void *p, size_t n, char *out)
{
    const uint8_t *s = p;
    while (n >=
           8) { /* six bytes per step, read as one big-endian word (two bytes beyond are read, not used) */
        uint64_t v;
        memcpy(&v, s, 8);
        v = __builtin_bswap64(v);
        memcpy(out, &pairs_of[v >> 52], 2);
        memcpy(out + 2, &pairs_of[v >> 40 & 4095], 2);
        memcpy(out + 4, &pairs_of[v >> 28 & 4095], 2);
        memcpy(out + 6, &pairs_of[v >> 16 & 4095], 2);
        s += 6;
        n -= 6;
        out += 8;
    }
    while (n >= 3) {
        uint32_t v = (uint32_t)s[0] << 16 | (uint32_t)s[1] << 8 | s[2];
        memcpy(out, &pairs_of[v >> 12], 2);
        memcpy(out + 2, &pairs_of[v & 4095], 2);
        s += 3;
        n -= 3;
        out += 4;
    }
    if (n) {
        uint32_t v = (uint32_t)s[0] << 16 | (n == 2 ? (uint32_t)s[1] << 8 : 0);
        memcpy(out, &pairs_of[v >> 12], 2);
        out[2] = n == 2 ? alphabet[v >> 6 & 63] : '=';
        out[3] = '=';
    }
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '-')
        return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

long base64_decode(const char *s, size_t n, char *out)
{
    while (n && s[n - 1] == '=')
        n--;
    if (n % 4 == 1)
        return -1;
    uint32_t acc = 0;
    int bits = 0;
    long o = 0;
    for (size_t i = 0; i < n; i++) {
        int v = value_of(s[i]);
        if (v < 0)
            return -1;
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[o++] = (char)(acc >> bits);
        }
    }
    return o;
}
