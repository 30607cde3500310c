/* Bump allocation for things that die together: one request's decoded message, one listing. */
#pragma once

#include <stddef.h>

struct arena_block;

/** Zero-initialise; release with `arena_free`. Never hands out more than `limit` bytes in all (0 = 64 MiB).
 */
struct arena {
    struct arena_block *blocks;
    size_t used, limit;
};

/** Zeroed, 16-byte aligned memory, or NULL when out of memory or over the limit. */
void *arena_alloc(struct arena *a, size_t n);

/** A NUL-terminated copy of n bytes, or NULL. */
char *arena_strndup(struct arena *a, const char *s, size_t n);

void arena_free(struct arena *a);
