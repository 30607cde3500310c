/* Owns the calls of a server; invariant: a `struct rpc_call` lives until both its user has ended it (or was
 * told that it closed) and its stream is gone, whichever comes first. */
#include "lib/net/rpc_server_impl.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nghttp2_session *session_of(struct rpc_call *c)
{
    return c->sc->conn->session;
}

static void call_release(struct rpc_call *c)
{
    if (c->sc || (c->started && !c->user_done))
        return;
    loop_timer_stop(c->loop, &c->timer);
    buf_free(&c->in);
    buf_free(&c->out.buf);
    free(c);
}

/* Tells the user that no answer is possible; without `closed` he finds out by answering into the void. */
static void tell_closed(struct rpc_call *c)
{
    if (!c->started || c->user_done || !c->closed)
        return;
    c->user_done = true;
    c->closed(c, c->closed_data);
}

void rpc_call_detach(struct rpc_call *c)
{
    if (c->sc->conn->session)
        nghttp2_session_set_stream_user_data(session_of(c), c->stream, NULL);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->sc = NULL;
    loop_timer_stop(c->loop, &c->timer);
    if (!c->answered)
        tell_closed(c);
    call_release(c);
}

/* ---- answering ---- */

static ssize_t on_data_source(nghttp2_session *session, int32_t stream, uint8_t *to, size_t room,
                              uint32_t *flags, nghttp2_data_source *source, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    struct rpc_call *c = nghttp2_session_get_stream_user_data(session, stream);
    if (!c)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    size_t n = rpc_outbuf_take(&c->out, to, room);
    size_t left = rpc_outbuf_waiting(&c->out);
    if (left == 0 && c->answered) {
        struct rpc_status_text text;
        nghttp2_nv nv[RPC_TRAILERS];
        size_t count = rpc_status_trailers(c->failed ? &c->err : NULL, &text, nv);
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2_submit_trailer(session, stream, nv, count) != 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        return (ssize_t)n;
    }
    if (c->high && left <= RPC_LOW_WATER && !c->user_done && c->drained) {
        c->high = false;
        c->drained(c, c->drained_data);
        if (conn->freed)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        if (n == 0 && rpc_outbuf_waiting(&c->out) == 0 && !c->answered)
            return NGHTTP2_ERR_DEFERRED;
        return n > 0 ? (ssize_t)n : on_data_source(session, stream, to, room, flags, source, data);
    }
    return n > 0 ? (ssize_t)n : NGHTTP2_ERR_DEFERRED;
}

static void send_headers(struct rpc_call *c)
{
    const nghttp2_nv nv[] = {rpc_nv(":status", "200"), rpc_nv("content-type", "application/grpc")};
    nghttp2_data_provider provider = {.read_callback = on_data_source};
    c->headers_sent = true;
    nghttp2_submit_response(session_of(c), c->stream, nv, 2, &provider);
}

static void push(struct rpc_call *c)
{
    if (c->headers_sent)
        nghttp2_session_resume_data(session_of(c), c->stream);
    else
        send_headers(c);
    rpc_conn_kick(c->sc->conn);
}

static void answer(struct rpc_call *c)
{
    if (!c->sc)
        return;
    c->answered = true;
    loop_timer_stop(c->loop, &c->timer);
    if (c->failed && !c->headers_sent) { /* trailers only */
        struct rpc_status_text text;
        nghttp2_nv nv[2 + RPC_TRAILERS] = {rpc_nv(":status", "200"),
                                           rpc_nv("content-type", "application/grpc")};
        size_t n = 2 + rpc_status_trailers(&c->err, &text, nv + 2);
        c->headers_sent = true;
        nghttp2_submit_response(session_of(c), c->stream, nv, n, NULL);
        rpc_conn_kick(c->sc->conn);
        return;
    }
    push(c);
}

static void fail_call(struct rpc_call *c, const struct err *e)
{
    if (c->answered)
        return;
    c->failed = true;
    c->err = *e;
    if (c->err.code == ERR_OK)
        c->err.code = ERR_INTERNAL;
    answer(c);
}

static void fail_here(struct rpc_call *c, enum err_code code, const char *why)
{
    struct err e = {0};
    err_set(&e, code, "%s: %s", c->path, why);
    fail_call(c, &e);
}

void rpc_fail(struct rpc_call *c, const struct err *e)
{
    c->user_done = true;
    fail_call(c, e);
    call_release(c);
}

void rpc_reply(struct rpc_call *c, const ProtobufCMessage *out)
{
    struct err e = {0};
    c->user_done = true;
    if (c->sc && !c->answered) {
        if (rpc_outbuf_add(&c->out, out, &e) < 0)
            fail_call(c, &e);
        else
            answer(c);
    }
    call_release(c);
}

void rpc_finish(struct rpc_call *c)
{
    c->user_done = true;
    if (!c->answered)
        answer(c);
    call_release(c);
}

