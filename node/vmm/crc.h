/* CRC-32C over snapshot headers and state, to refuse damaged files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `n` bytes, continuing from `crc` (0 at the start). */
uint32_t crc32c(uint32_t crc, const void *p, size_t n);
