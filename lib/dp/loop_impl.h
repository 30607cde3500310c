/* What both loops share: time, a timer wheel, the deferred calls of the turn, and an inbox that other threads
 * push to. */
#pragma once

#include "lib/dp/loop.h"

#include <stdatomic.h>

enum { DP_SLOTS = 2048 };

struct dp_core {
    int64_t now_us;
    int64_t tick; /* the wheel was served up to and with this tick */
    struct dp_timer *slot[DP_SLOTS];
    uint64_t used[DP_SLOTS / 64];
    struct dp_task *deferred, **deferred_end;
    struct dp_task *buried, **buried_end;
    int wakeup;                     /* eventfd */
    _Atomic(struct dp_msg *) inbox; /* newest first */
};

int core_init(struct dp_core *c); /* opens the eventfd */
void core_clock(struct dp_core *c);
void core_timers(struct dp_core *c);
int core_wait_ms(
    struct dp_core *c); /* until the next slot with a timer, 0 when calls are deferred; -1 = for ever */
void core_settle(struct dp_core *c);
void core_inbox(struct dp_core *c); /* the eventfd is readable */
