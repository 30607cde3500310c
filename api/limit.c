/* Owns the counters of the rate limit. Invariant: lock-free and of fixed size; two teams that share a slot
 * can only make each other's count start anew, never add to it. */
#include "api/limit.h"

#include "api/metrics.h"
#include "api/server.h"
#include "lib/base/clock.h"

#include <stdatomic.h>
#include <stdio.h>

#define SLOTS 4096

/* Upper half: window number and a piece of the team's hash; lower half: requests counted. */
static _Atomic uint64_t slots[SLOTS];

static uint64_t hash(const char *s)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a, 64 bits */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h ^ h >> 29;
}

bool limit_count(const char *team, int64_t now_ms, int64_t limit, int64_t window_ms, int64_t *used,
                 int64_t *reset_s)
{
    uint64_t h = hash(team);
    uint64_t window = (uint64_t)(now_ms / window_ms);
    uint64_t tag = ((window & 0xffff) | (h >> 48) << 16) << 32;
    _Atomic uint64_t *slot = &slots[h % SLOTS];
    uint64_t old = atomic_load_explicit(slot, memory_order_relaxed), new;
    do {
        new = (old & 0xffffffff00000000u) == tag ? old + 1 : tag | 1;
    } while (
        !atomic_compare_exchange_weak_explicit(slot, &old, new, memory_order_relaxed, memory_order_relaxed));
    *used = (int64_t)(new & 0xffffffffu);
    *reset_s = (window_ms - now_ms % window_ms + 999) / 1000;
    return *used <= limit;
}

int limit_check(struct call *c)
{
    const struct api *api = c->w->api;
    if (api->rate_limit == 0 || !c->caller.team_id[0])
        return 0;
    int64_t used, reset_s;
    bool ok = limit_count(c->caller.team_id, clock_realtime_ms(), api->rate_limit, api->rate_window_ms, &used,
                          &reset_s);
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)api->rate_limit);
    call_add_header(c, "ratelimit-limit", text);
    snprintf(text, sizeof text, "%lld", (long long)(ok ? api->rate_limit - used : 0));
    call_add_header(c, "ratelimit-remaining", text);
    snprintf(text, sizeof text, "%lld", (long long)reset_s);
    call_add_header(c, "ratelimit-reset", text);
    if (ok)
        return 0;
    call_add_header(c, "retry-after", text);
    api_metrics_rate_limited();
    call_error(c, ERR_RATE_LIMITED, "Rate limit exceeded");
    return -1;
}
