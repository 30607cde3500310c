/* Clocks, in one place so that units are never guessed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

int64_t clock_realtime_ms(void); /* Unix epoch; for the wire and for people */
int64_t clock_boot_ms(void);     /* CLOCK_BOOTTIME; for deadlines on a node (contracts/internal.md §10) */
int64_t clock_mono_us(void);     /* CLOCK_MONOTONIC; for measuring */

#define CLOCK_TEXT_BYTES 25 /* with the closing 0 */

/**
 * RFC 3339 in UTC with milliseconds: 2026-01-31T23:59:59.999Z. Returns false and writes nothing outside the
 * years 1 to 9999. Safe in a signal handler.
 */
bool clock_text(int64_t unix_ms, char out[CLOCK_TEXT_BYTES]);
