/* Owns the node's ticking. Invariant: the node acts alone only when a deadline is overdue by
 * deadline_grace_ms and no master gave a sign for master_grace_ms; then it applies the sandbox's own timeout
 * action, once. In mode `idle` that is a pause, and activity postpones it here as well. And: what ended
 * sandboxes leave is bounded in time and in number, however fast they come and go. */
#include "node/daemon/deadline.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "node/daemon/master_link.h"
#include "node/daemon/record.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/stats.h"

#define TICK_MS 1000

static void act(void *arg)
{
    struct sandbox *sb = arg;
    struct err e = {0};
    bool existed, pauses = sb->spec->auto_pause || sb->spec->idle_ms > 0;
    log_line(LOG_WARN, &(struct log_about){.sandbox = sb->id, .gen = sb->gen},
             "deadline passed and no master: %s", pauses ? "pausing" : "killing");
    int rc;
    if (pauses) {
        Cube__Node__V1__PauseRequest req = CUBE__NODE__V1__PAUSE_REQUEST__INIT;
        Cube__Node__V1__PauseReply reply = CUBE__NODE__V1__PAUSE_REPLY__INIT;
        char id[64];
        req.sandbox_id = sb->id;
        req.gen = sb->gen;
        req.filesystem_only = sb->spec->auto_pause && !sb->spec->auto_pause_memory;
        rc = sandbox_pause(sb->node, &req, &reply, id, &e);
    } else {
        rc = sandbox_kill(sb->node, sb->id, sb->gen, "timeout, applied by the node", &existed, &e);
    }
    if (rc < 0)
        log_line(LOG_ERROR, &(struct log_about){.sandbox = sb->id, .err = &e}, "applying the timeout action");
    sb->acting = false;
    sb->users--;
}

/* The times at which the remembered ended, when they are too many. */
struct ends {
    int64_t *at;
    size_t count, cap;
};

static void collect_end(struct sandbox *sb, void *data)
{
    struct ends *x = data;
    if (sandbox_is_over(sb) && x->count < x->cap)
        x->at[x->count++] = sb->ended_ms;
}

static void count_end(struct sandbox *sb, void *data)
{
    *(size_t *)data += sandbox_is_over(sb);
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Who ended before this time is forgotten. Where they are too many a tenth goes at once, so that the sorting
 * is rare. */
static int64_t forget_before(struct node *n)
{
    int64_t before = clock_realtime_ms() - n->cfg.tombstone_ms;
    struct ends x = {0};
    sandbox_each(n, count_end, &x.cap);
    if (x.cap <= (size_t)n->cfg.tombstones)
        return before;
    x.at = malloc(x.cap * sizeof *x.at);
    if (!x.at)
        abort();
    sandbox_each(n, collect_end, &x);
    qsort(x.at, x.count, sizeof *x.at, by_time);
    int64_t oldest_kept = x.at[x.count - (size_t)n->cfg.tombstones * 9 / 10];
    free(x.at);
    return oldest_kept > before ? oldest_kept : before;
}

struct tick {
    struct node *node;
    int64_t forget_before;
};

static void visit(struct sandbox *sb, void *data)
{
    struct tick *t = data;
    struct node *n = t->node;
    int64_t now = clock_boot_ms();
    if (sandbox_is_over(sb)) {
        if (sb->ended_ms < t->forget_before && fiber_lock_idle(&sb->op) && !sb->users) {
            record_remove(n, sb->id);
            sandbox_free(sb);
        }
        return;
    }
    if (sb->state != SB_STATE(RUNNING) || !sb->deadline_boot_ms || sb->acting || master_link_up(n->link))
        return;
    if (sb->spec->idle_ms > 0 &&
        clock_realtime_ms() - sb->last_activity_ms < sb->spec->idle_ms + n->cfg.deadline_grace_ms)
        return;
    if (now - sb->deadline_boot_ms >= n->cfg.deadline_grace_ms &&
        now - n->last_master_ms >= n->cfg.master_grace_ms) {
        sb->acting = true;
        sb->users++;
        fiber_spawn(act, sb);
    }
}

static void ticker(void *arg)
{
    struct node *n = arg;
    while (!n->stopping) {
        fiber_sleep(TICK_MS);
        if (n->ready) {
            struct tick t = {n, forget_before(n)};
            sandbox_each(n, visit, &t);
        }
        stats_gauges(n);
    }
}

void deadline_start(struct node *n)
{
    fiber_spawn(ticker, n);
}
