/* Owns this instance's share of the deadlines. Invariant: a shard is acted on only while the claim in Redis
 * names this instance (the script that reads deadlines checks it again), so a paused or cut-off process does
 * no harm. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lifecycle/lifecycle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RENEW_MS 1000

static struct loop_timer timer;
static struct lifecycle *self;

static int held_parse(const redisReply *r, void *out, struct err *e)
{
    struct lifecycle *l = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "claiming shards: unexpected answer");
    size_t n = 0;
    for (size_t i = 0; i < r->elements && n < SHARDS; i++)
        if (r->element[i]->type == REDIS_REPLY_STRING && r->element[i]->len == 1)
            l->shards[n++] = r->element[i]->str[0];
    l->shards[n] = 0;
    return 0;
}

static void own_address(struct lifecycle *l, char *out, size_t size)
{
    const char *port = strrchr(l->cfg.listen, ':');
    if (*l->cfg.advertise)
        snprintf(out, size, "%s", l->cfg.advertise);
    else if (port && strcmp(port, ":0") == 0)
        snprintf(out, size, "%.*s:%d", (int)(port - l->cfg.listen), l->cfg.listen,
                 rpc_server_port(l->server));
    else
        snprintf(out, size, "%s", l->cfg.listen);
}

static void renew_fiber(void *arg)
{
    struct lifecycle *l = arg;
    char now[24], ttl[24], address[160];
    struct err e = {0};
    size_t had = strlen(l->shards);
    snprintf(now, sizeof now, "%" PRId64, clock_realtime_ms());
    snprintf(ttl, sizeof ttl, "%" PRId64, l->cfg.claim_ttl_ms);
    own_address(l, address, sizeof address);
    if (redis_connected(l->redis) &&
        script_run(l, &script_announce, 5, (const char *[]){"lifecycle", l->instance, address, now, ttl},
                   NULL, NULL, &e) == 0 &&
        script_run(l, &script_claim, 3, (const char *[]){l->instance, now, ttl}, held_parse, l, &e) == 0) {
        if (strlen(l->shards) != had)
            log_info("holding %zu of %d shards of the deadlines", strlen(l->shards), SHARDS);
    } else if (e.code) {
        log_line(LOG_WARN, &(struct log_about){.err = &e}, "claiming shards: %s", e.msg);
    }
    loop_timer_start(l->loop, &timer, RENEW_MS);
}

static void on_renew(struct loop_timer *t)
{
    (void)t;
    fiber_spawn(renew_fiber, self);
}

void shards_start(struct lifecycle *l)
{
    self = l;
    timer.fire = on_renew;
    loop_timer_start(l->loop, &timer, 0);
}
