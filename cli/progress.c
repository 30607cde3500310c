/* Owns how steps are shown: one line each, flushed at its beginning so that a reader knows what is waited
 * for. */
#include "cli/progress.h"
#include "lib/base/clock.h"

#include <stdarg.h>
#include <stdio.h>

struct progress progress_step(const char *name)
{
    printf("  %-24s", name);
    fflush(stdout);
    return (struct progress){.started_us = clock_mono_us()};
}

int progress_end(struct progress *p, int status, const char *fmt, ...)
{
    double ms = (double)(clock_mono_us() - p->started_us) / 1000;
    printf("%9.1f ms  ", ms);
    if (status < 0) {
        printf("failed\n");
    } else {
        va_list ap;
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        printf("\n");
    }
    fflush(stdout);
    return status;
}
