/* Steps of a long command, each printed when it begins and with its time when it ends. */
#pragma once

#include <stdint.h>

struct progress {
    int64_t started_us;
};

struct progress progress_step(const char *name);

/** Prints time and remark, or "failed" when `status` is negative; returns `status`. */
int progress_end(struct progress *p, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
