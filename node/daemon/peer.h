/* One conversation of requests and replies with a local process: the jailer and a VMM over SEQPACKET (one
 * protobuf message per datagram, descriptors by SCM_RIGHTS), or the guest's cube-init over a stream of
 * length-prefixed messages (internal.md §6, proto/{jailer,vmm,init}.proto). */
#pragma once

#include "lib/net/loop.h"

#include <protobuf-c/protobuf-c.h>

#define PEER_MAX_FDS 16
#define PEER_MAX_MESSAGE (1u << 20)

enum peer_framing { PEER_PACKET, PEER_STREAM };

struct peer_config {
    const char *name; /* for messages: "jailer", "vmm i1234…" (copied) */
    enum peer_framing framing;
    const ProtobufCMessageDescriptor *reply;              /* has id = 1, error_code = 2, error = 3 */
    void (*event)(const ProtobufCMessage *m, void *data); /* a reply with id 0; may be NULL */
    void (*closed)(void *data); /* the other end went away, or spoke garbage; may be NULL */
    void *data;
};

struct peer;

/** A reply: `message` is released by `peer_reply_free`, which also closes the descriptors that were not
 * taken. */
struct peer_reply {
    ProtobufCMessage *message;
    int fds[PEER_MAX_FDS];
    int fd_count;
};
void peer_reply_free(struct peer_reply *r);
#define _cleanup_reply_ __attribute__((cleanup(peer_reply_free)))

/** Takes over the connected descriptor. */
struct peer *peer_new(struct loop *l, int fd, const struct peer_config *cfg);

/** Calls end with ERR_UNAVAILABLE; `closed` is not called. */
void peer_free(struct peer *p);
bool peer_is_closed(const struct peer *p);

/** Sends a request (its `id`, field 1, is set here) and waits in the calling fiber. An answer with an error
 * code becomes `e`. `out` may be NULL. Errors: ERR_UNAVAILABLE (the peer went away), ERR_DEADLINE, or the
 * peer's. */
int peer_call(struct peer *p, ProtobufCMessage *request, const int *fds, int fd_count, int64_t timeout_ms,
              struct peer_reply *out, struct err *e);
