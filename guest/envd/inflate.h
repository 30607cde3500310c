/* Compressed request messages (Connect: Content-Encoding of unary calls, flag 1 of envelopes). */
#pragma once

#include "guest/common/arena.h"

#define INFLATE_MALFORMED (-1)
#define INFLATE_TOO_LARGE (-2)

/** Unpacks one gzip member of n bytes into the arena. Returns its length and sets *out, or one of the above;
 * never produces more than `max` bytes, whatever the input promises. */
long gzip_unpack(const char *p, size_t n, size_t max, struct arena *a, const char **out);
