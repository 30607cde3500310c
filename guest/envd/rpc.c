/* Connect protocol. Invariants: an error on a stream is HTTP 200 and an end envelope (clients lose the body
 * of anything else); exactly one end envelope is sent; the call's memory lives until its connection drops the
 * request. */
#include "guest/envd/rpc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "guest/envd/inflate.h"
#include "guest/envd/request_user.h"
#include "guest/envd/state.h"

#define MESSAGE_MAX ((size_t)16 << 20)
#define KEEPALIVE_DEFAULT_S 90

static const char too_many[] = "too many messages in memory, try again";

static const struct {
    const char *name;
    int http;
} codes[] = {
    {"unknown", 500},
    [RPC_CANCELED] = {"canceled", 499},
    [RPC_UNKNOWN] = {"unknown", 500},
    [RPC_INVALID_ARGUMENT] = {"invalid_argument", 400},
    [RPC_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504},
    [RPC_NOT_FOUND] = {"not_found", 404},
    [RPC_ALREADY_EXISTS] = {"already_exists", 409},
    [RPC_PERMISSION_DENIED] = {"permission_denied", 403},
    [RPC_RESOURCE_EXHAUSTED] = {"resource_exhausted", 429},
    [RPC_FAILED_PRECONDITION] = {"failed_precondition", 400},
    [RPC_ABORTED] = {"aborted", 409},
    [RPC_OUT_OF_RANGE] = {"out_of_range", 400},
    [RPC_UNIMPLEMENTED] = {"unimplemented", 501},
    [RPC_INTERNAL] = {"internal", 500},
    [RPC_UNAVAILABLE] = {"unavailable", 503},
    [RPC_DATA_LOSS] = {"data_loss", 500},
    [RPC_UNAUTHENTICATED] = {"unauthenticated", 401},
};

enum rpc_code rpc_code_of(int sys)
{
    switch (sys) {
    case ENOENT:
        return RPC_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return RPC_PERMISSION_DENIED;
    case EEXIST:
        return RPC_ALREADY_EXISTS;
    case ENOTDIR:
    case EISDIR:
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case EXDEV:
        return RPC_INVALID_ARGUMENT;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case ENOMEM:
        return RPC_RESOURCE_EXHAUSTED;
    default:
        return RPC_INTERNAL;
    }
}

static bool is_stream(const struct rpc *r)
{
    return r->method->kind != RPC_UNARY;
}

static bool is_client_stream(const struct rpc *r)
{
    return r->method->kind == RPC_CLIENT_STREAM;
}

static void envelope_head(char *p, unsigned flags, size_t n)
{
    p[0] = (char)flags;
    p[1] = (char)(n >> 24);
    p[2] = (char)(n >> 16);
    p[3] = (char)(n >> 8);
    p[4] = (char)n;
}

static void error_json(struct buf *out, enum rpc_code code, const char *msg)
{
    struct jsonw w = jsonw_start(out);
    jsonw_obj(&w);
    jsonw_kstr(&w, "code", codes[code].name);
    jsonw_kstr(&w, "message", msg);
    jsonw_obj_end(&w);
}

void rpc_begin(struct rpc *r)
{
    if (r->started)
        return;
    r->started = true;
    conn_stream(r->c, 200, r->codec == CODEC_JSON ? "application/connect+json" : "application/connect+proto",
                NULL);
}

static void call_release(struct rpc *r)
{
    r->ended = true;
    buf_free(&r->partial);
    arena_free(&r->messages);
}

static void stream_finish(struct rpc *r, const char *end, size_t n)
{
    if (r->ended)
        return;
    rpc_begin(r);
    call_release(r);
    char *p = conn_chunk(r->c, n + 5);
    if (!p)
        return;
    envelope_head(p, 2, n);
    memcpy(p + 5, end, n);
    conn_chunk_end(r->c);
    conn_stream_end(r->c);
}

