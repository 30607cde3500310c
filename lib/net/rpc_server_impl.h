/* What rpc_server.c (listeners, connections, drain) and rpc_call.c (the calls) share. */
#pragma once

#include "lib/net/rpc_impl.h"

struct service {
    const struct rpc_method *methods;
    void *data;
    struct service *next;
};

struct server_conn {
    struct rpc_server *server;
    struct rpc_conn *conn;
    struct rpc_call *calls;
    struct server_conn *next, **prev;
};

struct rpc_server {
    struct loop *loop;
    struct rpc_creds *creds;
    struct service *services;
    struct server_conn *conns;
    struct listener {
        struct loop_listener *listener;
        struct listener *next;
    } * listeners;
    struct rpc_health *health;
    bool draining;
    void (*drained)(void *data);
    void *drained_data;
};

struct rpc_call {
    struct server_conn *sc; /* NULL when the stream is gone */
    struct loop *loop;
    int32_t stream;
    struct rpc_call *next, **prev;
    const struct rpc_method *method;
    void *service;

    char path[96], trace[RPC_TRACE_MAX], key[65], node[RPC_NODE_MAX];
    enum rpc_role claimed, role;
    bool is_post, is_grpc, encoded;
    int64_t timeout_ms;  /* as asked, -1 = none */
    int64_t deadline_us; /* monotonic */
    struct loop_timer timer;

    struct buf in;
    struct rpc_outbuf out;
    bool started;   /* the user has the pointer */
    bool user_done; /* the user has given it up */
    bool answered;  /* status decided */
    bool headers_sent;
    bool high; /* rpc_send said false */
    bool failed;
    struct err err; /* when failed */

    void (*closed)(struct rpc_call *c, void *data);
    void (*drained)(struct rpc_call *c, void *data);
    void (*message)(struct rpc_call *c, const ProtobufCMessage *in, void *data);
    void (*end)(struct rpc_call *c, void *data);
    void *closed_data, *drained_data, *message_data;
};

/** The callbacks of every server session. */
const nghttp2_session_callbacks *rpc_call_callbacks(void);
/** The stream is gone: tells the user when he still has the call, and frees it when he has not. */
void rpc_call_detach(struct rpc_call *c);
/** Ends a report stream, which would not end by itself, because the server shuts down. */
void rpc_call_shut_down(struct rpc_call *c);
