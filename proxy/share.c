/* Owns the table of shares. Invariant: a share is in the table exactly as long as somebody holds it, so a
 * limit is one of the whole process, however many workers it has. */
#include "proxy/share.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STRIPES = 64, SLOTS = 64 }; /* slots per stripe */

static struct stripe {
    _Alignas(64) pthread_mutex_t lock;
    struct share *slots[SLOTS];
} stripes[STRIPES] = {[0 ... STRIPES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint32_t hash_of(const uint8_t key[SHARE_KEY_MAX])
{
    uint32_t h = 2166136261u;
    for (int i = 0; i < SHARE_KEY_MAX; i++)
        h = (h ^ key[i]) * 16777619u;
    return h;
}

struct share *share_enter(const void *key, size_t n, uint32_t limit)
{
    uint8_t whole[SHARE_KEY_MAX] = {0};
    memcpy(whole, key, n < sizeof whole ? n : sizeof whole);
    uint32_t h = hash_of(whole);
    struct stripe *t = &stripes[h % STRIPES];
    struct share **slot = &t->slots[h / STRIPES % SLOTS], *s;
    pthread_mutex_lock(&t->lock);
    for (s = *slot; s && memcmp(s->key, whole, sizeof whole) != 0;)
        s = s->next;
    if (s == NULL && (s = calloc(1, sizeof *s))) {
        memcpy(s->key, whole, sizeof whole);
        s->next = *slot;
        *slot = s;
    }
    bool full = s && s->holders >= limit; /* a limit is at least 1: a new share is never full */
    if (s && !full)
        s->holders++;
    pthread_mutex_unlock(&t->lock);
    return full ? NULL : s;
}

void share_leave(struct share *s)
{
    if (s == NULL)
        return;
    uint32_t h = hash_of(s->key);
    struct stripe *t = &stripes[h % STRIPES];
    pthread_mutex_lock(&t->lock);
    bool last = --s->holders == 0;
    struct share **at = &t->slots[h / STRIPES % SLOTS];
    while (last && *at != s)
        at = &(*at)->next;
    if (last)
        *at = s->next;
    pthread_mutex_unlock(&t->lock);
    if (last)
        free(s);
}
