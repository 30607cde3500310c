/* Applies the request limit to a call. Invariant: no request waits for Redis: what other instances counted is
 * known from the last exchange, which is soon (SHARE_MS of cell.c) or, when this process alone has taken a
 * noticeable part of the limit meanwhile, at once. */
#include "api/limit.h"

#include "api/cell.h"
#include "api/metrics.h"
#include "api/server.h"
#include "lib/base/clock.h"

#define NOTICEABLE 64 /* a 64th of the limit */

int limit_check(struct call *c)
{
    const struct api *api = c->w->api;
    if (api->rate_limit == 0 || !c->caller.team_id[0])
        return 0;
    struct limit_result r = limit_count(c->caller.team_id, clock_realtime_ms(), api->rate_window_ms);
    bool ok = r.used <= api->rate_limit;
    cell_share_counts(ok && r.untold * NOTICEABLE >= api->rate_limit);
    call_add_number(c, H2O_STRLIT("ratelimit-limit"), api->rate_limit);
    call_add_number(c, H2O_STRLIT("ratelimit-remaining"), ok ? api->rate_limit - r.used : 0);
    call_add_number(c, H2O_STRLIT("ratelimit-reset"), r.reset_s);
    if (ok)
        return 0;
    call_add_number(c, H2O_STRLIT("retry-after"), r.reset_s);
    api_metrics_rate_limited();
    call_error(c, ERR_RATE_LIMITED, "Rate limit exceeded");
    return -1;
}
