/* The event loop of a daemon: one h2o event loop per thread, with what h2o 2.2.5 lacks: timers of any
 * duration (a heap behind one h2o timeout), readiness of foreign descriptors, deferred calls and signals
 * (c-libraries.md §1.8). */
#pragma once

#include "lib/base/err.h"

#include <h2o.h>
#include <stdint.h>

struct loop;

/** A loop for the calling thread; never freed before the thread ends its loop. NULL only when out of memory.
 */
struct loop *loop_new(void);
void loop_free(struct loop *l);

/** The h2o loop beneath, for h2o_socket calls. */
h2o_loop_t *loop_h2o(struct loop *l);

/** Runs until `loop_stop` is called inside it; one that came before is forgotten. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l);

/** Monotonic milliseconds as of this turn of the loop. */
int64_t loop_now_ms(struct loop *l);

/** A one-shot timer, embedded in the caller's object, zero-initialised. A handler may start it again. The
 * object may be freed as soon as the timer is stopped or has fired. */
struct loop_timer {
    void (*fire)(struct loop_timer *t);
    int64_t at_ms;
    size_t slot; /* 1-based heap position; 0 = not running */
};
void loop_timer_start(struct loop *l, struct loop_timer *t, int64_t delay_ms); /* restarts a running one */
void loop_timer_stop(struct loop *l, struct loop_timer *t);                    /* idempotent */

/** Calls `run` once, from the loop, after the current callback has returned. The object is the caller's. */
struct loop_task {
    void (*run)(struct loop_task *t);
    struct loop_task *next;
    bool queued;
};
void loop_defer(struct loop *l, struct loop_task *t);
void loop_defer_cancel(struct loop *l, struct loop_task *t); /* before the object is freed; idempotent */

/** Watches a descriptor (dup()ed inside; the caller keeps his own) for being readable. `ready` is called
 * while it is readable (level-triggered). */
struct loop_watch;
struct loop_watch *loop_watch_read(struct loop *l, int fd, void (*ready)(void *data), void *data);
void loop_watch_free(struct loop_watch *w);

/** Calls `handler` from the loop when the process gets `signo` (blocks it and uses a signalfd). Call it
 * before threads are started; children inherit the blocked signal, so whoever forks clears the mask. */
int loop_on_signal(struct loop *l, int signo, void (*handler)(int signo, void *data), void *data,
                   struct err *e);

/** Runs a function on another loop's thread as soon as it can; safe from any thread. `run` gets `data`. */
void loop_post(struct loop *target, void (*run)(void *data), void *data);

/** A listening TCP socket on "host:port" (numeric host; IPv6 in brackets) or on a Unix path "unix:/path"
 *  (mode 0660; a stale one of a dead process is replaced, and it is removed by loop_listener_free).
 *  `accepted` owns the socket; it was opened with DONT_READ when `raw` (bounded own reads). */
struct loop_listener;
struct loop_listener *loop_listen(struct loop *l, const char *address, bool reuseport, bool raw,
                                  void (*accepted)(h2o_socket_t *sock, void *data), void *data,
                                  struct err *e);
struct loop_listener *loop_listen_fd(struct loop *l, int fd, bool raw,
                                     void (*accepted)(h2o_socket_t *, void *), void *data,
                                     struct err *e); /* takes the descriptor over */
int loop_listener_fd(struct loop_listener *ln);
int loop_listener_port(struct loop_listener *ln); /* the port in use (after listening on port 0), or -1 */
void loop_listener_free(struct loop_listener *ln);

/** Parses "host:port" with a numeric host, or "unix:/path", into a socket address. */
int loop_address_parse(const char *address, struct sockaddr_storage *out, socklen_t *len, struct err *e);
