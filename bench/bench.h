/* What the benchmarks inside cube-bench share. */
#pragma once

#include "bench/report.h"
#include "lib/base/err.h"

#include <stdbool.h>

struct bench_options {
    bool json;
    bool cold;   /* line: also measure up-cold (half an hour) */
    bool quick;  /* control: without pause-freed, which needs real VMs */
    long scale;  /* control: how many sandboxes in the list; 0 = default */
    long rounds; /* repetitions; 0 = default */
    const char *root, *build;
};

int bench_line(const struct bench_options *o, struct err *e);
int bench_control(const struct bench_options *o, struct err *e);
