/* A client of cube-node for benchmarks and tests: what a master would ask, without a master. */
#pragma once

#include "lib/net/loop.h"
#include "lib/net/rpc.h"
#include "proto/node.pb-c.h"

struct node_client {
    struct loop *loop;
    struct rpc_creds *creds;
    struct rpc_client *rpc;
    const char *template_id, *run_dir;
    int64_t remaining_ms;
};

/** Connects (at first use) to `address` with the master's key of `key_dir`. Fibers must have been started. */
int node_client_open(struct node_client *c, struct loop *l, const char *address, const char *key_dir,
                     struct err *e);

/** One unary call, in a fiber; the caller frees the reply with protobuf_c_message_free_unpacked. NULL with
 * `e` on failure. */
ProtobufCMessage *node_call(struct node_client *c, const char *method, const ProtobufCMessage *in,
                            const ProtobufCMessageDescriptor *out, struct err *e);

struct node_start {
    const char *id;
    uint64_t gen;
    const char *snapshot_id; /* "" or NULL: none */
    bool restore, reboot, auto_pause;
    uint32_t memory_mib; /* 0 = the template's */
};
int node_start(struct node_client *c, const struct node_start *s, Cube__Node__V1__Receipt *receipt,
               struct err *e);
int node_kill(struct node_client *c, const char *id, uint64_t gen, bool *existed, struct err *e);
int node_pause(struct node_client *c, const char *id, uint64_t gen, bool filesystem_only, int64_t *frozen_us,
               int64_t *durable_us, char snapshot_id[64], struct err *e);
int node_snapshot(struct node_client *c, const char *id, uint64_t gen, const char *snapshot_id,
                  int64_t *frozen_us, struct err *e);

/** Runs a command in the guest through cube-init (blocking); output is cut at `max`. Returns the exit code,
 * or -1. */
int guest_exec(const char *run_dir, const char *id, uint64_t gen, char *const *argv, const char *user,
               char *out, size_t max, struct err *e);
