/* Answers kept for as long as they live. Bounded: a full bucket gives up its oldest entry. */
#pragma once

#include "node/dns/message.h"

#include <stdint.h>

struct dns_cache;

struct dns_cache *dns_cache_new(void); /* NULL when out of memory */

/** Copies the kept answer to `out` (with its old ID, lifetimes as they were) and says how many seconds it has
 * left; 0 = not there. */
size_t dns_cache_get(struct dns_cache *c, const struct dns_question *q, int64_t now_s, uint8_t *out,
                     size_t cap);

/** Keeps an answer for `ttl` seconds, at most an hour; longer than 4 KiB or ttl 0 are not kept. */
void dns_cache_put(struct dns_cache *c, const struct dns_question *q, const uint8_t *p, size_t n,
                   uint32_t ttl, int64_t now_s);
