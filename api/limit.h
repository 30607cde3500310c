/* The rate limit of a team's requests (contracts/e2b.md §7): so many per window, counted over all threads of
 * the process. */
#pragma once

#include "api/call.h"

/** Counts the request and adds the RateLimit-* headers; when the limit is passed, ends the call with 429 and
 * returns -1. */
int limit_check(struct call *c);

/** The counting alone: whether request number `*used` of this window is within `limit`, and the seconds to
 * the next window. */
bool limit_count(const char *team, int64_t now_ms, int64_t limit, int64_t window_ms, int64_t *used,
                 int64_t *reset_s);
