/* Owns the counters of the request limit. Invariants: lock-free and of fixed size; two teams never share a
 * counter; what was counted in a window that has passed never counts in another. A team that finds no free
 * counter (more than a thousand teams busy at once around one place) is not limited. */
#include "api/limit.h"

#include <stdatomic.h>

#define SLOTS 16384
#define PROBES 8

struct slot {
    _Atomic uint64_t team;   /* hash of its ID; 0 = free */
    _Atomic uint64_t mine;   /* window << 32 | counted by this process */
    _Atomic uint64_t told;   /* the same, as far as the other instances know */
    _Atomic uint64_t others; /* window << 32 | counted by the other instances */
};

static struct slot slots[SLOTS];
static _Atomic uint64_t changed[SLOTS / 64]; /* a bit per slot that has something untold */

static uint64_t hash(const char *s)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a, 64 bits */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h ? h ^ h >> 29 : 1;
}

static uint64_t at(uint32_t window, uint64_t n)
{
    return (uint64_t)window << 32 | (n & UINT32_MAX);
}

/* The count, when it is of this window. */
static int64_t count_in(const _Atomic uint64_t *value, uint32_t window)
{
    uint64_t v = atomic_load_explicit(value, memory_order_relaxed);
    return v >> 32 == window ? (int64_t)(v & UINT32_MAX) : 0;
}

/* The team's slot; one whose last window has passed is taken over. */
static struct slot *find(uint64_t team, uint32_t window)
{
    for (int again = 0; again < 4; again++) {
        struct slot *old = NULL;
        uint64_t owner = 0;
        for (unsigned i = 0; i < PROBES; i++) {
            struct slot *s = &slots[(team + i) % SLOTS];
            uint64_t t = atomic_load_explicit(&s->team, memory_order_relaxed);
            if (t == team)
                return s;
            if (!old && (t == 0 || atomic_load_explicit(&s->mine, memory_order_relaxed) >> 32 < window)) {
                old = s;
                owner = t;
            }
        }
        if (!old)
            return NULL;
        if (atomic_compare_exchange_strong(&old->team, &owner, team))
            return old;
    }
    return NULL;
}

struct limit_result limit_count(const char *team, int64_t now_ms, int64_t window_ms)
{
    uint64_t h = hash(team);
    uint32_t window = (uint32_t)(now_ms / window_ms);
    struct limit_result r = {.reset_s = (window_ms - now_ms % window_ms + 999) / 1000};
    struct slot *s = find(h, window);
    if (!s)
        return r;
    uint64_t was = atomic_load_explicit(&s->mine, memory_order_relaxed), now;
    do {
        now = was >> 32 == window ? was + 1 : at(window, 1);
    } while (!atomic_compare_exchange_weak_explicit(&s->mine, &was, now, memory_order_relaxed,
                                                    memory_order_relaxed));
    int64_t mine = (int64_t)(now & UINT32_MAX);
    r.used = mine + count_in(&s->others, window);
    r.untold = mine - count_in(&s->told, window);
    size_t place = (size_t)(s - slots);
    uint64_t bit = UINT64_C(1) << place % 64;
    /* Released after the count, so that whoever takes the bit sees at least this count. */
    if (!(atomic_load_explicit(&changed[place / 64], memory_order_relaxed) & bit))
        atomic_fetch_or_explicit(&changed[place / 64], bit, memory_order_release);
    return r;
}

struct limit_result limit_look(const char *team, int64_t now_ms, int64_t window_ms)
{
    uint64_t h = hash(team);
    uint32_t window = (uint32_t)(now_ms / window_ms);
    struct limit_result r = {.reset_s = (window_ms - now_ms % window_ms + 999) / 1000};
    for (unsigned i = 0; i < PROBES; i++) {
        const struct slot *s = &slots[(h + i) % SLOTS];
        if (atomic_load_explicit(&s->team, memory_order_relaxed) == h) {
            r.used = count_in(&s->mine, window) + count_in(&s->others, window);
            break;
        }
    }
    return r;
}

static void tell(unsigned place, void (*each)(const struct limit_delta *d, void *data), void *data)
{
    struct slot *s = &slots[place];
    uint64_t mine = atomic_load_explicit(&s->mine, memory_order_relaxed);
    struct limit_delta d = {
        .team = atomic_load_explicit(&s->team, memory_order_relaxed),
        .window = (uint32_t)(mine >> 32),
        .mine = (uint32_t)mine,
        .place = place,
    };
    d.more = d.mine - (uint32_t)count_in(&s->told, d.window);
    if (d.more == 0)
        return;
    atomic_store_explicit(&s->told, mine, memory_order_relaxed);
    each(&d, data);
}

void limit_deltas(void (*each)(const struct limit_delta *d, void *data), void *data)
{
    for (unsigned i = 0; i < SLOTS / 64; i++) {
        if (!atomic_load_explicit(&changed[i], memory_order_relaxed))
            continue;
        uint64_t bits = atomic_exchange_explicit(&changed[i], 0, memory_order_acquire);
        for (; bits; bits &= bits - 1)
            tell(i * 64 + (unsigned)__builtin_ctzll(bits), each, data);
    }
}

void limit_learn(const struct limit_delta *d, int64_t total)
{
    struct slot *s = &slots[d->place];
    if (atomic_load_explicit(&s->team, memory_order_relaxed) != d->team)
        return;
    int64_t others = total - d->mine;
    atomic_store_explicit(&s->others, at(d->window, others > 0 ? (uint64_t)others : 0), memory_order_relaxed);
}
