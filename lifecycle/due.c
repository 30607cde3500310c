/* Owns what happens at a deadline: the sandbox's own action is proposed to a master, with the rev that was
 * seen, so a timeout that was extended meanwhile is not touched. Invariants: at most one proposal per sandbox
 * is in flight here; pauses are bounded and give way to wakes; a deadline that cannot be met now (a pause
 * that was refused, or has to wait its turn) never stands before one that can. */
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lifecycle/lifecycle.h"
#include "proto/master.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096
#define YIELD_MS 20 /* a pause waits in steps of this while wakes are in flight */
#define YIELD_MAX_MS 2000
#define BACKOFF_MIN_MS 500
#define BACKOFF_MAX_MS 30000

struct metric metric_due_late = {.name = "cube_lifecycle_deadline_late_us",
                                 .help = "how late a deadline was acted on",
                                 .kind = METRIC_HISTOGRAM};
struct metric metric_due_done = {
    .name = "cube_lifecycle_deadlines_total", .labels = "result=\"done\"", .help = "deadlines acted on"};
struct metric metric_due_failed = {
    .name = "cube_lifecycle_deadlines_total", .labels = "result=\"failed\"", .help = "deadlines acted on"};

/* A sandbox that is due: while its proposal runs, and for the pause after one that failed. */
struct due {
    struct lifecycle *l;
    char id[SANDBOX_ID_LEN + 1], action[8];
    uint64_t rev;
    int64_t value, not_before_ms, backoff_ms;
    bool working;
    struct due *next;
};

/* Kills and extensions in flight; what is due beyond that is looked at when some have ended. */
#define WORKING_MAX 1024
#define PAUSES_WAITING 2 /* pauses taken from the deadlines, per one that may be in flight */
#define FORGET_MS 60000  /* after its time for another try has come, when it is not due any more */

static struct due *buckets[BUCKETS];
static unsigned working, pausing;
static struct loop_timer timer;
static struct lifecycle *self;
static int64_t forget_ms;

/* Where the reading of a shard begins: behind what was due there and could not be helped. */
static struct shard {
    int64_t skip, seen, taken;
} shards[SHARDS];

static struct shard *shard_of(char c)
{
    return &shards[c >= 'a' && c <= 'z' ? c - 'a' + 10 : c >= '0' && c <= '9' ? c - '0' : 0];
}

static struct due **bucket(const char *id)
{
    uint32_t h = 2166136261u;
    for (; *id; id++)
        h = (h ^ (uint8_t)*id) * 16777619u;
    return &buckets[h % BUCKETS];
}

static struct due *due_find(const char *id)
{
    for (struct due *d = *bucket(id); d; d = d->next)
        if (strcmp(d->id, id) == 0)
            return d;
    return NULL;
}

static void due_remove(struct due *d)
{
    for (struct due **at = bucket(d->id); *at; at = &(*at)->next)
        if (*at == d) {
            *at = d->next;
            break;
        }
    free(d);
}

static int propose_kill(struct due *d, struct err *e)
{
    Cube__Master__V1__KillRequest q = CUBE__MASTER__V1__KILL_REQUEST__INIT;
    q.sandbox_id = d->id;
    q.if_rev = d->rev;
    q.reason = "timeout";
    return master_call(d->l, "/cube.master.v1.Sandboxes/Kill", &q.base,
                       &cube__master__v1__kill_reply__descriptor, 20000, NULL, NULL, e);
}

static int propose_pause(struct due *d, struct err *e)
{
    Cube__Master__V1__PauseRequest q = CUBE__MASTER__V1__PAUSE_REQUEST__INIT;
    q.sandbox_id = d->id;
    q.if_rev = d->rev;
    q.reason = "timeout";
    q.by_policy = true; /* the master knows whether the sandbox wants its memory kept */
    return master_call(d->l, "/cube.master.v1.Sandboxes/Pause", &q.base,
                       &cube__master__v1__sandbox_reply__descriptor, 120000, NULL, NULL, e);
}

static int propose_extend(struct due *d, struct err *e)
{
    int64_t left = d->value - clock_realtime_ms();
    Cube__Master__V1__SetDeadlineRequest q = CUBE__MASTER__V1__SET_DEADLINE_REQUEST__INIT;
    q.sandbox_id = d->id;
    q.if_rev = d->rev;
    q.timeout_ms = left > 0 ? left : 1;
    return master_call(d->l, "/cube.master.v1.Sandboxes/SetDeadline", &q.base,
                       &cube__master__v1__sandbox_reply__descriptor, 10000, NULL, NULL, e);
}

