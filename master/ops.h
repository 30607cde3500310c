/* What the master does with sandboxes: each function is one operation from the first look to the last commit.
 * They run in fibers, return 0 or -1 with `e`, and leave no transient state behind without an owner. */
#pragma once

#include "master/commit.h"
#include "master/fleet.h"
#include "master/record.h"
#include "proto/node.pb-c.h"

/** Reads a record; ERR_NOT_FOUND when it does not exist or belongs to another team (`team` "" = any). */
int op_load(struct master *m, const char *id, const char *team, struct record *out, struct err *e);

/** Creates, places and starts; `out` is the running record. `req` is changed (IDs, limits), and `out`
 *  takes its spec over. */
int op_create(struct master *m, Cube__Master__V1__CreateRequest *req, const char *trace, struct record *out,
              struct err *e);

/** From any state; ERR_NOT_FOUND when it is gone or going already. Returns once the node confirmed or 5 s
 * have passed; the rest goes on behind. */
int op_kill(struct master *m, const char *id, const char *team, uint64_t if_rev, const char *reason,
            const char *trace, struct err *e);
/** Goes on with a sandbox in `killing`: until the node confirmed, else a tombstone after the state's
 * deadline. */
void op_kill_finish(struct master *m, const struct record *r);

int op_pause(struct master *m, const Cube__Master__V1__PauseRequest *req, const char *trace,
             struct record *out, struct err *e);
int op_resume(struct master *m, const Cube__Master__V1__ResumeRequest *req, const char *trace,
              struct record *out, bool *resumed, struct err *e);
int op_deadline(struct master *m, const Cube__Master__V1__SetDeadlineRequest *req, struct record *out,
                struct err *e);

/** An operation that failed because its sandbox was ended meanwhile says that (ERR_NOT_FOUND), and not what
 * the node met: `e` is replaced when the sandbox is gone. */
void op_ended_meanwhile(struct master *m, const char *id, struct err *e);

/** Brings a transient record that lost its owner to a stable state by the node's truth. In a fiber of its
 * own. */
void op_reconcile(struct master *m, const char *id);
void op_reconcile_later(struct master *m, const char *id);

/** Tells a node to drop what it runs of this sandbox up to `gen`; in a fiber of its own, once. */
void node_drop_later(struct master *m, const char *node, const char *id, uint64_t gen, const char *reason);

/** Runs a commit out of a transient state of this fiber: goes on over lost answers of Redis (5 s) and over
 * changes of the record that left state and generation alone. COMMIT_OK also when it turns out to have
 * happened. */
enum commit_outcome commit_settle(struct commit *c, const struct record *r, enum sandbox_state to,
                                  struct commit_result *out, struct err *e);

/** Remaining milliseconds until `end_ms` for a node; 0 when it passed, and a year when there is none. */
int64_t remaining_ms(struct master *m, int64_t end_ms);

/** One template by name as the team sees it; the message is owned by the caller. */
int catalog_template(struct master *m, const char *team, const char *name, Cube__Master__V1__Template **out,
                     struct err *e);

int catalog_team(struct master *m, const char *id, Cube__Master__V1__Team **out, struct err *e);
int catalog_put_template(struct master *m, Cube__Master__V1__Template *t, struct err *e);
/** Whether the team may have one more snapshot; ERR_RATE_LIMITED when not. */
int catalog_snapshot_room(struct master *m, const char *team, struct err *e);

/** Templates, or snapshots, of a team ("" = all), newest first. Release with catalog_list_free. */
struct catalog_list {
    bool snapshots;
    Cube__Master__V1__Template **v;
    size_t n;
};
int catalog_list(struct master *m, const char *team, struct catalog_list *l, struct err *e);
void catalog_list_free(struct catalog_list *l);

/** Tells a node to delete a snapshot's files; in a fiber of its own, and again until the node has done it. */
void snapshot_drop_later(struct master *m, const char *node, const char *id);

/** The files of snapshots that are to be deleted: one more, not before `at`, unless the catalog has it then;
 * it is done; those that are due (from the sweeper's fiber). */
int drops_note(struct master *m, const char *node, const char *id, int64_t at, struct err *e);
void drops_done(struct master *m, const char *node, const char *id);
void drops_sweep(struct master *m);

/** The snapshots that forks make: the fork is done with this one; and those that no sandbox needs any more
 * are deleted (from the sweeper's fiber). */
void forks_done(struct master *m, const char *snapshot);
void forks_sweep(struct master *m);

/** Operations on a running sandbox. The snapshot's template is owned by the caller. */
int op_snapshot(struct master *m, const Cube__Master__V1__SnapshotRequest *req, bool fork, const char *trace,
                Cube__Master__V1__Template **out, struct err *e);
int op_rollback(struct master *m, const Cube__Master__V1__RollbackRequest *req, const char *trace,
                struct record *out, struct err *e);
int op_network(struct master *m, const Cube__Master__V1__UpdateNetworkRequest *req, struct record *out,
               struct err *e);

/** Whether a node's answer to Start or Restore is one to this generation, and sane. If not,
 * ERR_UNAVAILABLE: what the node really did is to be asked. */
int ops_reply_check(const Cube__Node__V1__StartReply *reply, uint64_t gen, struct err *e);

int64_t ops_initial_memory(const struct master *m,
                           const Cube__V1__Limits *l); /* MiB to reserve for a new VM */
