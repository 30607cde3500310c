/* Owns the printing of results and of the machine that they are from; invariant: the load is that of before
 * the benchmark. */
#include "bench/report.h"

#include "lib/base/buf.h"
#include "lib/base/jsonw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static double load_at_start = -1;

void report_start(void)
{
    if (getloadavg(&load_at_start, 1) != 1)
        load_at_start = 0;
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

double series_percentile(struct series *s, double p)
{
    if (s->n == 0)
        return 0;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    return s->v[(size_t)(p * (double)(s->n - 1) + 0.5)];
}

/* "hardware", "pvm" or "none", as `cube doctor --kind` of this build says. */
static void kvm_kind(char out[16])
{
    const char *build = getenv("CUBE_BUILD_DIR");
    char command[600];
    strcpy(out, access("/dev/kvm", R_OK) == 0 ? "unknown" : "none");
    if (!build)
        return;
    snprintf(command, sizeof command, "'%.500s/cli/cube' doctor --kind 2>/dev/null", build);
    FILE *f = popen(command, "re");
    if (!f)
        return;
    char line[32];
    if (fgets(line, sizeof line, f))
        snprintf(out, 16, "%.*s", (int)(strcspn(line, "\r\n") < 15 ? strcspn(line, "\r\n") : 15), line);
    pclose(f);
}

static void print_json(const char *name, struct series *s, size_t n, const char *kernel, const char *kvm,
                       long cores, bool busy)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kstr(&w, "name", name);
    jsonw_key(&w, "environment");
    jsonw_obj(&w);
    jsonw_kint(&w, "cores", cores);
    jsonw_kstr(&w, "kernel", kernel);
    jsonw_kstr(&w, "kvm", kvm);
    jsonw_key(&w, "load");
    jsonw_double(&w, load_at_start, 2);
    jsonw_obj_end(&w);
    jsonw_kbool(&w, "busy", busy);
    jsonw_key(&w, "results");
    jsonw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        if (s[i].n == 0)
            continue;
        jsonw_obj(&w);
        jsonw_kstr(&w, "metric", s[i].metric);
        jsonw_kstr(&w, "unit", s[i].unit);
        jsonw_kint(&w, "n", (int64_t)s[i].n);
        jsonw_key(&w, "p50");
        jsonw_double(&w, series_percentile(&s[i], 0.5), 3);
        jsonw_key(&w, "p99");
        jsonw_double(&w, series_percentile(&s[i], 0.99), 3);
        jsonw_key(&w, "max");
        jsonw_double(&w, series_percentile(&s[i], 1), 3);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    jsonw_obj_end(&w);
    printf("%s\n", buf_cstr(&b));
}

void report_print(const char *name, struct series *s, size_t n, bool json)
{
    struct utsname u;
    char kvm[16];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (load_at_start < 0)
        report_start();
    uname(&u);
    kvm_kind(kvm);
    bool busy = load_at_start > (double)cores * 0.5;
    if (json) {
        print_json(name, s, n, u.release, kvm, cores, busy);
        return;
    }
    printf("%s  (%ld cores, kernel %s, KVM %s, load %.2f%s)\n", name, cores, u.release, kvm, load_at_start,
           busy ? ": the machine was busy" : "");
    for (size_t i = 0; i < n; i++)
        if (s[i].n > 0)
            printf("  %-20s %-9s n=%-6zu p50=%-10.3f p99=%-10.3f max=%.3f\n", s[i].metric, s[i].unit, s[i].n,
                   series_percentile(&s[i], 0.5), series_percentile(&s[i], 0.99),
                   series_percentile(&s[i], 1));
}
