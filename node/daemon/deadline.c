/* Owns the node's ticking. Invariant: the node acts alone only when a deadline is overdue by
 * deadline_grace_ms and no master gave a sign for master_grace_ms; then it applies the sandbox's own timeout
 * action, once. In mode `idle` that is a pause, and activity postpones it here as well. */
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
}

static void visit(struct sandbox *sb, void *data)
{
    struct node *n = data;
    int64_t now = clock_boot_ms();
    if (sandbox_is_over(sb)) {
        if (clock_realtime_ms() - sb->ended_ms > n->cfg.tombstone_ms && fiber_lock_idle(&sb->op) &&
            !sb->acting) {
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
        fiber_spawn(act, sb);
    }
}

static void ticker(void *arg)
{
    struct node *n = arg;
    while (!n->stopping) {
        fiber_sleep(TICK_MS);
        if (n->ready)
            sandbox_each(n, visit, n);
        stats_gauges(n);
    }
}

void deadline_start(struct node *n)
{
    fiber_spawn(ticker, n);
}
