/* Owns the fleet for the scheduler's benchmark: 300 nodes, half of them with the template, differently full.
 */
#include "bench/decisions.h"

#include "lib/base/clock.h"
#include "master/scheduler.h"

#include <stdlib.h>

#define NODES 300
#define BATCH 20000
#define BATCHES 10

static uint64_t state = 88172645463325252ull;
static uint64_t next_random(void) /* xorshift: repeatable, and much cheaper than what is measured */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

void bench_decisions(struct series *s)
{
    struct sched_node *nodes = calloc(NODES, sizeof *nodes);
    uint64_t template_hash = sched_hash("benchtemplate0000001");
    /* The defaults of cube-master. */
    struct sched_policy policy = {
        .ratio_memory = 4000,
        .ratio_cpu = 8000,
        .weights = {.template_local = 40, .warm = 20, .room = 60, .spread = 30, .sample = 48}};
    struct sched_ask ask = {.memory = 64,
                            .nominal = 512,
                            .cpu = 1000,
                            .template_hash = template_hash,
                            .team_hash = sched_hash("bench")};
    if (!nodes)
        return;
    for (size_t i = 0; i < NODES; i++) {
        nodes[i] = (struct sched_node){
            .cap_memory = 256 << 10, .cap_cpu = 64000, .cap_count = 1000, .healthy = true};
        nodes[i].reserved_memory = (int64_t)(next_random() % (128 << 10));
        nodes[i].reserved_cpu = (int64_t)(next_random() % 64000);
        nodes[i].warm = (uint32_t)(next_random() % 4);
        nodes[i].templates = &template_hash;
        nodes[i].template_count = i % 2;
    }
    size_t placed = 0;
    for (int b = 0; b < BATCHES; b++) {
        int64_t t = clock_mono_us();
        for (int i = 0; i < BATCH; i++) {
            struct sched_choice best[4];
            uint32_t rejected[SCHED_REASONS];
            placed += sched_pick(nodes, NODES, &ask, &policy, NULL, next_random(), best, 4, rejected) > 0;
        }
        series_add(s, BATCH * 1e6 / (double)(clock_mono_us() - t));
    }
    if (placed != BATCH * (size_t)BATCHES)
        abort(); /* an ask that fits everywhere was refused: nothing was measured */
    free(nodes);
}
