/* The scheduler by its outcome: what is refused and why, and how a simulated fleet looks after many
 * placements. */
#include "master/scheduler.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FLEET 300

static const struct sched_policy policy = {
    .ratio_memory = 4000,
    .ratio_cpu = 8000,
    .weights = {.template_local = 40, .warm = 20, .room = 60, .spread = 30, .sample = 48}};

static struct sched_node node_make(void)
{
    return (struct sched_node){.cap_memory = 65536, .cap_cpu = 16000, .healthy = true, .class_hash = 7};
}

static struct sched_ask ask_make(void)
{
    return (struct sched_ask){.memory = 128,
                              .nominal = 512,
                              .cpu = 1000,
                              .template_hash = sched_hash("tpl"),
                              .team_hash = sched_hash("t")};
}

static enum sched_reject only_reason(struct sched_node n, struct sched_ask a)
{
    struct sched_choice c;
    uint32_t rejected[SCHED_REASONS];
    if (sched_pick(&n, 1, &a, &policy, NULL, 1, &c, 1, rejected))
        return SCHED_FITS;
    for (int i = 1; i < SCHED_REASONS; i++)
        if (rejected[i])
            return (enum sched_reject)i;
    return SCHED_REASONS;
}

static void test_filters(void **state)
{
    (void)state;
    struct sched_node n = node_make();
    struct sched_ask a = ask_make();
    assert_int_equal(only_reason(n, a), SCHED_FITS);
    n.healthy = false;
    assert_int_equal(only_reason(n, a), SCHED_UNHEALTHY);
    n = node_make(), n.cordoned = true;
    assert_int_equal(only_reason(n, a), SCHED_CORDONED);
    n = node_make(), n.draining = true;
    assert_int_equal(only_reason(n, a), SCHED_DRAINING);
    n = node_make(), n.pressure = true;
    assert_int_equal(only_reason(n, a), SCHED_PRESSURE);
    n = node_make(), n.unfit = true;
    assert_int_equal(only_reason(n, a), SCHED_UNFIT);
    n = node_make(), a.class_hash = 8;
    assert_int_equal(only_reason(n, a), SCHED_CLASS);
    a = ask_make(), a.labels[0] = 5, a.label_count = 1;
    assert_int_equal(only_reason(n, a), SCHED_LABEL);
    n.labels[0] = 4, n.labels[1] = 5, n.label_count = 2;
    assert_int_equal(only_reason(n, a), SCHED_FITS);
    n = node_make(), a = ask_make(), n.cap_count = 3, n.reserved_count = 3;
    assert_int_equal(only_reason(n, a), SCHED_SANDBOXES);
    n = node_make(), n.reserved_memory = 65536 - 127;
    assert_int_equal(only_reason(n, a), SCHED_MEMORY);
    n = node_make(), n.reserved_nominal = 4 * 65536 - 511; /* the hard overcommit ratio */
    assert_int_equal(only_reason(n, a), SCHED_MEMORY);
    n = node_make(), n.reserved_cpu = 8 * 16000 - 999;
    assert_int_equal(only_reason(n, a), SCHED_CPU);
    assert_string_equal(sched_reject_name(SCHED_CPU), "cpu");
    bool excluded = true;
    struct sched_choice c;
    n = node_make();
    assert_int_equal(sched_pick(&n, 1, &a, &policy, &excluded, 1, &c, 1, NULL), 0);
    assert_int_equal(sched_pick(NULL, 0, &a, &policy, NULL, 1, &c, 1, NULL), 0);
}

static void test_same_arguments_same_answer(void **state)
{
    (void)state;
    struct sched_node nodes[50];
    struct sched_ask a = ask_make();
    for (int i = 0; i < 50; i++) {
        nodes[i] = node_make();
        nodes[i].reserved_memory = (i * 7919) % 60000;
    }
    for (uint64_t r = 0; r < 100; r++) {
        struct sched_choice x[3], y[3];
        assert_int_equal(sched_pick(nodes, 50, &a, &policy, NULL, r, x, 3, NULL), 3);
        assert_int_equal(sched_pick(nodes, 50, &a, &policy, NULL, r, y, 3, NULL), 3);
        assert_memory_equal(x, y, sizeof x);
        assert_true(x[0].score >= x[1].score && x[1].score >= x[2].score);
    }
}

/* Places `count` sandboxes on a fleet where every tenth node holds the template. */
struct outcome {
    size_t placed, local;
    int64_t least, most;
};

