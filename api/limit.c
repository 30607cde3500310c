/* Applies the request limit to a call. Invariant: no request waits for Redis: what other instances counted is
 * known from the last exchange, which is soon (SHARE_MS of cell.c) or, when this process alone has taken a
 * noticeable part of the limit meanwhile, at once. */
#include "api/limit.h"

#include "api/cell.h"
#include "api/metrics.h"
#include "api/server.h"
#include "lib/base/clock.h"

#include <netinet/in.h>
#include <stdio.h>

#define NOTICEABLE 64 /* a 64th of the limit */

static int refuse(struct call *c, const struct limit_result *r, const char *why)
{
    call_add_number(c, H2O_STRLIT("retry-after"), r->reset_s);
    api_metrics_rate_limited();
    call_error(c, ERR_RATE_LIMITED, "%s", why);
    return -1;
}

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
    return refuse(c, &r, "Rate limit exceeded");
}

/* The counter of the client's address: whoever has IPv6 has a whole /64. No team has such a name. */
static void address_name(struct call *c, char out[40])
{
    struct sockaddr_storage peer = {0};
    const unsigned char *bytes = (unsigned char *)&((struct sockaddr_in *)&peer)->sin_addr;
    int n = 4;
    c->req->conn->callbacks->get_peername(c->req->conn, (struct sockaddr *)&peer);
    if (peer.ss_family == AF_INET6) {
        bytes = ((struct sockaddr_in6 *)&peer)->sin6_addr.s6_addr;
        n = 8;
        if (IN6_IS_ADDR_V4MAPPED(&((struct sockaddr_in6 *)&peer)->sin6_addr)) {
            bytes += 12;
            n = 4;
        }
    }
    int at = snprintf(out, 40, "keys from ");
    for (int i = 0; i < n; i++)
        at += snprintf(out + at, 40 - (size_t)at, "%02x", bytes[i]);
}

void limit_wrong_key(struct call *c)
{
    const struct api *api = c->w->api;
    char name[40];
    if (api->wrong_keys == 0)
        return;
    address_name(c, name);
    limit_count(name, clock_realtime_ms(), api->rate_window_ms);
}

int limit_wrong_keys_check(struct call *c)
{
    const struct api *api = c->w->api;
    char name[40];
    if (api->wrong_keys == 0)
        return 0;
    address_name(c, name);
    struct limit_result r = limit_look(name, clock_realtime_ms(), api->rate_window_ms);
    return r.used < api->wrong_keys ? 0 : refuse(c, &r, "too many wrong API keys from this address");
}
