/* The event loop of the data plane: edge-triggered events on one thread, timers, deferred calls, messages
 * from other threads. Two programs, two loops behind the same calls: cube-proxy's workers run on h2o's event
 * loop and sockets (loop_h2o.c), cube-relay on epoll with libc alone (loop_epoll.c). */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct dp_loop;

struct dp_loop *dp_loop_new(void);   /* NULL when out of memory or descriptors */
void dp_loop_run(struct dp_loop *l); /* until dp_loop_stop; may be called again */
void dp_loop_stop(struct dp_loop *l);

/** Monotonic time as of this turn of the loop. */
int64_t dp_now_ms(const struct dp_loop *l);
int64_t dp_now_us(const struct dp_loop *l);

/** A descriptor's readiness, embedded in the owner's object. `ready` gets the epoll event bits. After
 * dp_watch_close no call follows; the memory must stay until the end of the turn (release it with dp_bury).
 */
struct dp_watch {
    void (*ready)(struct dp_watch *w, uint32_t events);
    int fd;
    uint32_t events;
    struct dp_loop *loop; /* the rest belongs to the loop */
    void *handle;
    bool drained, paused, left;
};
#define DP_WATCH_ALL (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)
#define DP_WATCH_IN (EPOLLIN | EPOLLRDHUP | EPOLLET)
#define DP_WATCH_LISTEN (EPOLLIN) /* level-triggered: a listener accepts a bounded number per turn */
int dp_watch_add(struct dp_loop *l, struct dp_watch *w, uint32_t events);
/** The object lies elsewhere now. */
void dp_watch_moved(struct dp_loop *l, struct dp_watch *w);
/** Asks for one call with EPOLLOUT when the descriptor takes bytes again (or takes that back). */
void dp_watch_out(struct dp_loop *l, struct dp_watch *w, bool on);
/** Everything that was there has been read: the next bytes are to be reported. */
void dp_watch_drained(struct dp_loop *l, struct dp_watch *w);
/** A listener: no more reports until it is taken back. */
void dp_watch_pause(struct dp_loop *l, struct dp_watch *w, bool on);
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
/** As dp_defer, but after all deferred calls of the turn: the place where memory of closed objects is
 * released. */
void dp_bury(struct dp_loop *l, struct dp_task *t);

/** A message from another thread: `run` is called on the loop's thread and owns the message. Safe from any
 * thread. */
struct dp_msg {
    void (*run)(struct dp_msg *m);
    struct dp_msg *next;
};
void dp_post(struct dp_loop *l, struct dp_msg *m);

/** Opens a listening socket on "host:port" (numeric) or "unix:/path"; -1 and `e` on failure. Accepted sockets
 * inherit what is set here: no delay, dp_io_limit_sending, dp_io_unpaced. */
int dp_listen(const char *address, bool reuseport, struct err *e);
