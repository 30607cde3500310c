/* Where the processor time of the whole machine goes, by kind of thread, in nanoseconds of the scheduler and
 * not in clock ticks. */
#pragma once

#include "bench/report.h"

#include <stdint.h>

#define SPLIT_KINDS 11

struct split {
    int64_t at_us;
    double ns[SPLIT_KINDS], idle_s;
    double vcpu_wakes;
};

/** Reads every thread of the machine, about 20 ms per thousand threads; the reading itself lies outside of
 * what is between a `first` one and one that is not. */
void split_read(struct split *s, bool first);

/** Cores by kind; the last one is what no thread was charged with: interrupts and the idle loop's own work.
 */
struct split_rates {
    double busy, cores[SPLIT_KINDS + 1], vcpu_wakes; /* all vCPU threads together, per second */
};
void split_rates(const struct split *from, const struct split *to, struct split_rates *out);

/** What each kind uses more than before, as a series each; returns their sum without DAMON, the memory
 * monitor that some hosts run for themselves (its cost grows with the processes that share a page). */
double split_report(const struct split_rates *before, const struct split_rates *now,
                    struct series out[SPLIT_KINDS + 1]);
