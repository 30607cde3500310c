/* What the VMM's benchmarks share: clones of one snapshot in the test's directory (base.state, base.mem,
 * base.layer, ws). */
#pragma once

#include "bench/report.h"
#include "tests/vmm/harness.h"

#define GUEST_MIB 512

/** Restores into a waiting process and asks; milliseconds from hand-over to the answer. `started` and `conn`
 * may be NULL; else the connection stays open and is the caller's. */
double restore_and_ask(struct guest *g, const struct snapshot_files *f, Cube__Vmm__V1__Started *started,
                       int *conn);
/** The number behind `key` in a file such as /proc/meminfo; -1 when there is none. */
double file_number(const char *path, const char *key);

/** limits.c: `vmm-limits`. */
void bench_limits(unsigned n, bool json);
