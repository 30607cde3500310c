/* Owns the reading of clocks; invariant: each function reads one clock in one unit, so callers never convert.
 */
#include "lib/base/clock.h"

#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t clock_realtime_ms(void)
{
    return read_us(CLOCK_REALTIME) / 1000;
}

int64_t clock_boot_ms(void)
{
    return read_us(CLOCK_BOOTTIME) / 1000;
}

int64_t clock_mono_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}
