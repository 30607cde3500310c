/* Owns the numbers that cube-master shows on its admin port. */
#include "master/stats.h"

#define COUNTER(metric, label_text, text)                                                                    \
    {                                                                                                        \
        .name = metric, .labels = label_text, .help = text, .kind = METRIC_COUNTER                           \
    }

#define COMMITS "cube_master_commits_total"
#define COMMITS_HELP "proposals to the committer by outcome"
static struct metric commits[COMMIT_FAILED + 1] = {
    [COMMIT_OK] = COUNTER(COMMITS, "outcome=\"ok\"", COMMITS_HELP),
    [COMMIT_MISSING] = COUNTER(COMMITS, "outcome=\"missing\"", COMMITS_HELP),
    [COMMIT_CONFLICT] = COUNTER(COMMITS, "outcome=\"conflict\"", COMMITS_HELP),
    [COMMIT_ILLEGAL] = COUNTER(COMMITS, "outcome=\"illegal\"", COMMITS_HELP),
    [COMMIT_FULL] = COUNTER(COMMITS, "outcome=\"full\"", COMMITS_HELP),
    [COMMIT_CLOSED] = COUNTER(COMMITS, "outcome=\"closed\"", COMMITS_HELP),
    [COMMIT_QUOTA] = COUNTER(COMMITS, "outcome=\"quota\"", COMMITS_HELP),
    [COMMIT_IDEM] = COUNTER(COMMITS, "outcome=\"idempotent\"", COMMITS_HELP),
    [COMMIT_RECOVERING] = COUNTER(COMMITS, "outcome=\"recovering\"", COMMITS_HELP),
    [COMMIT_FAILED] = COUNTER(COMMITS, "outcome=\"unanswered\"", COMMITS_HELP),
};
static struct metric creates[2] = {
    COUNTER("cube_master_creates_total", "result=\"failed\"", "creates"),
    COUNTER("cube_master_creates_total", "result=\"ok\"", "creates"),
};
static struct metric starts[2] = {
    COUNTER("cube_master_node_starts_total", "result=\"failed\"", "starts asked of nodes"),
    COUNTER("cube_master_node_starts_total", "result=\"ok\"", "starts asked of nodes"),
};
static struct metric create_us = {
    .name = "cube_master_create_us", .help = "duration of a create", .kind = METRIC_HISTOGRAM};
static struct metric start_us = {
    .name = "cube_master_node_start_us", .help = "duration of a start on a node", .kind = METRIC_HISTOGRAM};
static struct metric reconciled =
    COUNTER("cube_master_reconciled_total", NULL, "records brought back in line with their node");
static struct metric not_replicated =
    COUNTER("cube_master_not_replicated_total", NULL, "commits that no replica of Redis confirmed in time");
static struct metric cell_state = {
    .name = "cube_master_cell_state", .help = "0 Redis is away, 1 recovering, 2 ready", .kind = METRIC_GAUGE};

void stats_register(void)
{
    for (int i = 0; i <= COMMIT_FAILED; i++)
        metric_register(&commits[i]);
    for (int i = 0; i < 2; i++) {
        metric_register(&creates[i]);
        metric_register(&starts[i]);
    }
    struct metric *single[] = {&create_us, &start_us, &reconciled, &not_replicated, &cell_state};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        metric_register(single[i]);
}

void stats_commit(enum commit_outcome outcome)
{
    metric_add(&commits[outcome], 1);
}

void stats_create(bool ok, int64_t took_us)
{
    metric_add(&creates[ok], 1);
    metric_observe_us(&create_us, took_us);
}

void stats_node_start(bool ok, int64_t took_us)
{
    metric_add(&starts[ok], 1);
    metric_observe_us(&start_us, took_us);
}

void stats_reconciled(void)
{
    metric_add(&reconciled, 1);
}

void stats_not_replicated(void)
{
    metric_add(&not_replicated, 1);
}

void stats_cell(int state)
{
    metric_set(&cell_state, state);
}
