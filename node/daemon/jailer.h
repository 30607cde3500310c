/* cube-node's side of the conversation with cube-jailer (proto/jailer.proto): reconnects by itself, and after
 * a reconnect tells what ended meanwhile. */
#pragma once

#include "node/daemon/node.h"
#include "proto/jailer.pb-c.h"

struct jailer;

struct jailer *jailer_new(struct node *n);
bool jailer_connected(const struct jailer *j);

/** Waits until there is a connection; ERR_UNAVAILABLE after `timeout_ms`. */
int jailer_wait(struct jailer *j, int64_t timeout_ms, struct err *e);

struct spawned {
    uint32_t pid;
    uint64_t start_time;
    char socket[108];
    int control_fd; /* the caller's; -1 when the jailer gave none */
};
/** `memory_mib` and `vcpus`: what the waiting process shall prepare for. */
int jailer_spawn(struct jailer *j, const char *name, const Cube__Jailer__V1__Limits *limits,
                 uint32_t memory_mib, uint32_t vcpus, struct spawned *out, struct err *e);
int jailer_kill(struct jailer *j, const char *name, struct err *e);   /* unknown is success */
int jailer_forget(struct jailer *j, const char *name, struct err *e); /* unknown is success */
int jailer_set_limits(struct jailer *j, const char *name, const Cube__Jailer__V1__Limits *limits,
                      struct err *e);
int jailer_make_tap(struct jailer *j, const char *name, int *fd, struct err *e);
int jailer_drop_tap(struct jailer *j, const char *name, struct err *e); /* unknown is success */

/** The name service's sockets, UDP and TCP; the caller's. */
int jailer_dns_sockets(struct jailer *j, int fds[2], struct err *e);

/** The list as the jailer gave it; released by peer_reply_free. */
struct peer_reply;
int jailer_list(struct jailer *j, struct peer_reply *out, const Cube__Jailer__V1__Listed **list,
                struct err *e);
