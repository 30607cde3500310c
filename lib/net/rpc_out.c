/* Owns the calls of clients; invariant: each call ends with exactly one callback (none after rpc_out_cancel),
 * and its pointer is dead from then on. */
#include "lib/net/rpc_client_impl.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void unlink_out(struct rpc_out *o)
{
    if (!o->prev)
        return;
    if (o->client->queue_tail == &o->next)
        o->client->queue_tail = o->prev;
    *o->prev = o->next;
    if (o->next)
        o->next->prev = o->prev;
    o->prev = NULL;
}

static void link_out(struct rpc_out *o, struct rpc_out **head)
{
    o->next = *head;
    o->prev = head;
    if (o->next)
        o->next->prev = &o->next;
    *head = o;
}

static void release(struct rpc_out *o)
{
    if (o->reply)
        protobuf_c_message_free_unpacked(o->reply, NULL);
    buf_free(&o->out.buf);
    buf_free(&o->in);
    free(o->path);
    free(o);
}

/* Takes the call out of every structure; what nghttp2 still has of its stream is reset when `reset`. */
static void detach(struct rpc_out *o, bool reset)
{
    loop_timer_stop(o->client->loop, &o->timer);
    unlink_out(o);
    if (o->cc && o->cc->conn->session) {
        nghttp2_session_set_stream_user_data(o->cc->conn->session, o->stream, NULL);
        if (reset) {
            nghttp2_submit_rst_stream(o->cc->conn->session, NGHTTP2_FLAG_NONE, o->stream, NGHTTP2_CANCEL);
            rpc_conn_kick(o->cc->conn);
        }
    }
    o->cc = NULL;
}

/* The one place where a call ends. */
static void finish(struct rpc_out *o, const struct err *e)
{
    if (o->on_reply)
        o->on_reply(e ? NULL : o->reply, e, o->data);
    else if (o->on_upload_end)
        o->on_upload_end(e ? NULL : o->reply, e, o->data);
    else
        o->on_end(e, o->data);
    o->cancelled = true;
    if (!o->busy)
        release(o);
}

void rpc_out_fail(struct rpc_out *o, enum err_code code, int sys, const char *why)
{
    struct err e = {0};
    err_set(&e, code, "calling %s at %s: %s", o->path, o->client->address, why);
    e.sys = sys;
    detach(o, true);
    finish(o, &e);
}

void rpc_out_cancel(struct rpc_out *o)
{
    detach(o, true);
    o->cancelled = true;
    if (!o->busy)
        release(o);
}

static void on_deadline(struct loop_timer *t)
{
    struct rpc_out *o = H2O_STRUCT_FROM_MEMBER(struct rpc_out, timer, t);
    char why[64];
    snprintf(why, sizeof why, "no answer within %lld ms", (long long)o->timeout_ms);
    rpc_out_fail(o, ERR_DEADLINE, 0, why);
}

/* ---- sending ---- */

static ssize_t on_data_source(nghttp2_session *session, int32_t stream, uint8_t *to, size_t room,
                              uint32_t *flags, nghttp2_data_source *source, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    struct rpc_out *o = nghttp2_session_get_stream_user_data(session, stream);
    if (!o)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    size_t n = rpc_outbuf_take(&o->out, to, room);
    if (rpc_outbuf_waiting(&o->out) == 0 && o->half_closed)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    else if (n == 0)
        return NGHTTP2_ERR_DEFERRED;
    return (ssize_t)n;
}

