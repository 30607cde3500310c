/* The rate limit of a team's requests (contracts/e2b.md §7): so many per window, counted over all threads of
 * the process, and over all instances of cube-api as far as they have told each other (api/cell.h). */
#pragma once

#include "api/call.h"

/** Counts the request and adds the RateLimit-* headers; when the limit is passed, ends the call with 429 and
 * returns -1. */
int limit_check(struct call *c);

/** Wrong API keys, per address of the client and window: notes one, and says whether there were too many for
 * another question to the master. Then the call was ended with 429, and -1 is returned. */
void limit_wrong_key(struct call *c);
int limit_wrong_keys_check(struct call *c);

struct limit_result {
    int64_t used;    /* the number of this request in the window, all instances together */
    int64_t untold;  /* counted here since the others were told */
    int64_t reset_s; /* to the next window */
};
/** The counting alone. Any thread. */
struct limit_result limit_count(const char *team, int64_t now_ms, int64_t window_ms);

/** The same without counting one. */
struct limit_result limit_look(const char *team, int64_t now_ms, int64_t window_ms);

/** What the other instances do not know yet of one team's window. */
struct limit_delta {
    uint64_t team; /* hash of its ID */
    uint32_t window, more;
    uint32_t mine; /* counted here in all, `more` included */
    unsigned place;
};
/** Hands each of them over, once. From one thread only. */
void limit_deltas(void (*each)(const struct limit_delta *d, void *data), void *data);
/** All instances together had counted `total` when they took note of the delta. The same thread. */
void limit_learn(const struct limit_delta *d, int64_t total);
