/* The nodes as this master knows them: followed in Redis, so that every master sees every node. */
#pragma once

#include "master/master.h"
#include "master/record.h"

struct node {
    char id[NODE_ID_MAX + 1], rpc[128], relay[128], status[16];
    Cube__Master__V1__RegisterRequest *info; /* as it registered; owned, may be NULL */
    bool cordoned, draining, pressure, unfit;
    bool relieving; /* a fiber pauses idle sandboxes of it, because of its memory pressure */
    bool removed;   /* by the operator; its place stays, because placements under way count by it */
    int64_t report_ms, full_ms; /* last report, last full report that was dealt with */
    Cube__Master__V1__Capacity capacity;
    char *template_names; /* joined by newlines; owned */
    uint64_t *templates;  /* owned, sorted */
    struct rpc_client *client;
};

struct fleet {
    struct master *m;
    struct node **nodes;
    struct sched_node *sched; /* same index as `nodes` */
    size_t n, cap;
    int64_t version;
    struct loop_timer poll;
    bool polling;
};

struct fleet *fleet_new(struct master *m);
/** Follows Redis from now on; `lost` is called in a fiber for each node whose reports stopped (by one master
 * only). */
void fleet_start(struct fleet *f, void (*lost)(struct master *m, const char *node));
/** Reads what changed at once; only inside a fiber. */
void fleet_refresh(struct fleet *f);
/** Forgets all nodes' versions after a loss of data; clients stay. */
void fleet_reset(struct fleet *f);

struct node *fleet_find(struct fleet *f, const char *id); /* NULL when unknown */
bool fleet_node_ready(const struct node *n);
struct sched_policy fleet_policy(const struct master *m);

/** One call to a node, inside a fiber. ERR_UNAVAILABLE when it is unknown or away. */
int node_call(struct master *m, const char *node, const char *path, const ProtobufCMessage *in,
              const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
              ProtobufCMessage **reply, struct err *e);
