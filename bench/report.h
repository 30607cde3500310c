/* The one object that a benchmark prints (contracts/internal.md §12). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** What was measured for one metric; zero-initialise the rest. A single figure is a series of one value. */
struct series {
    const char *metric, *unit; /* the names of internal.md §12; a ratio has the unit "x" */
    double *v;
    size_t n, cap;
};

void series_add(struct series *s, double v);
/** The value below which `p` (0 … 1) of the values lie; sorts; 0 when there is none. */
double series_percentile(struct series *s, double p);

/** Notes the load of the machine before the benchmark adds to it. */
void report_start(void);
/** Prints the object on standard output (`json`), or a table for people. Metrics without a value are left
 * out. */
void report_print(const char *name, struct series *s, size_t n, bool json);
