/* The one object that a benchmark prints (contracts/internal.md §12). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct series {
    const char *metric, *unit;
    double *v;
    size_t n, cap;
};

void series_add(struct series *s, double v);
/** Prints the object on standard output (`json`), or a table. `load` is taken at the start of the program. */
void report_print(const char *name, struct series *s, size_t n, bool json);
void report_start(void);
