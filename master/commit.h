/* Proposals to the one committer, `proto/redis/commit.lua`: built field by field, run once. */
#pragma once

#include "master/master.h"
#include "master/record.h"

#define REV_ANY UINT64_MAX /* whatever the record's rev is */
#define REV_NEW 0          /* the record must not exist */

enum commit_outcome {
    COMMIT_OK,
    COMMIT_MISSING,    /* no such record */
    COMMIT_CONFLICT,   /* another rev: state, gen and rev are the record's */
    COMMIT_ILLEGAL,    /* no such transition from the state it is in */
    COMMIT_FULL,       /* the node has no room: resource, have, need */
    COMMIT_CLOSED,     /* the node takes nothing: text says why */
    COMMIT_QUOTA,      /* the team's limit: resource, have = limit, need = used, retry_ms */
    COMMIT_IDEM,       /* the idempotency key is known: text = its value */
    COMMIT_RECOVERING, /* the cell lost its data and is not ready yet */
    COMMIT_FAILED      /* Redis did not answer: it may have happened */
};

struct commit_result {
    enum commit_outcome outcome;
    enum sandbox_state state;
    uint64_t gen, rev;
    char resource[24];
    int64_t have, need, retry_ms;
    char text[160];
};

struct commit {
    struct db_args args;
    struct master *m;
    uint8_t *spec; /* packed, owned */
    bool durable;  /* starts a VM: must survive the failover of Redis */
};

/** Starts a proposal; `to` STATE_NONE changes fields only. Release with commit_end. */
void commit_begin(struct commit *c, struct master *m, const char *id, uint64_t if_rev, enum sandbox_state to,
                  const char *trace);
void commit_end(struct commit *c);
#define _cleanup_commit_ __attribute__((cleanup(commit_end)))

/** Changes the rev it compares with, to run it again. */
void commit_rev(struct commit *c, uint64_t rev);
void commit_opt(struct commit *c, const char *name, const char *value);
void commit_opt_int(struct commit *c, const char *name, int64_t value);
void commit_gen(struct commit *c, uint64_t gen);
void commit_own(struct commit *c); /* this master is the owner of the transient state */
/** A field of the record; "" removes it. Sets `=name`. */
void commit_set(struct commit *c, const char *name, const char *value);
void commit_set_int(struct commit *c, const char *name, int64_t value);
/** A line of the timeline. */
void commit_event(struct commit *c, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Everything of the spec: packed form, fields and index tags. For new records. */
void commit_spec(struct commit *c, const Cube__V1__SandboxSpec *spec);
/** Name of the index of one metadata pair, without prefix and view. */
void commit_tag_metadata(char *out, size_t size, const char *team, const char *key, const char *value);
/** The route of generation `gen`: ticket, digests, policy bits. */
void commit_route(struct commit *c, const Cube__V1__SandboxSpec *spec, uint64_t gen);
/** Reservation asked of the node, with the policy of this master. */
void commit_reserve(struct commit *c, int64_t memory_mib, const struct sched_policy *p);

/** Runs it. `e` is filled for every outcome but COMMIT_OK. */
enum commit_outcome commit_run(struct commit *c, struct commit_result *out, struct err *e);