/* The role that a service's server must have, by its package (internal.md §4); any for health. */
static unsigned server_roles(const char *path)
{
    static const struct {
        const char *package;
        unsigned role;
    } rows[] = {{"/cube.master.", RPC_ROLE_MASTER},
                {"/cube.node.", RPC_ROLE_NODE},
                {"/cube.lifecycle.", RPC_ROLE_LIFECYCLE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strncmp(path, rows[i].package, strlen(rows[i].package)) == 0)
            return rows[i].role;
    return RPC_ROLE_ANY;
}

void rpc_out_submit(struct rpc_out *o, struct client_conn *cc)
{
    struct rpc_client *c = o->client;
    if (o->local.code != ERR_OK) {
        rpc_out_fail(o, o->local.code, 0, o->local.msg);
        return;
    }
    if (c->creds->tls) {
        bool right_node = !c->expect_node || strcmp(c->expect_node, cc->conn->peer.node) == 0;
        if (!right_node || !(cc->conn->peer.roles & server_roles(o->path))) {
            rpc_out_fail(o, ERR_UNAUTHENTICATED, 0,
                         right_node ? "the peer's certificate has another role"
                                    : "the peer's certificate names another node");
            return;
        }
    }
    nghttp2_nv nv[12];
    size_t n = 0;
    char timeout[24];
    nv[n++] = rpc_nv(":method", "POST");
    nv[n++] = rpc_nv(":scheme", c->creds->tls ? "https" : "http");
    nv[n++] = rpc_nv(":path", o->path);
    nv[n++] = rpc_nv(":authority", "cube");
    nv[n++] = rpc_nv("te", "trailers");
    nv[n++] = rpc_nv("content-type", "application/grpc");
    if (o->timeout_ms > 0) {
        int64_t left = (o->deadline_us - clock_mono_us() + 999) / 1000;
        left = left < 1 ? 1 : left;
        if (left <= 99999999)
            snprintf(timeout, sizeof timeout, "%lldm", (long long)left);
        else
            snprintf(timeout, sizeof timeout, "%lldS",
                     (long long)(left / 1000 > 99999999 ? 99999999 : left / 1000));
        nv[n++] = rpc_nv("grpc-timeout", timeout);
    }
    if (o->trace[0])
        nv[n++] = rpc_nv("traceparent", o->trace);
    if (c->creds->role != RPC_ROLE_NONE)
        nv[n++] = rpc_nv("cube-role", rpc_role_name(c->creds->role));
    if (!c->creds->tls && c->creds->own_key[0]) {
        nv[n] = rpc_nv("cube-key", c->creds->own_key);
        nv[n++].flags = NGHTTP2_NV_FLAG_NO_INDEX; /* never in a compression table */
    }
    if (c->node_id)
        nv[n++] = rpc_nv("cube-node", c->node_id);
    nghttp2_data_provider provider = {.read_callback = on_data_source};
    int32_t stream = nghttp2_submit_request(cc->conn->session, NULL, nv, n, &provider, o);
    if (stream < 0) {
        rpc_out_fail(o, ERR_UNAVAILABLE, ECONNREFUSED, nghttp2_strerror(stream));
        return;
    }
    unlink_out(o);
    o->stream = stream;
    o->cc = cc;
    link_out(o, &cc->calls);
    rpc_conn_kick(cc->conn);
    if (o->on_opened) {
        o->busy = true;
        o->on_opened(o, o->data);
        o->busy = false;
        if (o->cancelled)
            release(o);
    }
}

/* ---- receiving ---- */

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t n, uint8_t flags, void *data)
{
    struct rpc_out *o = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!o)
        return 0;
    if (name_len == 7 && memcmp(name, ":status", 7) == 0 && n == 3)
        o->http_status = (value[0] - '0') * 100 + (value[1] - '0') * 10 + (value[2] - '0');
    else
        rpc_status_header(&o->status, (const char *)name, name_len, (const char *)value, n);
    return 0;
}

