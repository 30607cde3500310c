/* Percentiles and their printing. */
#include "bench/vmm/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static double load_at_start;

void report_start(void)
{
    getloadavg(&load_at_start, 1);
}

void series_add(struct series *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        if (!s->v)
            abort();
    }
    s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const struct series *s, double p)
{
    if (s->n == 0)
        return 0;
    size_t i = (size_t)(p * (double)(s->n - 1) + 0.5);
    return s->v[i];
}

void report_print(const char *name, struct series *s, size_t n, bool json)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct utsname u;

    uname(&u);
    for (size_t i = 0; i < n; i++)
        qsort(s[i].v, s[i].n, sizeof *s[i].v, by_value);
    if (json)
        printf("{\"name\":\"%s\",\"environment\":{\"cores\":%ld,\"kernel\":\"%s\",\"kvm\":\"%s\",\"load\":%."
               "2f},\"busy\":%s,"
               "\"results\":[",
               name, cores, u.release, access("/dev/kvm", R_OK) ? "none" : "yes", load_at_start,
               load_at_start > (double)cores * 0.5 ? "true" : "false");
    else
        printf("%s  (%ld cores, %s, load %.2f)\n", name, cores, u.release, load_at_start);
    for (size_t i = 0; i < n; i++) {
        const char *form =
            json ? "%s{\"metric\":\"%s\",\"unit\":\"%s\",\"n\":%zu,\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}"
                 : "%s  %-24s %-5s n=%-5zu p50=%-9.3f p99=%-9.3f max=%.3f\n";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        printf(form, json && i ? "," : "", s[i].metric, s[i].unit, s[i].n, percentile(&s[i], 0.5),
               percentile(&s[i], 0.99), percentile(&s[i], 1));
#pragma GCC diagnostic pop
    }
    if (json)
        printf("]}\n");
}
