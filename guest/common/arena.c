/* The arena. Invariant: `used` counts every byte handed out, so one request cannot take more than its limit.
 */
#include "guest/common/arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_FIRST 512 /* a process's configuration; blocks double up to BLOCK_MAX */
#define BLOCK_MAX 65536
#define LIMIT_DEFAULT ((size_t)64 << 20)

struct arena_block {
    struct arena_block *next;
    size_t len, cap;
    char data[] __attribute__((aligned(16)));
};

void *arena_alloc(struct arena *a, size_t n)
{
    size_t limit = a->limit ? a->limit : LIMIT_DEFAULT;
    if (n > limit)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->used + n > limit)
        return NULL;
    struct arena_block *b = a->blocks;
    if (!b || b->cap - b->len < n) {
        size_t cap = b ? b->cap * 2 : BLOCK_FIRST;
        if (cap > BLOCK_MAX)
            cap = BLOCK_MAX;
        if (cap < n)
            cap = n;
        struct arena_block *fresh = malloc(sizeof(*fresh) + cap);
        if (!fresh)
            return NULL;
        *fresh = (struct arena_block){.next = b, .cap = cap};
        a->blocks = b = fresh;
    }
    void *p = b->data + b->len;
    b->len += n;
    a->used += n;
    return memset(p, 0, n);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

void arena_free(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        free(b);
    }
    a->used = 0;
}
