/* gRPC on nghttp2 and protobuf-c over the daemon's event loop: unary calls, server streams and client
 * streams, deadlines, trailers, keepalive, reconnect with backoff. Interoperates with @grpc/grpc-js. Messages
 * are capped at 4 MiB before they are unpacked; only identity encoding.
 *
 * Peers prove themselves by mTLS (role in the certificate) or, on loopback and Unix sockets only, by a
 * per-role key that is sent as metadata `cube-role` + `cube-key` (internal.md §4). Certificates name their
 * role and node in the SAN, as URIs cube://role/<role> and cube://node/<id>, and carry the DNS name
 * cube.internal. */
#pragma once

#include "lib/base/err.h"
#include "lib/net/loop.h"

#include <protobuf-c/protobuf-c.h>

/** Roles of peers; a method names those that may call it. */
enum rpc_role {
    RPC_ROLE_NONE = 0,
    RPC_ROLE_API = 1 << 0,
    RPC_ROLE_MASTER = 1 << 1,
    RPC_ROLE_NODE = 1 << 2,
    RPC_ROLE_LIFECYCLE = 1 << 3,
    RPC_ROLE_PROXY = 1 << 4,
    RPC_ROLE_ADMIN = 1 << 5, /* the operator's `cube` command */
    RPC_ROLE_ANY = 0x3f,
};
const char *rpc_role_name(enum rpc_role role);
enum rpc_role rpc_role_parse(const char *name); /* RPC_ROLE_NONE when unknown */

/** How a daemon proves itself and whom it trusts. Key files: one line of 64 hex digits, mode 0600 or 0640,
 * named <dir>/<role>.key. With `ca`, `cert` and `key` TLS is used and required. */
struct rpc_auth {
    enum rpc_role role;
    const char *key_dir;         /* per-role key files; NULL when TLS is used */
    const char *ca, *cert, *key; /* PEM paths, or NULL */
};
struct rpc_creds;
/** Loads keys or certificates once; shared by servers and clients of the process. A server needs the keys of
 * all roles that its methods allow; a missing file means that role cannot call. */
struct rpc_creds *rpc_creds_load(const struct rpc_auth *auth, struct err *e);
void rpc_creds_free(struct rpc_creds *c); /* after all servers and clients that use it */

/* ---- server ---- */

struct rpc_call; /* one call on the server; lives until it was answered, failed, or its `closed` was called */

struct rpc_method {
    const char *path; /* "/cube.master.v1.Sandboxes/Create" */
    const ProtobufCMessageDescriptor *in, *out;
    unsigned roles;     /* or of rpc_role; others get PERMISSION_DENIED; 0 = anybody, without credentials */
    bool client_stream; /* on_message is called per message, on_end at half-close */
    /** Unary and server stream: called once with the request (owned by the caller; copy what you keep).
     *  Client stream: called once at the start with `in` NULL. */
    void (*start)(struct rpc_call *c, const ProtobufCMessage *in, void *service);
};

/** Every call ends with exactly one of rpc_reply (unary and client stream), rpc_finish (server stream) or
 * rpc_fail, at any later time. After that, or after `closed`, the pointer is dead. Who sets no `closed` may
 * (and must) still end a call whose caller went away: the answer is dropped then. */
void rpc_reply(struct rpc_call *c, const ProtobufCMessage *out);
void rpc_fail(struct rpc_call *c, const struct err *e);
/** Server stream: queues one message; returns false when more than 1 MiB waits (stop until `drained`). */
bool rpc_send(struct rpc_call *c, const ProtobufCMessage *out);
void rpc_finish(struct rpc_call *c);
/** The caller cancelled, its deadline passed or the connection broke: no answer is possible any more. */
void rpc_on_closed(struct rpc_call *c, void (*closed)(struct rpc_call *c, void *data), void *data);
void rpc_on_drained(struct rpc_call *c, void (*drained)(struct rpc_call *c, void *data), void *data);
/** Client stream: messages and half-close. */
void rpc_on_message(struct rpc_call *c,
                    void (*message)(struct rpc_call *c, const ProtobufCMessage *in, void *data),
                    void (*end)(struct rpc_call *c, void *data), void *data);
