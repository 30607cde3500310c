/* Owns random identifiers, hex and the comparison of secrets; invariant: every random character has the same
 * chance (bytes past the last whole multiple of the alphabet are thrown away). */
#include "lib/base/ids.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
#define ALPHABET 36
#define FAIR (256 / ALPHABET * ALPHABET)

void random_bytes(void *p, size_t n)
{
    char *at = p;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            abort();
        at += got;
        n -= (size_t)got;
    }
}

void id_random(char *out, size_t n)
{
    size_t done = 0;
    while (done < n) {
        uint8_t raw[32];
        random_bytes(raw, sizeof raw);
        for (size_t i = 0; i < sizeof raw && done < n; i++)
            if (raw[i] < FAIR)
                out[done++] = alphabet[raw[i] % ALPHABET];
    }
    out[n] = '\0';
}

void id_sandbox(char out[SANDBOX_ID_LEN + 1], char cell)
{
    out[0] = 'i';
    out[1] = cell;
    id_random(out + 2, SANDBOX_ID_LEN - 2);
}

bool id_sandbox_valid(const char *s, size_t n)
{
    if (n != SANDBOX_ID_LEN || s[0] != 'i')
        return false;
    for (size_t i = 1; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9')))
            return false;
    return true;
}

void id_uuid(char out[37])
{
    uint8_t raw[16];
    char hex[33];
    random_bytes(raw, sizeof raw);
    raw[6] = (uint8_t)((raw[6] & 0x0f) | 0x40); /* RFC 4122 §4.4: version 4 */
    raw[8] = (uint8_t)((raw[8] & 0x3f) | 0x80); /* and variant 10 */
    hex_encode(raw, sizeof raw, hex);
    char *at = out;
    for (size_t i = 0; i < 32; i++) {
        if (i == 8 || i == 12 || i == 16 || i == 20)
            *at++ = '-';
        *at++ = hex[i];
    }
    *at = '\0';
}

void hex_encode(const void *p, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *in = p;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * n] = '\0';
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hex_decode(const char *s, void *out, size_t n)
{
    uint8_t *to = out;
    for (size_t i = 0; i < n; i++) {
        int high = digit(s[2 * i]);
        int low = high < 0 ? -1 : digit(s[2 * i + 1]); /* never reads past a NUL */
        if (low < 0)
            return false;
        to[i] = (uint8_t)(high << 4 | low);
    }
    return s[2 * n] == '\0';
}

bool secret_equal(const void *a, const void *b, size_t n)
{
    const volatile uint8_t *x = a, *y = b; /* volatile: no early exit by the optimiser */
    uint8_t diff = 0;
    for (size_t i = 0; i < n; i++)
        diff |= (uint8_t)(x[i] ^ y[i]);
    return diff == 0;
}
