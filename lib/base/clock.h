/* Clocks, in one place so that units are never guessed. */
#pragma once

#include <stdint.h>

int64_t clock_realtime_ms(void); /* Unix epoch; for the wire and for people */
int64_t clock_boot_ms(void);     /* CLOCK_BOOTTIME; for deadlines on a node (contracts/internal.md §10) */
int64_t clock_mono_us(void);     /* CLOCK_MONOTONIC; for measuring */
