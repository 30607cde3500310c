/* The event loop of the data plane (cube-proxy's workers, cube-relay): one edge-triggered epoll per thread. A descriptor is
 * registered once and never re-armed, so that a request costs no epoll_ctl and a connection that was reset while
 * nobody reads from it cannot make the loop spin (h2o 2.2.5's level-triggered loop does both). Needs only libc. */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct dp_loop;

struct dp_loop *dp_loop_new(void); /* NULL when out of memory or descriptors */
void dp_loop_free(struct dp_loop *l);
void dp_loop_run(struct dp_loop *l); /* until dp_loop_stop */
void dp_loop_stop(struct dp_loop *l);

/** Monotonic time as of this turn of the loop. */
int64_t dp_now_ms(const struct dp_loop *l);
int64_t dp_now_us(const struct dp_loop *l);

/** A descriptor's readiness, embedded in the owner's object. `ready` gets the epoll event bits. After dp_watch_close no call
 *  follows; the memory must stay until the end of the turn (release it with dp_bury). */
struct dp_watch {
    void (*ready)(struct dp_watch *w, uint32_t events);
    int fd;
};
#define DP_WATCH_ALL (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)
#define DP_WATCH_IN (EPOLLIN | EPOLLRDHUP | EPOLLET)
#define DP_WATCH_LISTEN (EPOLLIN) /* level-triggered: a listener accepts a bounded number per turn */
int dp_watch_add(struct dp_loop *l, struct dp_watch *w, uint32_t events);
void dp_watch_change(struct dp_loop *l, struct dp_watch *w, uint32_t events);
void dp_watch_close(struct dp_loop *l, struct dp_watch *w); /* closes the descriptor; idempotent */

/** A one-shot timer with a granularity of 8 ms; zero-initialise, start and stop cost O(1). */
struct dp_timer {
    void (*fire)(struct dp_timer *t);
    int64_t at_ms;
    struct dp_timer *next, **link; /* link = NULL: not running */
};
void dp_timer_start(struct dp_loop *l, struct dp_timer *t, int64_t delay_ms); /* restarts a running one */
void dp_timer_stop(struct dp_timer *t);                                       /* idempotent */

/** Runs once at the end of this turn. The object is the caller's and may be freed by `run`. */
struct dp_task {
    void (*run)(struct dp_task *t);
    struct dp_task *next;
    bool queued;
};
void dp_defer(struct dp_loop *l, struct dp_task *t);
/** As dp_defer, but after all deferred calls of the turn: the place where memory of closed objects is released. */
void dp_bury(struct dp_loop *l, struct dp_task *t);

/** A message from another thread: `run` is called on the loop's thread and owns the message. Safe from any thread. */
struct dp_msg {
    void (*run)(struct dp_msg *m);
    struct dp_msg *next;
};
void dp_post(struct dp_loop *l, struct dp_msg *m);

/** Opens a listening socket on "host:port" (numeric) or "unix:/path"; -1 and `e` on failure. */
int dp_listen(const char *address, bool reuseport, struct err *e);
