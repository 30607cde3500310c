/* Placement decisions per second of the scheduler's core alone. */
#pragma once

#include "bench/report.h"

void bench_decisions(struct series *s);