void rpc_fail(struct rpc *r, enum rpc_code code, const char *fmt, ...)
{
    char msg[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    if (r->ended)
        return;
    _cleanup_buf_ struct buf b = {0};
    if (!is_stream(r)) {
        call_release(r);
        error_json(&b, code, msg);
        conn_reply(r->c, codes[code].http, "application/json", NULL, b.data, b.len);
        return;
    }
    buf_puts(&b, "{\"error\":");
    error_json(&b, code, msg);
    buf_puts(&b, "}");
    stream_finish(r, b.data, b.len);
}

char *rpc_room(struct rpc *r, size_t n)
{
    if (r->ended)
        return NULL;
    rpc_begin(r);
    char *p = conn_chunk(r->c, n + 5);
    if (!p)
        return NULL;
    envelope_head(p, 0, n);
    return p + 5;
}

void rpc_room_end(struct rpc *r)
{
    conn_chunk_end(r->c);
}

void rpc_message(struct rpc *r, const void *p, size_t n)
{
    char *room = rpc_room(r, n);
    if (!room)
        return;
    if (n)
        memcpy(room, p, n);
    rpc_room_end(r);
}

void rpc_end(struct rpc *r)
{
    stream_finish(r, "{}", 2);
}

void rpc_reply(struct rpc *r, const void *p, size_t n)
{
    if (r->ended)
        return;
    if (!p && r->codec == CODEC_JSON) {
        p = "{}";
        n = 2;
    }
    if (is_stream(r)) {
        rpc_message(r, p, n);
        rpc_end(r);
        return;
    }
    call_release(r);
    conn_reply(r->c, 200, r->codec == CODEC_JSON ? "application/json" : "application/proto", NULL, p, n);
}

void rpc_reply_buf(struct rpc *r, struct buf *b)
{
    if (b->failed)
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
    else
        rpc_reply(r, b->len ? b->data : NULL, b->len);
}

int rpc_user(struct rpc *r, struct user *out)
{
    char name[256];
    if (request_basic_user(&r->c->req->http, name, sizeof(name)) < 0) {
        rpc_fail(r, RPC_UNAUTHENTICATED, "malformed Authorization header");
        return -1;
    }
    if (state_user(name, out) < 0) {
        rpc_fail(r, RPC_UNAUTHENTICATED, "invalid username: '%s'", *name ? name : state.default_user);
        return -1;
    }
    return 0;
}

static bool header_number(struct conn *c, const char *name, int64_t *out)
{
    const char *s = http_header(&c->req->http, name);
    if (!s)
        return true;
    size_t n = strspn(s, "0123456789");
    if (!n || n > 10 || s[n])
        return false;
    *out = atoll(s);
    return true;
}

static bool type_is(const char *type, const char *want)
{
    size_t n = strlen(want);
    return !strncasecmp(type, want, n) && (!type[n] || type[n] == ';' || type[n] == ' ');
}

static bool encoding_take(struct rpc *r, const char *name)
{
    const char *e = http_header(&r->c->req->http, name);
    r->gzip = e && !strcasecmp(e, "gzip");
    return r->gzip || !e || !*e || !strcasecmp(e, "identity");
}

/* Codec by content type; false after having answered 415. */
static bool codec_pick(struct rpc *r)
{
    const char *type = http_header(&r->c->req->http, "content-type");
    const char *json = is_stream(r) ? "application/connect+json" : "application/json";
    const char *proto = is_stream(r) ? "application/connect+proto" : "application/proto";
    if (type && type_is(type, json)) {
        r->codec = CODEC_JSON;
        return true;
    }
    if (type && type_is(type, proto)) {
        r->codec = CODEC_PROTO;
        return true;
    }
    char extra[128];
    snprintf(extra, sizeof(extra), "Accept-Post: %s, %s\r\n", json, proto);
    conn_reply(r->c, 415, "text/plain; charset=utf-8", extra, "unsupported content type\n", 25);
    return false;
}

static bool headers_check(struct rpc *r)
{
    const char *version = http_header(&r->c->req->http, "connect-protocol-version");
    int64_t keepalive_s = KEEPALIVE_DEFAULT_S;
    r->timeout_ms = -1;
    if (version && strcmp(version, "1"))
        rpc_fail(r, RPC_INVALID_ARGUMENT, "connect-protocol-version must be \"1\": got \"%.40s\"", version);
    else if (!header_number(r->c, "connect-timeout-ms", &r->timeout_ms))
        rpc_fail(r, RPC_INVALID_ARGUMENT, "protocol error: invalid timeout");
    else if (!encoding_take(r, is_stream(r) ? "connect-content-encoding" : "content-encoding"))
        rpc_fail(r, RPC_UNIMPLEMENTED, "unknown compression: supported encodings are gzip, identity");
    if (!header_number(r->c, "keepalive-ping-interval", &keepalive_s) || keepalive_s <= 0)
        keepalive_s = KEEPALIVE_DEFAULT_S;
    r->keepalive_ms = keepalive_s * 1000;
    return !r->ended;
}

/* Decodes one request message and hands it on. */
static void message_take(struct rpc *r, bool packed, const char *p, size_t n, struct arena *a,
                         void (*to)(struct rpc *, void *))
{
    long len = packed ? gzip_unpack(p, n, MESSAGE_MAX, a, &p) : (long)n;
    if (len == INFLATE_TOO_LARGE) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "decompressed message is larger than %zu bytes", MESSAGE_MAX);
        return;
    }
    if (len < 0) {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "decompressing message: malformed gzip");
        return;
    }
    n = (size_t)len;
    void *req = arena_alloc(a, r->method->request->size);
    const char *bad = req ? codec_decode(r->codec, r->method->request, p, n, req, a) : "message too large";
    if (!is_client_stream(r))
        conn_whole_free(r->c); /* the message has copies of all it needs, and may wait for long */
    if (bad)
        rpc_fail(r, RPC_INVALID_ARGUMENT, "unmarshal message: %s", bad);
    else if (!is_client_stream(r) && !conn_hold(r->c, a->used))
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "%s", too_many);
    else
        to(r, req);
}

