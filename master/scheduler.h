/* Where a new sandbox goes: filter and score over the nodes, as a pure function of its arguments (DESIGN.md
 * §4). It promises nothing: the reservation in Redis and then the node itself may still refuse. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What may speak against a node, in the order in which it is checked. */
enum sched_reject {
    SCHED_FITS = 0,
    SCHED_UNHEALTHY,
    SCHED_CORDONED,
    SCHED_DRAINING,
    SCHED_PRESSURE,
    SCHED_UNFIT, /* its self-test failed, or its network */
    SCHED_CLASS,
    SCHED_LABEL,
    SCHED_SANDBOXES,
    SCHED_MEMORY,
    SCHED_CPU,
    SCHED_EXCLUDED, /* tried before in this placement */
    SCHED_REASONS
};
const char *sched_reject_name(enum sched_reject r);

#define SCHED_LABELS 8
#define SCHED_TEAMS 64

/** One node as the scheduler sees it. Memory in MiB, CPU in thousandths of a core, names as sched_hash(). */
struct sched_node {
    int64_t cap_memory, cap_cpu, cap_count;
    int64_t reserved_memory, reserved_nominal, reserved_cpu, reserved_count;
    bool healthy, cordoned, draining, pressure, unfit;
    uint32_t warm;
    uint64_t class_hash;
    const uint64_t *templates; /* sorted */
    size_t template_count;
    uint64_t labels[SCHED_LABELS];
    size_t label_count;
    struct {
        uint64_t team;
        uint32_t count;
    } teams[SCHED_TEAMS]; /* sandboxes per team; open addressing, team 0 = free */
};

/** What is asked for. */
struct sched_ask {
    int64_t memory;  /* MiB to reserve at first */
    int64_t nominal; /* MiB that the guest may grow to */
    int64_t cpu;     /* thousandths */
    uint64_t template_hash, team_hash;
    uint64_t class_hash; /* 0 = any */
    uint64_t labels[SCHED_LABELS];
    size_t label_count;
};

/** Points that a property of a node is worth; free room counts from 0 to `room`. */
struct sched_weights {
    int64_t template_local, warm, room, spread;
    int64_t sample; /* how many fitting nodes are compared; 0 = all */
};

struct sched_policy {
    int64_t ratio_memory, ratio_cpu; /* overcommit in thousandths */
    struct sched_weights weights;
};

struct sched_choice {
    size_t node; /* index */
    int64_t score;
    bool template_local;
};

uint64_t sched_hash(const char *s);

/** Fills up to `max` choices, best first, and returns how many. `excluded` (may be NULL) holds one flag per
 * node; `rejected` (may be NULL) counts the nodes per reason among those looked at. `random` decides where
 * the sample starts and between equals. */
size_t sched_pick(const struct sched_node *nodes, size_t n, const struct sched_ask *ask,
                  const struct sched_policy *policy, const bool *excluded, uint64_t random,
                  struct sched_choice *out, size_t max, uint32_t rejected[SCHED_REASONS]);

/** Adds to (or takes from) what is known of a node, so that placements in flight are seen before Redis
 * reports them. */
void sched_node_account(struct sched_node *n, const struct sched_ask *ask, int sign);
void sched_node_team_set(struct sched_node *n, uint64_t team, uint32_t count);
