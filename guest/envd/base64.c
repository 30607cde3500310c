/* Base64, both ways. The encoder looks up two output characters per 12 bits: it feeds stdout into sockets,
 * where it is the dearest step. */
#include "guest/envd/codec.h"

#include <immintrin.h>
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

/* Twelve bytes at a time with SSSE3; returns how many were encoded. Reads four bytes beyond, hence the bound
 * of 16. The four six-bit fields of each three bytes are moved into bytes by one shuffle and two
 * multiplications (a shift per lane), and each value finds its distance to its character in a table of the
 * five ranges of the alphabet. */
__attribute__((target("ssse3"))) static size_t encode_ssse3(const uint8_t *s, size_t n, char *out)
{
    const __m128i spread = _mm_setr_epi8(1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10);
    const __m128i distance =
        _mm_setr_epi8('a' - 26, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52,
                      '0' - 52, '0' - 52, '0' - 52, '+' - 62, '/' - 63, 'A', 0, 0);
    size_t done = 0;
    for (; n - done >= 16; done += 12, out += 16) {
        __m128i v = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(s + done)), spread);
        __m128i high =
            _mm_mulhi_epu16(_mm_and_si128(v, _mm_set1_epi32(0x0fc0fc00)), _mm_set1_epi32(0x04000040));
        __m128i low =
            _mm_mullo_epi16(_mm_and_si128(v, _mm_set1_epi32(0x003f03f0)), _mm_set1_epi32(0x01000010));
        __m128i value = _mm_or_si128(high, low);
        __m128i range =
            _mm_subs_epu8(value, _mm_set1_epi8(51)); /* 0 for letters, 1–10 digits, 11 '+', 12 '/' */
        __m128i capital = _mm_cmpgt_epi8(_mm_set1_epi8(26), value);
        range = _mm_or_si128(range, _mm_and_si128(capital, _mm_set1_epi8(13)));
        _mm_storeu_si128((__m128i *)out, _mm_add_epi8(_mm_shuffle_epi8(distance, range), value));
    }
    return done;
}

void base64_encode(const void *p, size_t n, char *out)
{
    const uint8_t *s = p;
    if (n >= 16 && __builtin_cpu_supports("ssse3")) {
        size_t done = encode_ssse3(s, n, out);
        s += done;
        n -= done;
        out += done / 3 * 4;
    }
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
