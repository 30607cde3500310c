/* The daemon's event loop: one thread, epoll, a heap of timers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/** One descriptor in the loop. Embedded in its owner; the owner's memory is released with `loop_free_later`,
 * because the same batch of epoll events may still name it. `fd` is -1 when the source is dead. */
struct ev {
    int fd;
    uint32_t events; /* what epoll watches now; 0 = not registered */
    void (*cb)(void *owner, uint32_t events);
    void *owner;
};

/** One timer. Embedded; zero-initialised means not armed. */
struct timer {
    int64_t at_ms; /* loop_now_ms() */
    uint32_t slot; /* position in the heap + 1; 0 = not armed */
    void (*cb)(void *owner);
    void *owner;
};

/** Makes the epoll instance; returns 0 or -1 with errno. */
int loop_open(void);

/** Runs until `loop_stop`. */
void loop_run(void);
void loop_stop(void);

/** CLOCK_MONOTONIC in milliseconds, read once per turn of the loop. */
int64_t loop_now_ms(void);

/** Watches `events` of ev->fd; 0 takes it out of epoll (the descriptor stays open). Returns 0 or -1 with
 * errno. */
int ev_watch(struct ev *ev, uint32_t events);

/** Takes the source out and closes its descriptor. Harmless on a dead source. */
void ev_close(struct ev *ev);

/** free(3) after the current batch of events. */
void loop_free_later(void *p);

/** Arms or re-arms; the callback runs once, at or after the time. */
void timer_set(struct timer *t, int64_t after_ms);
void timer_clear(struct timer *t);
