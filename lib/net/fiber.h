/* Fibers: a sandbox's start, pause or kill is written as one straight function that waits for processes,
 * sockets and disks without blocking the loop. All fibers of the process run on one loop, one at a time, so
 * their data needs no lock. */
#pragma once

#include "lib/net/loop.h"

#include <stdbool.h>
#include <stdint.h>

struct fiber;

/** Binds fibers to the loop of the calling thread and starts `workers` threads for `fiber_offload`. Once, at
 * start. */
int fiber_start(struct loop *l, unsigned workers, struct err *e);

/** Ends the threads for `fiber_offload`: what they have begun is done, what waits is not. Once the loop has
 * ended, before it is freed and before exit(), in which OpenSSL takes down what such work uses. False when
 * one is still at work after `timeout_ms`: the process must end by _exit() then. */
bool fiber_stop(int64_t timeout_ms);

/** Runs `run(arg)` as a fiber: until its first wait at once, the rest from the loop. Aborts when out of
 * memory. */
void fiber_spawn(void (*run)(void *arg), void *arg);

/** Whether the caller runs in a fiber (and so may wait). */
bool fiber_inside(void);

/** Number of fibers that have not returned. */
unsigned fiber_count(void);

/** Something that happens once and that one fiber may wait for. Zero-initialise. */
struct fiber_event {
    struct fiber *waiter;
    bool set;
};

/** Waits until the event is set or `timeout_ms` passed (< 0: for ever); returns whether it is set. */
bool fiber_event_wait(struct fiber_event *ev, int64_t timeout_ms);
void fiber_event_set(struct fiber_event *ev); /* idempotent; from the loop or a fiber */

void fiber_sleep(int64_t ms);

/** Waits until `fd` is readable; false after `timeout_ms`. */
bool fiber_wait_readable(int fd, int64_t timeout_ms);

/** First come, first served exclusion between fibers. Zero-initialise. */
struct fiber_lock {
    bool held;
    struct fiber_waiter *first, **last;
};
void fiber_lock(struct fiber_lock *l);
bool fiber_lock_idle(const struct fiber_lock *l); /* nobody holds it */
void fiber_unlock(struct fiber_lock *l);

static inline void cleanup_fiber_unlock(struct fiber_lock **l)
{
    if (*l)
        fiber_unlock(*l);
}
#define _cleanup_unlock_ __attribute__((cleanup(cleanup_fiber_unlock), unused))

/** Runs `work(arg)` on a worker thread and waits for it; returns what it returned. For file work that may
 * block. */
int fiber_offload(int (*work)(void *arg), void *arg);
