/* CRC-32C with the processor's instruction where it has one, else bit by bit (state files are some 10 KiB).
 */
#include "node/vmm/crc.h"

#include <string.h>

__attribute__((target("sse4.2"))) static uint32_t crc_fast(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t c = crc;

    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = __builtin_ia32_crc32di(c, v);
    }
    for (; n; p++, n--)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return (uint32_t)c;
}

static uint32_t crc_slow(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n; p++, n--) {
        crc ^= *p;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return crc;
}

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
    crc = __builtin_cpu_supports("sse4.2") ? crc_fast(~crc, p, n) : crc_slow(~crc, p, n);
    return ~crc;
}
