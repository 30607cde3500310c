/* A thread that serves devices: epoll over eventfds, sockets and timers, with a gate to stop it between two
 * events. */
#pragma once

#include "lib/base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/** A watched descriptor, embedded in the owner. `ready` gets the epoll events. */
struct watch {
    int fd;
    void (*ready)(struct watch *w, uint32_t events);
};

struct worker {
    const char *name; /* of the thread */
    int epoll_fd;
    int wake_fd;
    struct watch wake;
    pthread_t thread;
    bool started;
    atomic_bool stop_wanted;
    pthread_mutex_t gate;
    pthread_cond_t gate_changed;
    bool parked;
    int64_t resumed_us; /* the thread's own: when it last went on (clock_mono_us); 0 = never stood still */
    void (*on_start)(void); /* run first in the thread: its seccomp filter; may be NULL */
};

int worker_init(struct worker *w, struct err *e);
int worker_start(struct worker *w, const char *name, void (*on_start)(void), struct err *e);
int worker_watch(struct worker *w, struct watch *x, uint32_t events);
void worker_unwatch(struct worker *w, struct watch *x);

/** Stops the thread between two events; returns when it stands still. Its descriptors keep what arrives. */
void worker_pause(struct worker *w);
void worker_resume(struct worker *w);

/** Handles what is ready now, waiting at most `timeout_ms`; what the thread does in a loop, and what tests
 * call. */
void worker_turn(struct worker *w, int timeout_ms);

/** Starts a detached-free thread with a small stack and all signals blocked but the one that stops vCPUs. */
int thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg, struct err *e);
