/* cube-bench: lists the benchmarks, runs one. A benchmark is a function here or a program of the part that it
 * measures; all print the same object (bench/report.h). */
#include "bench/bench.h"
#include "bench/external.h"

#include "lib/base/log.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct benchmark {
    const char *name, *help;
    int (*run)(const struct bench_options *o, struct err *e);
    const char *command;
    bool cluster;
};

static const struct benchmark benchmarks[] = {
#define BENCH(name, help, run) {name, help, run, NULL, false},
#define COMMAND(name, help, words) {name, help, NULL, words, false},
#define IN_CLUSTER(name, help, words) {name, help, NULL, words, true},
#include "bench/benchmarks.inc"
#undef BENCH
#undef COMMAND
#undef IN_CLUSTER
};
#define COUNT (sizeof benchmarks / sizeof *benchmarks)

static bool available(const struct benchmark *b, const struct bench_options *o)
{
    return b->run || external_available(b->command, o);
}

static void list(const struct bench_options *o)
{
    printf("usage: cube-bench NAME [--json] [--rounds N] [--scale N] [--quick] [--cold] [-- WORD...]\n\n");
    for (size_t i = 0; i < COUNT; i++)
        if (available(&benchmarks[i], o))
            printf("  %-14s %s\n", benchmarks[i].name, benchmarks[i].help);
}

int main(int argc, char **argv)
{
    struct bench_options o = {.root = getenv("CUBE_ROOT"), .build = getenv("CUBE_BUILD_DIR")};
    static const struct option longs[] = {{"json", 0, NULL, 'j'},
                                          {"cold", 0, NULL, 'c'},
                                          {"quick", 0, NULL, 'q'},
                                          {"scale", 1, NULL, 's'},
                                          {"rounds", 1, NULL, 'r'},
                                          {"help", 0, NULL, 'h'},
                                          {0}};
    o.root = o.root ? o.root : ".";
    o.build = o.build ? o.build : "build";
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'j')
            o.json = true;
        else if (c == 'c')
            o.cold = true;
        else if (c == 'q')
            o.quick = true;
        else if (c == 's')
            o.scale = strtol(optarg, NULL, 10);
        else if (c == 'r')
            o.rounds = strtol(optarg, NULL, 10);
        else if (c == 'h')
            return list(&o), 0;
        else
            return 2;
    }
    if (optind == argc)
        return list(&o), 0;
    log_init("cube-bench", LOG_WARN);
    setenv("CUBE_ROOT", o.root, 0);
    setenv("CUBE_BUILD_DIR", o.build, 0);
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(benchmarks[i].name, argv[optind]) != 0)
            continue;
        struct err e = {0};
        const struct benchmark *b = &benchmarks[i];
        report_start();
        int r = b->run ? b->run(&o, &e)
                       : external_run(b->name, b->command, b->cluster, &o, argv + optind + 1, &e);
        if (r == 0)
            return 0;
        fprintf(stderr, "cube-bench %s: %s%s%s\n", b->name, e.msg, e.remedy[0] ? "\n  " : "", e.remedy);
        return 1;
    }
    fprintf(stderr, "cube-bench: no benchmark \"%s\"; without a name they are listed\n", argv[optind]);
    return 2;
}
