/* Owns the kept answers: a fixed table of 4,096 entries in buckets of 4, so memory has one size for ever and
 * no guest can grow it. */
#include "node/dns/cache.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024
#define WAYS 4
#define ANSWER_MAX 4096
#define TTL_MAX 3600

struct entry {
    char *name; /* owned; NULL = empty */
    uint8_t *answer;
    size_t len;
    int64_t until_s;
    uint16_t type, class;
};

struct dns_cache {
    struct entry entries[BUCKETS][WAYS];
};

struct dns_cache *dns_cache_new(void)
{
    return calloc(1, sizeof(struct dns_cache));
}

static struct entry *bucket(struct dns_cache *c, const struct dns_question *q)
{
    uint32_t h = 2166136261u ^ q->type; /* FNV-1a */
    for (const char *s = q->name; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    return c->entries[(h ^ h >> 16) % BUCKETS];
}

static bool same(const struct entry *e, const struct dns_question *q)
{
    return e->name && e->type == q->type && e->class == q->class && strcmp(e->name, q->name) == 0;
}

size_t dns_cache_get(struct dns_cache *c, const struct dns_question *q, int64_t now_s, uint8_t *out,
                     size_t cap)
{
    struct entry *b = bucket(c, q);
    for (int i = 0; i < WAYS; i++) {
        if (!same(&b[i], q) || b[i].until_s <= now_s || b[i].len > cap)
            continue;
        memcpy(out, b[i].answer, b[i].len);
        return b[i].len;
    }
    return 0;
}

void dns_cache_put(struct dns_cache *c, const struct dns_question *q, const uint8_t *p, size_t n,
                   uint32_t ttl, int64_t now_s)
{
    if (ttl == 0 || n > ANSWER_MAX)
        return;
    struct entry *b = bucket(c, q), *victim = &b[0];
    for (int i = 0; i < WAYS; i++) {
        if (same(&b[i], q) || !b[i].name) {
            victim = &b[i];
            break;
        }
        if (b[i].until_s < victim->until_s)
            victim = &b[i];
    }
    uint8_t *answer = malloc(n);
    char *name = strdup(q->name);
    if (!answer || !name) {
        free(answer);
        free(name);
        return;
    }
    memcpy(answer, p, n);
    free(victim->answer);
    free(victim->name);
    *victim = (struct entry){.name = name,
                             .answer = answer,
                             .len = n,
                             .type = q->type,
                             .class = q->class,
                             .until_s = now_s + (ttl > TTL_MAX ? TTL_MAX : ttl)};
}
