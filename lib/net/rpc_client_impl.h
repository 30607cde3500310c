/* What rpc_client.c (the connection) and rpc_out.c (the calls) share. */
#pragma once

#include "lib/net/resolve.h"
#include "lib/net/rpc_impl.h"

/** One connection of a client; after a GOAWAY the old one lives on beside the new one until its calls have
 * ended. */
struct client_conn {
    struct rpc_client *client;
    struct rpc_conn *conn;
    struct rpc_out *calls;
    bool ending;
    struct client_conn *next, **prev;
};

enum client_state { CLIENT_IDLE, CLIENT_CONNECTING, CLIENT_READY, CLIENT_WAITING /* between two attempts */ };

struct rpc_client {
    struct loop *loop;
    struct rpc_creds *creds;
    char *address, *expect_node, *node_id;
    enum client_state state;
    struct resolve *resolving;
    h2o_socket_t *connecting;
    struct client_conn *current; /* while CONNECTING in its handshake, while READY for new calls */
    struct client_conn *conns;
    struct rpc_out *queue, **queue_tail; /* calls that wait for the connection, oldest first */
    struct loop_task flush;
    struct loop_timer timer;
    int64_t backoff_ms, failed_ms;
    int busy; /* callbacks of calls run: the object must stay */
    bool freed;
};

struct rpc_out {
    struct rpc_client *client;
    struct client_conn *cc; /* NULL: in the client's queue */
    int32_t stream;
    struct rpc_out *next, **prev;
    char *path;
    char trace[RPC_TRACE_MAX];
    const ProtobufCMessageDescriptor *reply_type;
    int64_t timeout_ms, deadline_us;
    struct loop_timer timer;
    struct rpc_outbuf out;
    struct buf in;
    bool half_closed, cancelled, busy;
    int http_status;
    struct rpc_status status;
    ProtobufCMessage *reply;
    struct err local;

    rpc_reply_cb on_reply;
    void (*on_message)(const ProtobufCMessage *m, void *data);
    void (*on_end)(const struct err *e, void *data);
    void (*on_opened)(struct rpc_out *o, void *data);
    void (*on_upload_end)(const ProtobufCMessage *reply, const struct err *e, void *data);
    void *data;
};

const nghttp2_session_callbacks *rpc_out_callbacks(void);
/** Submits a queued call on the connection. */
void rpc_out_submit(struct rpc_out *o, struct client_conn *cc);
/** Ends a call with an error: the callback is called and the object is freed. */
void rpc_out_fail(struct rpc_out *o, enum err_code code, int sys, const char *why);
/** The peer said GOAWAY, or the connection ended by itself. */
void rpc_client_goaway(struct client_conn *cc);
