/* Owns the reading of clocks; invariant: each function reads one clock in one unit, so callers never convert;
 * a time of day has one spelling. */
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

/* `n` with `digits` digits; returns where the next may be written. */
static char *put_digits(char *at, int64_t n, int digits)
{
    for (int i = digits; i-- > 0; n /= 10)
        at[i] = (char)('0' + n % 10);
    return at + digits;
}

/* Written by hand: an answer has several of these, and strftime costs more than all the rest of it. The date
 * is counted in years that begin in March, so that the leap day is the last. */
bool clock_text(int64_t unix_ms, char out[CLOCK_TEXT_BYTES])
{
    const int64_t day_ms = 86400000, era_days = 146097; /* 400 years */
    int64_t ms = unix_ms % day_ms, days = unix_ms / day_ms;
    if (ms < 0) {
        ms += day_ms;
        days--;
    }
    days += 719468;                   /* since 1 March of year 0 */
    if (days < 306 || days > 3652364) /* years 1 to 9999 */
        return false;
    int64_t era = days / era_days, day = days % era_days;
    int64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    int64_t month = (5 * day + 2) / 153;
    day -= (153 * month + 2) / 5 - 1;
    year += 400 * era + (month >= 10);
    month += month < 10 ? 3 : -9;
    char *at = put_digits(out, year, 4);
    *at++ = '-';
    at = put_digits(at, month, 2);
    *at++ = '-';
    at = put_digits(at, day, 2);
    *at++ = 'T';
    at = put_digits(at, ms / 3600000, 2);
    *at++ = ':';
    at = put_digits(at, ms / 60000 % 60, 2);
    *at++ = ':';
    at = put_digits(at, ms / 1000 % 60, 2);
    *at++ = '.';
    at = put_digits(at, ms % 1000, 3);
    *at++ = 'Z';
    *at = 0;
    return true;
}