bool rpc_send(struct rpc_call *c, const ProtobufCMessage *out)
{
    struct err e = {0};
    if (!c->sc || c->answered)
        return true;
    if (rpc_outbuf_add(&c->out, out, &e) < 0) {
        log_fail(&e, "%s", c->path);
        fail_call(c, &e);
        return true;
    }
    push(c);
    c->high = rpc_outbuf_waiting(&c->out) > RPC_HIGH_WATER;
    return !c->high;
}

/* ---- what the user asks ---- */

void rpc_on_closed(struct rpc_call *c, void (*closed)(struct rpc_call *c, void *data), void *data)
{
    c->closed = closed;
    c->closed_data = data;
}

void rpc_on_drained(struct rpc_call *c, void (*drained)(struct rpc_call *c, void *data), void *data)
{
    c->drained = drained;
    c->drained_data = data;
}

void rpc_on_message(struct rpc_call *c,
                    void (*message)(struct rpc_call *c, const ProtobufCMessage *in, void *data),
                    void (*end)(struct rpc_call *c, void *data), void *data)
{
    c->message = message;
    c->end = end;
    c->message_data = data;
}

enum rpc_role rpc_peer_role(struct rpc_call *c)
{
    return c->role;
}

const char *rpc_peer_node(struct rpc_call *c)
{
    return c->node;
}

const char *rpc_trace(struct rpc_call *c)
{
    return c->trace;
}

int64_t rpc_remaining_ms(struct rpc_call *c)
{
    if (c->timeout_ms < 0)
        return INT64_MAX;
    int64_t left = (c->deadline_us - clock_mono_us()) / 1000;
    return left < 0 ? 0 : left;
}

/* ---- requests ---- */

static void on_deadline(struct loop_timer *t)
{
    struct rpc_call *c = H2O_STRUCT_FROM_MEMBER(struct rpc_call, timer, t);
    struct err e = {0};
    err_set(&e, ERR_DEADLINE, "%s: the caller's deadline of %lld ms passed", c->path,
            (long long)c->timeout_ms);
    fail_call(c, &e);
    tell_closed(c);
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *data)
{
    struct rpc_conn *conn = data;
    struct server_conn *sc = conn->owner;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct rpc_call *c = calloc(1, sizeof *c);
    if (!c)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    c->sc = sc;
    c->loop = sc->server->loop;
    c->stream = frame->hd.stream_id;
    c->timeout_ms = -1;
    c->timer.fire = on_deadline;
    c->next = sc->calls;
    c->prev = &sc->calls;
    if (c->next)
        c->next->prev = &c->next;
    sc->calls = c;
    nghttp2_session_set_stream_user_data(session, c->stream, c);
    return 0;
}

static bool name_is(const uint8_t *name, size_t n, const char *want)
{
    return n == strlen(want) && memcmp(name, want, n) == 0;
}