static size_t envelope_length(const char *p)
{
    const uint8_t *u = (const uint8_t *)p;
    return (size_t)u[1] << 24 | (size_t)u[2] << 16 | (size_t)u[3] << 8 | u[4];
}

/* Flag 1, compressed, is allowed when the call named a coding. False after having answered. */
static bool flags_check(struct rpc *r, unsigned char flags)
{
    if (flags == 0 || (flags == 1 && r->gzip))
        return true;
    rpc_fail(r, flags == 1 ? RPC_INTERNAL : RPC_INVALID_ARGUMENT,
             "protocol error: unexpected envelope flags %u", flags);
    return false;
}

static void server_stream_start(struct rpc *r)
{
    const struct buf *b = &r->c->req->whole;
    if (b->len < 5)
        rpc_fail(r, RPC_INVALID_ARGUMENT, "protocol error: incomplete envelope");
    else if (!flags_check(r, (unsigned char)b->data[0]))
        return;
    else if (envelope_length(b->data) != b->len - 5)
        rpc_fail(r, RPC_INVALID_ARGUMENT,
                 "protocol error: promised %zu bytes in enveloped message, got %zu bytes",
                 envelope_length(b->data), b->len - 5);
    else
        message_take(r, b->data[0] & 1, b->data + 5, b->len - 5, &r->c->req->arena, r->method->handle);
}

bool rpc_keep(struct rpc *r, size_t n)
{
    if (!conn_hold(r->c, r->partial.len + n)) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "%s", too_many);
        return false;
    }
    r->kept = n;
    return true;
}

/* The envelope at `p`, complete or not. Returns its size, 0 when bytes are missing, -1 after having answered.
 */
