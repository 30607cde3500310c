/* A sandbox as the node knows it: what it shall be, its state, its VM, and the operations on it. Operations
 * run in fibers, one at a time per sandbox. */
#pragma once

#include "lib/net/fiber.h"
#include "node/daemon/node.h"
#include "node/daemon/vm.h"
#include "proto/node.pb-c.h"

#define SB_STATE(name) CUBE__V1__SANDBOX_STATE__##name
typedef Cube__V1__SandboxState sandbox_state;

struct sandbox {
    struct node *node;
    char id[22];
    Cube__V1__SandboxSpec *spec; /* owned */
    uint64_t gen;
    sandbox_state state;
    int64_t deadline_boot_ms; /* CLOCK_BOOTTIME; 0 = none */
    int64_t started_ms, ended_ms;
    char reason[200];
    char snapshot_id[64]; /* of a paused sandbox */
    char source[96];      /* store artifact that it runs from */
    char default_user[33], default_workdir[256];
    char envd_version[16], isolation[16];
    struct vm *vm;
    struct fiber_lock op;
    unsigned users; /* fibers that wait with it but without `op`: it is not forgotten before they are done */
    bool kill_wanted; /* a running operation shall give up */
    bool acting;      /* the node itself is applying the timeout action, and is a user */
    bool settled;     /* over, and a master knows: it said so itself */
    bool changed;     /* differs from what the masters were told */
    bool healthy;
    int64_t last_answer_ms, last_activity_ms;
    uint32_t open_streams, cpu_milli, oom_kills;
    const char *awake;    /* why it counts as active now, or "" */
    bool filesystem_only; /* of its pause */
    uint64_t rss_mib;
    struct eventlog *log;
    struct samples *samples;
    struct sandbox *next; /* in its bucket */
};

struct sandboxes; /* the table */
struct sandboxes *sandboxes_new(void);
struct sandbox *sandbox_find(struct node *n, const char *id);
/** Every sandbox, ended ones that are still remembered included. The table may not change meanwhile. */
void sandbox_each(struct node *n, void (*visit)(struct sandbox *sb, void *data), void *data);
unsigned sandbox_live_count(struct node *n);

/** A new one in the table, with a copy of `spec`. */
struct sandbox *sandbox_new(struct node *n, const Cube__V1__SandboxSpec *spec);
void sandbox_set_spec(struct sandbox *sb, const Cube__V1__SandboxSpec *spec); /* copied */
void sandbox_free(struct sandbox *sb);          /* out of the table, memory only */
bool sandbox_is_live(const struct sandbox *sb); /* may have a VM */
bool sandbox_is_over(const struct sandbox *sb); /* killed, failed or lost: only remembered */

/** Refuses a command for another generation than this one: -1 with ERR_STALE_GENERATION, which names both. */
int sandbox_stale(const struct sandbox *sb, uint64_t gen, struct err *e);

/** The only function that changes `state`: writes the record and tells the masters. */
int sandbox_set_state(struct sandbox *sb, sandbox_state state, const char *reason, struct err *e);
/** Takes the state for the table at once; the record must follow with `sandbox_set_state` before anybody is
 * told. */
void sandbox_enter(struct sandbox *sb, sandbox_state state);
/** Writes the record as it is now; `durable` waits for the disk. */
int sandbox_save(struct sandbox *sb, bool durable, struct err *e);

/** Remaining milliseconds from now; < 0 leaves the deadline as it is, 0 is "at once". */
void sandbox_set_deadline(struct sandbox *sb, int64_t remaining_ms);

/* ---- operations, in a fiber ---- */
int sandbox_start(struct node *n, const Cube__Node__V1__StartRequest *req, bool restore,
                  Cube__Node__V1__Receipt *receipt, struct sandbox **out, struct err *e);
int sandbox_kill(struct node *n, const char *id, uint64_t gen, const char *reason, bool *existed,
                 struct err *e);
int sandbox_pause(struct node *n, const Cube__Node__V1__PauseRequest *req, Cube__Node__V1__PauseReply *out,
                  char snapshot_id[64], struct err *e);
int sandbox_snapshot(struct node *n, const Cube__Node__V1__SnapshotRequest *req, char snapshot_id[64],
                     int64_t *frozen_us, struct err *e);

int snapshot_delete(struct node *n, const char *snapshot_id, bool *existed, struct err *e);

/** Forgets the pause that a resume has used up: removes its snapshot from the store, behind the answer. */
void sandbox_drop_pause(struct sandbox *sb);

/** Its VM ended without being asked to. From a callback. */
void sandbox_on_vm_end(struct sandbox *sb);