static void copy(char *to, size_t room, const uint8_t *value, size_t n)
{
    if (n >= room)
        n = 0; /* an overlong value is none */
    memcpy(to, value, n);
    to[n] = '\0';
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t n, uint8_t flags, void *data)
{
    struct rpc_call *c = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    char text[32];
    if (!c || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    if (name_is(name, name_len, ":path"))
        copy(c->path, sizeof c->path, value, n);
    else if (name_is(name, name_len, ":method"))
        c->is_post = name_is(value, n, "POST");
    else if (name_is(name, name_len, "content-type"))
        c->is_grpc = name_is(value, n, "application/grpc") || name_is(value, n, "application/grpc+proto");
    else if (name_is(name, name_len, "grpc-encoding"))
        c->encoded = !name_is(value, n, "identity");
    else if (name_is(name, name_len, "grpc-timeout"))
        c->timeout_ms = rpc_timeout_parse((const char *)value, n);
    else if (name_is(name, name_len, "traceparent"))
        copy(c->trace, sizeof c->trace, value, n);
    else if (name_is(name, name_len, "cube-key"))
        copy(c->key, sizeof c->key, value, n);
    else if (name_is(name, name_len, "cube-node"))
        copy(c->node, sizeof c->node, value, n);
    else if (name_is(name, name_len, "cube-role")) {
        copy(text, sizeof text, value, n);
        c->claimed = rpc_role_parse(text);
    }
    return 0;
}

static bool authenticate(struct rpc_call *c)
{
    const struct rpc_creds *creds = c->sc->server->creds;
    const struct rpc_identity *peer = &c->sc->conn->peer;
    char key[65];
    memcpy(key, c->key, sizeof key);
    memset(c->key, 0, sizeof c->key);
    if (creds->tls) {
        /* A certificate may carry several roles; the caller acts in the one it claims, or in its only one. */
        unsigned roles = peer->roles;
        c->role = (roles & c->claimed)         ? c->claimed
                  : (roles & (roles - 1)) == 0 ? (enum rpc_role)roles
                                               : RPC_ROLE_NONE;
        strcpy(c->node, peer->node);
    } else if (c->claimed != RPC_ROLE_NONE && rpc_creds_check(creds, c->claimed, key)) {
        c->role = c->claimed;
    }
    if (c->role != RPC_ROLE_NODE)
        c->node[0] = '\0';
    return c->role != RPC_ROLE_NONE;
}

static bool find_method(struct rpc_call *c)
{
    for (struct service *s = c->sc->server->services; s; s = s->next) {
        for (const struct rpc_method *m = s->methods; m->path; m++) {
            if (strcmp(m->path, c->path) == 0) {
                c->method = m;
                c->service = s->data;
                return true;
            }
        }
    }
    return false;
}

static void refuse_http(struct rpc_call *c, const char *status)
{
    const nghttp2_nv nv[] = {rpc_nv(":status", status)};
    c->answered = true;
    nghttp2_submit_response(session_of(c), c->stream, nv, 1, NULL);
}

static void on_request(struct rpc_call *c)
{
    if (!c->is_post || !c->is_grpc) {
        refuse_http(c, c->is_post ? "415" : "405");
        return;
    }
    if (c->timeout_ms >= 0) {
        c->deadline_us = clock_mono_us() + c->timeout_ms * 1000;
        loop_timer_start(c->loop, &c->timer, c->timeout_ms);
    }
    if (c->sc->server->draining)
        fail_here(c, ERR_UNAVAILABLE, "the server is shutting down");
    else if (!find_method(c))
        fail_here(c, ERR_UNSUPPORTED, "no such method");
    else if (c->method->roles && !authenticate(c))
        fail_here(c, ERR_UNAUTHENTICATED, "the caller's role is not proven");
    else if (c->method->roles && !(c->method->roles & c->role))
        fail_here(c, ERR_FORBIDDEN, "this role may not call it");
    else if (c->encoded)
        fail_here(c, ERR_UNSUPPORTED, "only identity encoding is spoken here");
    if (!c->answered && c->method->client_stream) {
        c->started = true;
        c->method->start(c, NULL, c->service);
    }
}

static bool on_request_message(const uint8_t *bytes, size_t n, void *ctx)
{
    struct rpc_call *c = ctx;
    struct rpc_conn *conn = c->sc->conn;
    if (c->answered)
        return true;
    if (c->started && !c->method->client_stream) {
        fail_here(c, ERR_INVALID, "more than one request message");
        return true;
    }
    ProtobufCMessage *m = protobuf_c_message_unpack(c->method->in, NULL, n, bytes);
    if (!m) {
        fail_here(c, ERR_INVALID, "the request is no valid protobuf message");
        tell_closed(c);
        return true;
    }
    int32_t stream = c->stream;
    if (c->method->client_stream) {
        if (c->message && !c->user_done)
            c->message(c, m, c->message_data);
    } else {
        c->started = true;
        c->method->start(c, m, c->service);
    }
    protobuf_c_message_free_unpacked(m, NULL);
    /* The user may have ended everything, the connection included. */
    return !conn->freed && nghttp2_session_get_stream_user_data(conn->session, stream) == c;
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *bytes,
                         size_t n, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    struct rpc_call *c = nghttp2_session_get_stream_user_data(session, stream);
    if (!c || c->answered)
        return 0;
    struct err e = {0};
    if (rpc_inbuf_feed(&c->in, bytes, n, on_request_message, c, &e) < 0 && e.code != ERR_OK) {
        fail_call(c, &e);
        tell_closed(c);
    }
    return conn->freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static void on_half_close(struct rpc_call *c)
{
    if (c->answered)
        return;
    if (c->in.len > 0) {
        fail_here(c, ERR_INVALID, "the request ends inside a message");
        tell_closed(c);
    } else if (c->method->client_stream) {
        if (c->end && !c->user_done)
            c->end(c, c->message_data);
    } else if (!c->started) {
        fail_here(c, ERR_INVALID, "the request message is missing");
    }
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    struct rpc_call *c = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (c && frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
        on_request(c);
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    c = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (c && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        on_half_close(c);
    return conn->freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t code, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    struct rpc_call *c = nghttp2_session_get_stream_user_data(session, stream);
    if (c)
        rpc_call_detach(c);
    return conn->freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

void rpc_call_shut_down(struct rpc_call *c)
{
    if (!c->method || !c->method->client_stream || c->answered)
        return;
    fail_here(c, ERR_UNAVAILABLE, "the server is shutting down");
    tell_closed(c);
}

static nghttp2_session_callbacks *callbacks;

static void callbacks_make(void)
{
    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        abort();
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
}

const nghttp2_session_callbacks *rpc_call_callbacks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* each thread of a program has connections */
    pthread_once(&once, callbacks_make);
    return callbacks;
}