/** Who called: role, and for nodes the node ID of the certificate or of metadata `cube-node` (key auth). */
enum rpc_role rpc_peer_role(struct rpc_call *c);
const char *rpc_peer_node(struct rpc_call *c); /* "" when none */
const char *rpc_trace(struct rpc_call *c);     /* W3C traceparent of the caller, or "" */
int64_t rpc_remaining_ms(struct rpc_call *c);  /* until the caller's deadline; INT64_MAX when none */

struct rpc_server;
struct rpc_server *rpc_server_new(struct loop *l, struct rpc_creds *creds);
/** `methods` ends with a zero path and is kept, not copied. grpc.health.v1.Health is served by itself. */
void rpc_server_add(struct rpc_server *s, const struct rpc_method *methods, void *service);
int rpc_server_listen(struct rpc_server *s, const char *address,
                      struct err *e);                            /* plaintext off loopback is refused */
int rpc_server_port(struct rpc_server *s);                       /* the port in use, or -1 */
void rpc_server_set_serving(struct rpc_server *s, bool serving); /* what Health answers */
void rpc_server_drain(struct rpc_server *s, void (*done)(void *data),
                      void *data); /* GOAWAY, finish calls, then done */
void rpc_server_free(struct rpc_server *s);

/* ---- client ---- */

struct rpc_client; /* one connection to one address, kept up by itself: connects at first use, reconnects with
                      backoff (50 ms … 2 s), keepalive PING every 20 s */
struct rpc_client *rpc_client_new(struct loop *l, struct rpc_creds *creds, const char *address,
                                  const char *expect_node /* node ID to verify, or NULL */);
void rpc_client_set_node(struct rpc_client *c,
                         const char *node_id); /* sent as `cube-node` by nodes under key auth */
void rpc_client_free(struct rpc_client *c);    /* open calls end with ERR_CANCELLED before it returns */
const char *rpc_client_address(struct rpc_client *c);

struct rpc_out; /* one call of the client */
/** Answer of a unary call: `reply` (freed after the callback) or, when NULL, why not. `e->code` is restored
 * from the metadata `cube-error-code` when the peer is ours. A call that was never sent fails with
 * ERR_UNAVAILABLE and e->sys = ECONNREFUSED, so that the caller may safely try another peer. */
typedef void (*rpc_reply_cb)(const ProtobufCMessage *reply, const struct err *e, void *data);
struct rpc_out *rpc_unary(struct rpc_client *c, const char *path, const ProtobufCMessage *in,
                          const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
                          rpc_reply_cb cb, void *data);
/** The same for a message that is packed already (one that may have to be sent again). */
struct rpc_out *rpc_unary_packed(struct rpc_client *c, const char *path, const uint8_t *packed, size_t n,
                                 const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
                                 rpc_reply_cb cb, void *data);
/** Server stream: `message` per message, then `end` once (`e` NULL on OK). */
struct rpc_out *rpc_stream(struct rpc_client *c, const char *path, const ProtobufCMessage *in,
                           const ProtobufCMessageDescriptor *out, int64_t timeout_ms,
                           void (*message)(const ProtobufCMessage *m, void *data),
                           void (*end)(const struct err *e, void *data), void *data);
/** Client stream: `opened` when the stream is up, then rpc_out_send; `end` once when the peer ends it or the
 * connection breaks. */
struct rpc_out *rpc_upload(struct rpc_client *c, const char *path, const ProtobufCMessageDescriptor *out,
                           void (*opened)(struct rpc_out *o, void *data),
                           void (*end)(const ProtobufCMessage *reply, const struct err *e, void *data),
                           void *data);
bool rpc_out_send(
    struct rpc_out *o,
    const ProtobufCMessage *m); /* false: more than 1 MiB waits; the message was queued all the same */
void rpc_out_half_close(struct rpc_out *o);
void rpc_out_cancel(struct rpc_out *o); /* no callback follows */
