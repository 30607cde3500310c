/* Connect RPC over one HTTP exchange: unary, server stream, client stream; JSON and binary codecs. */
#pragma once

#include "guest/envd/codec.h"
#include "guest/envd/conn.h"
#include "guest/common/users.h"

/** Connect error codes; the numbers are gRPC's, the table in rpc.c has name and HTTP status (contracts/e2b.md
 * §4.1). */
enum rpc_code {
    RPC_CANCELED = 1,
    RPC_UNKNOWN,
    RPC_INVALID_ARGUMENT,
    RPC_DEADLINE_EXCEEDED,
    RPC_NOT_FOUND,
    RPC_ALREADY_EXISTS,
    RPC_PERMISSION_DENIED,
    RPC_RESOURCE_EXHAUSTED,
    RPC_FAILED_PRECONDITION,
    RPC_ABORTED,
    RPC_OUT_OF_RANGE,
    RPC_UNIMPLEMENTED,
    RPC_INTERNAL,
    RPC_UNAVAILABLE,
    RPC_DATA_LOSS,
    RPC_UNAUTHENTICATED,
};

enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_CLIENT_STREAM };

struct rpc;

struct rpc_method {
    const char *path; /* "/process.Process/Start" */
    enum rpc_kind kind;
    const struct message *request;
    /** Unary and server stream: called once with the request. Client stream: called once with NULL, then
     * `on_message`. */
    void (*handle)(struct rpc *r, void *request);
};

/** One call; lives in the request's arena. */
struct rpc {
    struct conn *c;
    const struct rpc_method *method;
    enum codec codec;
    bool started, ended;
    bool gzip;             /* the request (unary), or envelopes that say so (streams), are compressed */
    int64_t timeout_ms;    /* Connect-Timeout-Ms, -1 = none */
    int64_t keepalive_ms;  /* Keepalive-Ping-Interval */
    struct buf partial;    /* client stream: envelopes that were not handed on yet */
    struct arena messages; /* client stream: the message being handled */
    size_t kept;           /* client stream: bytes of a message that its handler still needs (rpc_keep) */
    bool pumping;          /* client stream: messages are being handed on */
    bool end_seen;         /* client stream: the request's body is over */
    void (*on_message)(struct rpc *r, void *message);
    void (*on_end)(struct rpc *r);
    void (*on_gone)(struct rpc *r); /* the client left before the end */
    void (*on_drain)(struct rpc *r);
    void *user;
};

/** The connection's route handlers for RPC paths (one per kind). */
void rpc_handle(struct conn *c);
const struct rpc_method *rpc_find(const char *path);

/** Answers an error: HTTP status and JSON for unary calls, an end envelope for streams. */
void rpc_fail(struct rpc *r, enum rpc_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/** The message of a unary or client-stream answer; `n` 0 with a NULL `p` is the empty message. */
void rpc_reply(struct rpc *r, const void *p, size_t n);
void rpc_reply_buf(struct rpc *r, struct buf *b);

/** Begins the response of a server stream (headers leave at once). */
void rpc_begin(struct rpc *r);

/** One message of a stream. */
void rpc_message(struct rpc *r, const void *p, size_t n);

/** Room for one stream message of exactly n bytes in the socket's buffer (NULL = gone); then `rpc_room_end`.
 */
char *rpc_room(struct rpc *r, size_t n);
void rpc_room_end(struct rpc *r);

/** Client stream: no more messages until resumed; a message's memory is valid only inside `on_message`. */
void rpc_pause(struct rpc *r);
void rpc_resume(struct rpc *r);

/** Client stream: the handler keeps n bytes of its client's; false, after having answered, when all
 * connections together keep too many. */
bool rpc_keep(struct rpc *r, size_t n);

/** Ends a stream well. */
void rpc_end(struct rpc *r);

/** The user of the call. Returns 0, or -1 after having answered. */
int rpc_user(struct rpc *r, struct user *out);

/** The code that fits an errno. */
enum rpc_code rpc_code_of(int sys);
