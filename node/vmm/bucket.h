/* A token bucket: the rate a guest may use a device at. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** `rate` units per second with a burst of one tenth of a second (at least `burst_min`); rate 0 = no limit.
 */
struct bucket {
    uint64_t rate, burst;
    int64_t tokens; /* may go below zero by one request, which is then paid off */
    int64_t at_us;  /* time of the last refill */
};

void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst_min, int64_t now_us);

/** Whether something may pass now. */
bool bucket_open(struct bucket *b, int64_t now_us);

/** Takes `n` units for what passed. */
void bucket_take(struct bucket *b, uint64_t n);

/** Microseconds until `bucket_open` will be true; 0 when it is. */
int64_t bucket_wait_us(const struct bucket *b);
