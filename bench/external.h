/* Benchmarks that are programs of other parts: they get --json and print one object on standard output. */
#pragma once

#include "bench/bench.h"

bool external_available(const char *command, const struct bench_options *o);

/** Runs it, checks the object and prints it (or a table for people). `cluster`: a cluster of its own is
 * brought up before and taken down after; @state@, @run@, @node@ and @template@ in the command are of that
 * cluster, and the SDK's variables are set. */
int external_run(const char *name, const char *command, bool cluster, const struct bench_options *o,
                 char *const *more, struct err *e);