static bool on_reply_message(const uint8_t *bytes, size_t n, void *ctx)
{
    struct rpc_out *o = ctx;
    ProtobufCMessage *m = protobuf_c_message_unpack(o->reply_type, NULL, n, bytes);
    if (!m || (o->reply && !o->on_message)) {
        if (m)
            protobuf_c_message_free_unpacked(m, NULL);
        err_set(&o->local, ERR_INTERNAL, m ? "more than one reply" : "the reply is no valid %s",
                o->reply_type->name);
        return false;
    }
    if (!o->on_message) {
        o->reply = m;
        return true;
    }
    o->on_message(m, o->data);
    protobuf_c_message_free_unpacked(m, NULL);
    return !o->cancelled;
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *bytes,
                         size_t n, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    struct rpc_out *o = nghttp2_session_get_stream_user_data(session, stream);
    if (!o || o->http_status != 200)
        return 0;
    o->busy = true;
    int r = rpc_inbuf_feed(&o->in, bytes, n, on_reply_message, o, &o->local);
    o->busy = false;
    if (o->cancelled)
        release(o);
    else if (r < 0)
        rpc_out_fail(o, o->local.code, 0, o->local.msg);
    return conn->freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static void end_by_status(struct rpc_out *o, uint32_t code)
{
    struct err e = {0};
    if (o->status.grpc < 0 && code == NGHTTP2_REFUSED_STREAM) {
        rpc_out_fail(o, ERR_UNAVAILABLE, ECONNREFUSED, "the server refused the stream unseen");
        return;
    }
    if (o->status.grpc < 0 && o->http_status != 0 && o->http_status != 200) {
        char why[40];
        snprintf(why, sizeof why, "HTTP status %d", o->http_status);
        rpc_out_fail(o, ERR_INTERNAL, 0, why);
        return;
    }
    if (o->status.grpc < 0 && code != NGHTTP2_NO_ERROR) {
        rpc_out_fail(o, code == NGHTTP2_CANCEL ? ERR_CANCELLED : ERR_UNAVAILABLE, ECONNRESET,
                     nghttp2_http2_strerror(code));
        return;
    }
    bool failed = rpc_status_failed(&o->status, o->path, &e);
    if (!failed && !o->reply && !o->on_message) {
        failed = true;
        err_set(&e, ERR_INTERNAL, "calling %s at %s: no reply in a call that ended well", o->path,
                o->client->address);
    }
    detach(o, false);
    finish(o, failed ? &e : NULL);
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t code, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    struct rpc_out *o = nghttp2_session_get_stream_user_data(session, stream);
    if (o)
        end_by_status(o, code);
    return conn->freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *data)
{
    struct rpc_conn *conn = data;
    if (conn->freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        rpc_client_goaway(conn->owner);
    /* The server has answered in full while we still send (an upload that it ended): our half is not wanted
     * any more. */
    struct rpc_out *o =
        frame->hd.stream_id ? nghttp2_session_get_stream_user_data(session, frame->hd.stream_id) : NULL;
    if (o && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) &&
        (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
        !(o->half_closed && rpc_outbuf_waiting(&o->out) == 0)) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
        rpc_conn_kick(conn);
        end_by_status(o, NGHTTP2_NO_ERROR);
    }
    return conn->freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static nghttp2_session_callbacks *callbacks;

static void callbacks_make(void)
{
    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        abort();
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
}

const nghttp2_session_callbacks *rpc_out_callbacks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* each thread of a program has connections */
    pthread_once(&once, callbacks_make);
    return callbacks;
}

/* ---- starting ---- */

static struct rpc_out *out_new(struct rpc_client *c, const char *path,
                               const ProtobufCMessageDescriptor *reply, int64_t timeout_ms, const char *trace,
                               void *data)
{
    struct rpc_out *o = calloc(1, sizeof *o);
    if (!o)
        abort();
    *o = (struct rpc_out){.client = c,
                          .reply_type = reply,
                          .timeout_ms = timeout_ms,
                          .data = data,
                          .timer.fire = on_deadline,
                          .status.grpc = -1};
    o->path = strdup(path);
    snprintf(o->trace, sizeof o->trace, "%s", trace ? trace : "");
    if (timeout_ms > 0) {
        o->deadline_us = clock_mono_us() + timeout_ms * 1000;
        loop_timer_start(c->loop, &o->timer, timeout_ms);
    }
    o->prev = c->queue_tail;
    *c->queue_tail = o;
    c->queue_tail = &o->next;
    loop_defer(c->loop, &c->flush);
    return o;
}

/* A request that cannot be packed fails when its turn to be sent comes, so that the callback is never early.
 */
static void put_request(struct rpc_out *o, const ProtobufCMessage *in)
{
    o->half_closed = true;
    rpc_outbuf_add(&o->out, in, &o->local);
}

struct rpc_out *rpc_unary(struct rpc_client *c, const char *path, const ProtobufCMessage *in,
                          const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
                          rpc_reply_cb cb, void *data)
{
    struct rpc_out *o = out_new(c, path, out, timeout_ms, trace, data);
    o->on_reply = cb;
    put_request(o, in);
    return o;
}

struct rpc_out *rpc_unary_packed(struct rpc_client *c, const char *path, const uint8_t *packed, size_t n,
                                 const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
                                 rpc_reply_cb cb, void *data)
{
    struct rpc_out *o = out_new(c, path, out, timeout_ms, trace, data);
    o->on_reply = cb;
    o->half_closed = true;
    rpc_outbuf_add_packed(&o->out, packed, n, &o->local);
    return o;
}

struct rpc_out *rpc_stream(struct rpc_client *c, const char *path, const ProtobufCMessage *in,
                           const ProtobufCMessageDescriptor *out, int64_t timeout_ms,
                           void (*message)(const ProtobufCMessage *m, void *data),
                           void (*end)(const struct err *e, void *data), void *data)
{
    struct rpc_out *o = out_new(c, path, out, timeout_ms, NULL, data);
    o->on_message = message;
    o->on_end = end;
    put_request(o, in);
    return o;
}

struct rpc_out *rpc_upload(struct rpc_client *c, const char *path, const ProtobufCMessageDescriptor *out,
                           void (*opened)(struct rpc_out *o, void *data),
                           void (*end)(const ProtobufCMessage *reply, const struct err *e, void *data),
                           void *data)
{
    struct rpc_out *o = out_new(c, path, out, 0, NULL, data);
    o->on_opened = opened;
    o->on_upload_end = end;
    return o;
}

bool rpc_out_send(struct rpc_out *o, const ProtobufCMessage *m)
{
    struct err e = {0};
    if (rpc_outbuf_add(&o->out, m, &e) < 0) {
        log_fail(&e, "sending on %s", o->path);
        return true;
    }
    if (o->cc) {
        nghttp2_session_resume_data(o->cc->conn->session, o->stream);
        rpc_conn_kick(o->cc->conn);
    }
    return rpc_outbuf_waiting(&o->out) <= RPC_HIGH_WATER;
}

void rpc_out_half_close(struct rpc_out *o)
{
    o->half_closed = true;
    if (o->cc) {
        nghttp2_session_resume_data(o->cc->conn->session, o->stream);
        rpc_conn_kick(o->cc->conn);
    }
}
