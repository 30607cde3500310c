/* The table of running sandboxes' routes. Invariant: an entry is immutable once it is visible; a writer
 * replaces it and frees the old one when no reader can hold it any more. */
#include "proxy/route.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifndef CUBE_TSAN_SHIMS

#include <ck_epoch.h>
#include <ck_ht.h>

struct route_cache {
    ck_ht_t table;
    ck_epoch_t epoch;
    ck_epoch_record_t writer;
    uint64_t serial;
    _Atomic uint32_t verified;
    atomic_bool offline;
};

struct route_reader {
    ck_epoch_record_t record;
    struct route_cache *cache;
};

/* Memory of the table and of entries is released through the epoch when ck asks for it ("defer"). */
struct block {
    ck_epoch_entry_t epoch;
    char data[];
};

static _Thread_local ck_epoch_record_t *freeing;

static void block_free(ck_epoch_entry_t *e)
{
    free(e);
}

static void *block_alloc(size_t n)
{
    struct block *b = malloc(sizeof *b + n);
    return b ? b->data : NULL;
}

static void block_release(void *p, size_t n, bool defer)
{
    struct block *b = (struct block *)((char *)p - offsetof(struct block, data));
    (void)n;
    if (defer)
        ck_epoch_call(freeing, &b->epoch, block_free);
    else
        free(b);
}

static struct ck_malloc allocator = {.malloc = block_alloc, .free = block_release};

struct route_cache *route_cache_new(void)
{
    struct route_cache *c =
        aligned_alloc(CK_MD_CACHELINE, (sizeof *c + CK_MD_CACHELINE - 1) & ~(size_t)(CK_MD_CACHELINE - 1));
    if (c == NULL)
        return NULL;
    memset(c, 0, sizeof *c);
    ck_epoch_init(&c->epoch);
    ck_epoch_register(&c->epoch, &c->writer, NULL);
    freeing = &c->writer;
    if (!ck_ht_init(&c->table, CK_HT_MODE_BYTESTRING | CK_HT_WORKLOAD_DELETE, NULL, &allocator, 1024,
                    6602834)) {
        free(c);
        return NULL;
    }
    return c;
}

struct route_reader *route_reader_new(struct route_cache *c)
{
    size_t size = (sizeof(struct route_reader) + CK_MD_CACHELINE - 1) & ~(size_t)(CK_MD_CACHELINE - 1);
    struct route_reader *r = aligned_alloc(CK_MD_CACHELINE, size);
    if (r == NULL)
        return NULL;
    memset(r, 0, size);
    r->cache = c;
    ck_epoch_register(&c->epoch, &r->record, NULL);
    return r;
}

static struct route *table_find(struct route_cache *c, const char *sandbox)
{
    ck_ht_hash_t h;
    ck_ht_entry_t e;
    uint16_t n = (uint16_t)strlen(sandbox);
    ck_ht_hash(&h, &c->table, sandbox, n);
    ck_ht_entry_key_set(&e, sandbox, n);
    return ck_ht_get_spmc(&c->table, h, &e) ? ck_ht_entry_value(&e) : NULL;
}

static void writer_settle(struct route_cache *c)
{
    ck_epoch_poll(&c->writer);
}

void route_cache_put(struct route_cache *c, struct route *r)
{
    r->serial = ++c->serial;
    r->epoch = atomic_load_explicit(&c->verified, memory_order_relaxed);
    if (r->state != ROUTE_RUNNING) {
        route_cache_drop(c, r->sandbox);
        return;
    }
    freeing = &c->writer;
    struct route *copy = block_alloc(sizeof *copy);
    if (copy == NULL)
        return;
    *copy = *r;
    ck_ht_hash_t h;
    ck_ht_entry_t e;
    uint16_t n = (uint16_t)strlen(copy->sandbox);
    ck_ht_hash(&h, &c->table, copy->sandbox, n);
    ck_ht_entry_set(&e, h, copy->sandbox, n, copy);
    if (!ck_ht_set_spmc(&c->table, h, &e)) {
        block_release(copy, 0, false);
        return;
    }
    if (!ck_ht_entry_empty(&e))
        block_release(ck_ht_entry_value(&e), 0, true);
    writer_settle(c);
}

