/* How much of a sandbox's memory its pause gives back. */
#pragma once

#include "bench/bench.h"
#include "lib/net/loop.h"

/** Brings a cluster of its own up and takes it down; runs the loop (to which fibers are bound); adds one
 * value per sandbox, in percent. */
int bench_pause_freed(const struct bench_options *o, struct series *s, struct loop *loop, struct err *e);
