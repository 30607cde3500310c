/* Tells the cell that this proxy lives: `{c}:svc:proxy:<instance>` and the set of live members (internal.md
 * §3), renewed every second. Invariant: a proxy that drains, or whose Redis is away, is gone from discovery
 * within the time to live. Runs on the control thread. */
#include "proxy/proxy.h"

#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/loop.h"
#include "lib/net/redis.h"
#include "proto/redis_scripts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RENEW_MS = 1000, TTL_MS = 3000 };

static struct proxy *proxy;
static struct redis *redis;
static char prefix[32], instance[17];
static struct loop_timer timer;
static bool refused; /* said once */

static void on_announced(const redisReply *reply, const struct err *e, void *data)
{
    if (e && redis_connected(redis) && !refused) {
        log_fail(e, "announcing this proxy");
        refused = true;
    }
}

static void on_renew(struct loop_timer *t)
{
    char now[24], ttl[24];
    snprintf(now, sizeof now, "%" PRId64, clock_realtime_ms());
    snprintf(ttl, sizeof ttl, "%d", TTL_MS);
    const char *args[] = {prefix, "proxy", instance, proxy->cfg.listen, now, ttl};
    if (redis_connected(redis) && !atomic_load(&proxy->draining))
        redis_eval(redis, &script_announce, on_announced, NULL, 0, NULL, sizeof args / sizeof *args, args,
                   NULL);
    loop_timer_start(control_loop(proxy), t, RENEW_MS);
}

void announce_start(struct proxy *p, struct redis *r, const char *key_prefix)
{
    proxy = p;
    redis = r;
    snprintf(prefix, sizeof prefix, "%s", key_prefix);
    id_random(instance, sizeof instance - 1);
    timer.fire = on_renew;
    loop_timer_start(control_loop(p), &timer, 0);
}
