/* Counts that all workers of the process share: connections of a client address, requests of a sandbox. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHARE_KEY_MAX = 24 };

/** One thing that several workers know. */
struct share {
    struct share *next;
    uint32_t holders;      /* guarded by the table's lock */
    atomic_uint in_flight; /* free for the holders' use, without a lock */
    uint8_t key[SHARE_KEY_MAX];
};

/** Finds or makes the share of a key (at most SHARE_KEY_MAX bytes) and counts one more holder; NULL when
 * `limit` holders have it already, or out of memory. Keys of different kinds must differ. From any thread;
 * takes a lock for the length of a look-up, so it is for new connections and new sandboxes, not for every
 * request. */
struct share *share_enter(const void *key, size_t n, uint32_t limit);
/** The last holder frees it. */
void share_leave(struct share *s);