static void due_fiber(void *arg)
{
    struct due *d = arg;
    struct lifecycle *l = d->l;
    struct err e = {0};
    int rc;
    if (strcmp(d->action, "pause") == 0) {
        int64_t waited = 0;
        while ((l->wakes > 0 && waited < YIELD_MAX_MS) || l->pauses >= (unsigned)l->cfg.pauses_at_once) {
            fiber_sleep(YIELD_MS);
            waited += YIELD_MS;
        }
        l->pauses++;
        rc = propose_pause(d, &e);
        l->pauses--;
    } else if (strcmp(d->action, "extend") == 0) {
        rc = propose_extend(d, &e);
    } else {
        rc = propose_kill(d, &e);
    }
    if (strcmp(d->action, "pause") == 0)
        pausing--;
    else
        working--;
    if (rc == 0 || e.code == ERR_NOT_FOUND || e.code == ERR_CONFLICT) {
        metric_add(&metric_due_done, 1);
        due_remove(d);
        return;
    }
    metric_add(&metric_due_failed, 1);
    d->backoff_ms = d->backoff_ms ? d->backoff_ms * 2 : BACKOFF_MIN_MS;
    if (d->backoff_ms > BACKOFF_MAX_MS)
        d->backoff_ms = BACKOFF_MAX_MS;
    d->not_before_ms = clock_realtime_ms() + d->backoff_ms;
    d->working = false;
    log_line(LOG_WARN, &(struct log_about){.sandbox = d->id, .err = &e},
             "a deadline's %s failed, again in %" PRId64 " ms: %s", d->action, d->backoff_ms, e.msg);
}

static bool pause_must_wait(const struct lifecycle *l)
{
    return pausing >= PAUSES_WAITING * (unsigned)l->cfg.pauses_at_once;
}

/* Groups of four: id, rev, action, value. */
static int due_parse(const redisReply *r, void *out, struct err *e)
{
    struct lifecycle *l = out;
    int64_t now = clock_realtime_ms();
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "reading deadlines: unexpected answer");
    for (size_t i = 0; i + 3 < r->elements; i += 4) {
        const char *id = r->element[i]->str, *action = r->element[i + 2]->str;
        bool pause = strcmp(action, "pause") == 0;
        struct shard *shard = shard_of(id[strlen(id) - 1]);
        struct due *d = due_find(id);
        shard->seen++;
        if ((d && (d->working || d->not_before_ms > now)) || (pause && pause_must_wait(l)))
            continue;
        shard->taken++;
        if (!d) {
            d = calloc(1, sizeof *d);
            if (!d)
                return 0; /* it is due at the next tick as well */
            snprintf(d->id, sizeof d->id, "%s", id);
            d->next = *bucket(id);
            *bucket(id) = d;
        }
        d->l = l;
        d->rev = strtoull(r->element[i + 1]->str, NULL, 10);
        d->value = strtoll(r->element[i + 3]->str, NULL, 10);
        d->working = true;
        if (pause)
            pausing++;
        else
            working++;
        snprintf(d->action, sizeof d->action, "%s", action);
        if (strcmp(action, "extend") != 0 && now > d->value && !d->backoff_ms)
            metric_observe_us(&metric_due_late, (now - d->value) * 1000);
        fiber_spawn(due_fiber, d);
    }
    return 0;
}

/* A full batch of which nothing could be taken: what is due behind it is looked at next, and then the first
 * again. */
static void shards_move_on(const struct lifecycle *l)
{
    for (int i = 0; i < SHARDS; i++) {
        bool stuck = shards[i].seen >= l->cfg.due_batch && shards[i].taken == 0;
        shards[i].skip = stuck ? shards[i].skip + shards[i].seen : 0;
        shards[i].seen = shards[i].taken = 0;
    }
}

/* What failed here and ended in another way (deleted, extended) is not due any more, so nobody else removes
 * it. */
static void forget_old(int64_t now)
{
    if (now < forget_ms)
        return;
    forget_ms = now + FORGET_MS;
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct due **at = &buckets[i], *d; (d = *at);) {
            if (d->working || d->not_before_ms + FORGET_MS > now) {
                at = &d->next;
                continue;
            }
            *at = d->next;
            free(d);
        }
}

static void tick_fiber(void *arg)
{
    struct lifecycle *l = arg;
    size_t n = strlen(l->shards);
    if (n && redis_connected(l->redis) && working < WORKING_MAX) {
        char now[24], limit[24], names[SHARDS][24];
        const char *args[3 + SHARDS] = {l->instance, now, limit};
        struct err e = {0};
        snprintf(now, sizeof now, "%" PRId64, clock_realtime_ms());
        snprintf(limit, sizeof limit, "%" PRId64, l->cfg.due_batch);
        for (size_t i = 0; i < n; i++) {
            snprintf(names[i], sizeof names[i], "%c%" PRId64, l->shards[i], shard_of(l->shards[i])->skip);
            args[3 + i] = names[i];
        }
        if (script_run(l, &script_due, 3 + (int)n, args, due_parse, l, &e) < 0)
            log_line(LOG_WARN, &(struct log_about){.err = &e}, "reading deadlines: %s", e.msg);
        shards_move_on(l);
        forget_old(clock_realtime_ms());
    }
    loop_timer_start(l->loop, &timer, l->cfg.tick_ms);
}

static void on_tick(struct loop_timer *t)
{
    (void)t;
    fiber_spawn(tick_fiber, self);
}

void due_start(struct lifecycle *l)
{
    self = l;
    timer.fire = on_tick;
    loop_timer_start(l->loop, &timer, l->cfg.tick_ms);
}