static long envelope_check(struct rpc *r, const char *p, size_t n)
{
    size_t len = n < 5 ? 0 : envelope_length(p);
    if (n < 5)
        return 0;
    if (len > MESSAGE_MAX) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "message of %zu bytes is larger than %zu", len, MESSAGE_MAX);
        return -1;
    }
    if (!flags_check(r, (unsigned char)p[0]))
        return -1;
    return n < len + 5 ? 0 : (long)len + 5;
}

/* Hands complete envelopes on until the handler pauses or ends the call. A handler that is done at once
 * resumes from inside its own call: then the loop here goes on, not another one below it. */
static void envelopes_hand_on(struct rpc *r)
{
    struct buf b = r->partial; /* the handler may end the call, which releases `partial` */
    size_t off = 0;
    long size;
    r->partial = (struct buf){0};
    while (!r->ended && !r->c->paused && (size = envelope_check(r, b.data + off, b.len - off)) > 0) {
        message_take(r, b.data[off] & 1, b.data + off + 5, (size_t)size - 5, &r->messages, r->on_message);
        arena_free(&r->messages);
        off += (size_t)size;
    }
    if (r->ended) {
        buf_free(&b);
        return;
    }
    buf_consume(&b, off);
    if (!b.len)
        buf_free(&b);
    r->partial = b;
}

static void stream_pump(struct rpc *r)
{
    if (r->pumping)
        return;
    r->pumping = true;
    if (!r->ended && r->partial.len)
        envelopes_hand_on(r);
    r->pumping = false;
    if (r->ended || !rpc_keep(r, r->kept) || r->c->paused || !r->end_seen)
        return;
    if (r->partial.len)
        rpc_fail(r, RPC_INVALID_ARGUMENT, "protocol error: incomplete envelope");
    else
        r->on_end(r);
}

static void on_stream_data(struct conn *c, const char *p, size_t n)
{
    struct rpc *r = c->user;
    if (r->ended)
        return;
    buf_append(&r->partial, p, n);
    if (r->partial.failed)
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
    else if (rpc_keep(r, r->kept))
        stream_pump(r);
}

static void on_stream_end(struct conn *c)
{
    struct rpc *r = c->user;
    r->end_seen = true;
    stream_pump(r);
}

void rpc_pause(struct rpc *r)
{
    conn_pause(r->c, true);
}

void rpc_resume(struct rpc *r)
{
    struct conn *c = r->c;
    if (r->ended || !c->paused)
        return;
    bool outer = conn_enter(c); /* the call may end in here, and `r` with it */
    c->paused = false;
    stream_pump(r);
    conn_leave(c, outer);
}

static void on_conn_gone(struct conn *c)
{
    struct rpc *r = c->user;
    bool ended = r->ended;
    call_release(r);
    if (!ended && r->on_gone)
        r->on_gone(r);
}

static void on_conn_drain(struct conn *c)
{
    struct rpc *r = c->user;
    if (!r->ended && r->on_drain)
        r->on_drain(r);
}

void rpc_handle(struct conn *c)
{
    struct rpc *r = arena_alloc(&c->req->arena, sizeof(*r));
    if (!r) {
        conn_error(c, 503, "out of memory");
        return;
    }
    r->c = c;
    r->method = rpc_find(c->req->path);
    c->user = r;
    if (!codec_pick(r) || !headers_check(r))
        return;
    c->on_gone = on_conn_gone;
    c->on_drain = on_conn_drain;
    switch (r->method->kind) {
    case RPC_UNARY:
        message_take(r, r->gzip, c->req->whole.data, c->req->whole.len, &c->req->arena, r->method->handle);
        break;
    case RPC_SERVER_STREAM:
        server_stream_start(r);
        break;
    case RPC_CLIENT_STREAM:
        c->on_data = on_stream_data;
        c->on_end = on_stream_end;
        r->method->handle(r, NULL);
        if (c->body_done && !r->ended)
            on_stream_end(c);
        break;
    }
}