void route_cache_drop(struct route_cache *c, const char *sandbox)
{
    freeing = &c->writer;
    ck_ht_hash_t h;
    ck_ht_entry_t e;
    uint16_t n = (uint16_t)strlen(sandbox);
    ck_ht_hash(&h, &c->table, sandbox, n);
    ck_ht_entry_key_set(&e, sandbox, n);
    if (ck_ht_remove_spmc(&c->table, h, &e))
        block_release(ck_ht_entry_value(&e), 0, true);
    writer_settle(c);
}

bool route_cache_has(struct route_cache *c, const char *sandbox)
{
    return table_find(c, sandbox) != NULL;
}

static void reader_enter(struct route_reader *r)
{
    ck_epoch_begin(&r->record, NULL);
}

static void reader_leave(struct route_reader *r)
{
    ck_epoch_end(&r->record, NULL);
}

#else /* ThreadSanitizer cannot see the ordering inside ck's assembly: a plain table behind one lock. */

#include <pthread.h>

enum { BUCKETS = 4096 };

struct node {
    struct route route;
    struct node *next;
};

struct route_cache {
    pthread_mutex_t lock;
    struct node *bucket[BUCKETS];
    uint64_t serial;
    _Atomic uint32_t verified;
    atomic_bool offline;
};

struct route_reader {
    struct route_cache *cache;
};

struct route_cache *route_cache_new(void)
{
    struct route_cache *c = calloc(1, sizeof *c);
    if (c)
        pthread_mutex_init(&c->lock, NULL);
    return c;
}

struct route_reader *route_reader_new(struct route_cache *c)
{
    struct route_reader *r = calloc(1, sizeof *r);
    if (r)
        r->cache = c;
    return r;
}

static struct node **node_find(struct route_cache *c, const char *sandbox)
{
    uint32_t h = 2166136261u;
    for (const char *p = sandbox; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    struct node **at = &c->bucket[h % BUCKETS];
    while (*at && strcmp((*at)->route.sandbox, sandbox) != 0)
        at = &(*at)->next;
    return at;
}

static struct route *table_find(struct route_cache *c, const char *sandbox)
{
    struct node *n = *node_find(c, sandbox);
    return n ? &n->route : NULL;
}

void route_cache_put(struct route_cache *c, struct route *r)
{
    r->serial = ++c->serial;
    r->epoch = atomic_load_explicit(&c->verified, memory_order_relaxed);
    if (r->state != ROUTE_RUNNING) {
        route_cache_drop(c, r->sandbox);
        return;
    }
    pthread_mutex_lock(&c->lock);
    struct node **at = node_find(c, r->sandbox);
    if (*at == NULL)
        *at = calloc(1, sizeof **at);
    if (*at)
        (*at)->route = *r;
    pthread_mutex_unlock(&c->lock);
}

void route_cache_drop(struct route_cache *c, const char *sandbox)
{
    pthread_mutex_lock(&c->lock);
    struct node **at = node_find(c, sandbox), *n = *at;
    if (n) {
        *at = n->next;
        free(n);
    }
    pthread_mutex_unlock(&c->lock);
}

bool route_cache_has(struct route_cache *c, const char *sandbox)
{
    return table_find(c, sandbox) != NULL;
}

static void reader_enter(struct route_reader *r)
{
    pthread_mutex_lock(&r->cache->lock);
}

static void reader_leave(struct route_reader *r)
{
    pthread_mutex_unlock(&r->cache->lock);
}

#endif

/* The control thread is the only writer, so what it finds stays while it copies. */
bool route_cache_last(struct route_cache *c, const char *sandbox, struct route *out)
{
    struct route *known = table_find(c, sandbox);
    if (known)
        *out = *known;
    return known != NULL;
}

void route_cache_unverify(struct route_cache *c)
{
    atomic_fetch_add_explicit(&c->verified, 1, memory_order_release);
}

void route_cache_offline(struct route_cache *c, bool offline)
{
    atomic_store_explicit(&c->offline, offline, memory_order_release);
}

uint64_t route_cache_get(struct route_reader *r, const char *sandbox, uint64_t known, struct route *out)
{
    struct route_cache *c = r->cache;
    uint64_t serial = 0;
    reader_enter(r);
    struct route *found = table_find(c, sandbox);
    if (found && (found->epoch == atomic_load_explicit(&c->verified, memory_order_acquire) ||
                  atomic_load_explicit(&c->offline, memory_order_acquire))) {
        serial = found->serial;
        if (serial != known)
            *out = *found;
    }
    reader_leave(r);
    return serial;
}
