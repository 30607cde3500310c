/* What the files of the event loop share; nobody else includes this. */
#pragma once

#include "lib/net/loop.h"

#include <pthread.h>

struct loop_post_item;

struct loop {
    h2o_loop_t *h2o;
    bool stopped;
    int64_t now_ms;
    struct {
        struct loop_timer **at; /* binary heap by at_ms; at[0] is the next to fire */
        size_t len, cap;
    } timers;
    struct loop_task *tasks, **tasks_tail;
    struct {
        pthread_mutex_t lock;
        struct loop_post_item *first, **last;
        int event_fd;
        struct loop_watch *watch;
    } inbox;
    struct loop_signals *signals;
};

void loop_timers_free(struct loop *l);
void loop_timers_fire(struct loop *l);
int64_t loop_timers_next_ms(struct loop *l); /* INT64_MAX when none runs */
void loop_signals_free(struct loop *l);
