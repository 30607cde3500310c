/* How many placements the decision core makes per second of CPU on one core (and per second of wall clock,
 * which a busy machine lowers): control-decisions [NODES] [SECONDS]. One line of JSON. */
#include "lib/base/clock.h"
#include "master/scheduler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 300;
    int64_t seconds = argc > 2 ? strtoll(argv[2], NULL, 10) : 2;
    struct sched_node *nodes = calloc(n, sizeof *nodes);
    static uint64_t templates[64];
    if (!nodes || !n)
        return 2;
    for (size_t i = 0; i < 64; i++)
        templates[i] = (i + 1) * 1000003;
    for (size_t i = 0; i < n; i++)
        nodes[i] = (struct sched_node){.cap_memory = 1 << 20,
                                       .cap_cpu = 64000,
                                       .healthy = true,
                                       .templates = templates,
                                       .template_count = 64,
                                       .reserved_memory = (int64_t)(i * 7919 % 200000),
                                       .reserved_cpu = (int64_t)(i * 104729 % 100000)};
    const struct sched_policy policy = {
        .ratio_memory = 4000,
        .ratio_cpu = 8000,
        .weights = {.template_local = 40, .warm = 20, .room = 60, .spread = 30, .sample = 48}};
    int64_t begin = clock_mono_us(), end = begin + seconds * 1000000;
    double cpu = cpu_seconds();
    uint64_t made = 0, sum = 0;
    while (clock_mono_us() < end)
        for (int i = 0; i < 256; i++, made++) {
            struct sched_ask ask = {.memory = 128,
                                    .nominal = 512,
                                    .cpu = 1000,
                                    .template_hash = templates[made % 64],
                                    .team_hash = 1 + made % 97};
            struct sched_choice c[3];
            uint32_t rejected[SCHED_REASONS];
            size_t got = sched_pick(nodes, n, &ask, &policy, NULL, made, c, 3, rejected);
            if (got) { /* placed and, 4096 placements later, gone again on average */
                sched_node_account(&nodes[c[0].node], &ask, 1);
                sched_node_account(&nodes[(made * 31) % n], &ask, -1);
                sum += c[0].node;
            }
        }
    cpu = cpu_seconds() - cpu;
    double took = (double)(clock_mono_us() - begin) / 1e6;
    printf("{\"metric\": \"decisions\", \"unit\": \"per second\", \"nodes\": %zu, \"value\": %.0f, \"wall\": "
           "%.0f, \"check\": %" PRIu64 "}\n",
           n, (double)made / cpu, (double)made / took, sum % 1000);
    free(nodes);
    return 0;
}