static struct outcome fleet_fill(struct sched_node *nodes, size_t n, size_t count, size_t teams, size_t every)
{
    static uint64_t template[1];
    struct outcome o = {.least = INT64_MAX};
    struct sched_ask a = ask_make();
    template[0] = a.template_hash;
    for (size_t i = 0; i < n; i++) {
        nodes[i] = node_make();
        if (every && i % every == 0) {
            nodes[i].templates = template;
            nodes[i].template_count = 1;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct sched_choice c;
        char team[16];
        snprintf(team, sizeof team, "team%zu", i % teams);
        a.team_hash = sched_hash(team);
        if (!sched_pick(nodes, n, &a, &policy, NULL, i * 2654435761u, &c, 1, NULL))
            break;
        sched_node_account(&nodes[c.node], &a, 1);
        o.placed++;
        o.local += c.template_local;
    }
    for (size_t i = 0; i < n; i++) {
        if (nodes[i].reserved_count < o.least)
            o.least = nodes[i].reserved_count;
        if (nodes[i].reserved_count > o.most)
            o.most = nodes[i].reserved_count;
    }
    return o;
}

static void test_spread_over_equal_nodes(void **state)
{
    (void)state;
    static struct sched_node nodes[FLEET];
    struct outcome o = fleet_fill(nodes, FLEET, 15000, 20, 1);
    print_message("15000 sandboxes on %d equal nodes: %" PRId64 " to %" PRId64 " per node\n", FLEET, o.least,
                  o.most);
    assert_int_equal(o.placed, 15000);
    assert_true(o.most - o.least <= 20); /* 50 on average */
    assert_true(o.least >= 40);
}

static void test_a_team_is_spread(void **state)
{
    (void)state;
    static struct sched_node nodes[FLEET];
    struct outcome o = fleet_fill(nodes, FLEET, 600, 1, 1);
    print_message("600 sandboxes of one team on %d nodes: %" PRId64 " to %" PRId64 " per node\n", FLEET,
                  o.least, o.most);
    assert_true(o.most <= 4);
}

static void test_template_hits(void **state)
{
    (void)state;
    static struct sched_node nodes[FLEET];
    struct outcome o = fleet_fill(nodes, FLEET, 1000, 20, 10);
    print_message("template on every tenth node: %zu of %zu placed where it is\n", o.local, o.placed);
    assert_true(o.local >= o.placed * 95 / 100);
    /* But not at any price: nodes with the template fill up, and the rest of the fleet is used too. */
    o = fleet_fill(nodes, FLEET, FLEET * 100, 20, 10);
    assert_int_equal(o.placed, FLEET * 100);
    assert_true(o.least > 50);
}

static void test_all_room_is_used_and_nothing_oversold(void **state)
{
    (void)state;
    static struct sched_node nodes[FLEET];
    struct outcome o = fleet_fill(nodes, FLEET, 1000000, 50, 3);
    /* CPU is the scarce one here: 16 cores × 8 = 128 sandboxes of one vCPU. */
    assert_int_equal(o.placed, FLEET * 128);
    assert_int_equal(o.least, 128);
    assert_int_equal(o.most, 128);
}

/* Large sandboxes must still find a place when many small ones came before: no starvation by fragmentation
 * below 70 % use. */
static void test_large_ones_do_not_starve(void **state)
{
    (void)state;
    static struct sched_node nodes[FLEET];
    fleet_fill(nodes, FLEET, FLEET * 128 * 7 / 10, 50, 3);
    struct sched_ask big = ask_make();
    big.memory = 8192, big.nominal = 32768, big.cpu = 16000;
    size_t placed = 0;
    for (size_t i = 0; i < 200; i++) {
        struct sched_choice c;
        if (!sched_pick(nodes, FLEET, &big, &policy, NULL, i * 977, &c, 1, NULL))
            break;
        sched_node_account(&nodes[c.node], &big, 1);
        placed++;
    }
    assert_int_equal(placed, 200);
}

static void test_teams_beyond_the_table(void **state)
{
    (void)state;
    struct sched_node n = node_make();
    for (int i = 0; i < 3 * SCHED_TEAMS; i++) {
        struct sched_ask a = ask_make();
        char team[16];
        snprintf(team, sizeof team, "x%d", i);
        a.team_hash = sched_hash(team);
        sched_node_account(&n, &a, 1);
    }
    assert_int_equal(n.reserved_count, 3 * SCHED_TEAMS);
    struct sched_ask a = ask_make();
    sched_node_account(&n, &a, -1);
    assert_int_equal(n.reserved_count, 3 * SCHED_TEAMS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_same_arguments_same_answer),
        cmocka_unit_test(test_spread_over_equal_nodes),
        cmocka_unit_test(test_a_team_is_spread),
        cmocka_unit_test(test_template_hits),
        cmocka_unit_test(test_all_room_is_used_and_nothing_oversold),
        cmocka_unit_test(test_large_ones_do_not_starve),
        cmocka_unit_test(test_teams_beyond_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
