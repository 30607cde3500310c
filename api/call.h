/* One request on its way through the API: what the handlers read, and how they end it. Everything here runs
 * on the worker's own loop. */
#pragma once

#include "api/body.h"
#include "api/query.h"
#include "api/route.h"
#include "lib/base/jsonw.h"
#include "lib/net/loop.h"
#include "lib/net/rpc.h"

#include <jansson.h>

struct worker;
struct conn;

/** Whose request it is, as the master answered for the key. */
struct caller {
    char team_id[64];
    char team_name[128];
    char team_slug[64];
    char key_id[64];
    bool admin;             /* may use the operator's routes */
    int64_t max_timeout_ms; /* 0 = no limit */
};

/** One request. Lives in the request's pool; its fields are read by handlers, set by server.c and auth.c. */
struct call {
    h2o_req_t *req;
    struct worker *w;
    struct conn *conn;
    const struct route *route; /* NULL while none was found */
    struct route_match match;
    struct query query;
    struct caller caller;
    json_t *body;           /* the object of a route with a request schema */
    struct unknown unknown; /* becomes the Warning header */
    char trace[56];         /* W3C traceparent for the masters */
    int64_t start_us;
    bool answered;
    void *state; /* the handler's own, in the pool */

    /* the call to a master in flight, if any (upstream.c) */
    struct upstream *upstream;
    /* the question to the operator's authentication service in flight, if any (callback.c) */
    struct callback *callback;
};

/** What every handler is: it ends the call, now or later, with exactly one of the functions below. */
typedef void call_handler(struct call *c);

/** Memory that lives as long as the request. */
void *call_alloc(struct call *c, size_t n);
char *call_strdup(struct call *c, const char *s);

/** A request header (lower-case name), or NULL; NUL-terminated copy in the pool. */
const char *call_header(struct call *c, const char *name);
/** Adds a response header; both are copied. */
void call_add_header(struct call *c, const char *name, const char *value);
/** Adds one whose value is a number ≥ 0; the name is a literal. */
void call_add_number(struct call *c, const char *name, size_t name_len, int64_t n);

/** Starts a JSON answer in the worker's buffer; only until the next return to the loop. */
struct jsonw call_json(struct call *c);
void call_send_json(struct call *c, int status);
void call_send_text(struct call *c, int status, const char *content_type, const char *text, size_t n);
void call_send_empty(struct call *c, int status);

/** Ends with the error body of the contract; the status is that of the code. */
void call_fail(struct call *c, const struct err *e);
void call_fail_as(struct call *c, int status, const struct err *e);
/** Shorthand: builds the error and ends with it. */
void call_error(struct call *c, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- calls to a master (upstream.c) ---- */

typedef void call_reply_cb(struct call *c, const ProtobufCMessage *reply);
typedef void call_error_cb(struct call *c, const struct err *e);

enum upstream_flags {
    UPSTREAM_READ = 1, /* changes nothing: may be repeated after a broken connection */
    UPSTREAM_CREATE =
        2, /* when the outcome is unknown, the client must not repeat it (Should-Retry: false) */
};

/** Calls a master and goes on with `reply`; errors end the request (or go to `failed` when given). A call
 * that was never sent is tried again for a while, on the next master. The message is copied. The client's
 * leaving cancels it. */
void call_master(struct call *c, const char *path, const ProtobufCMessage *in,
                 const ProtobufCMessageDescriptor *out, unsigned flags, call_reply_cb *reply,
                 call_error_cb *failed);

/** Ends whatever is in flight, without a callback. */
void upstream_cancel(struct call *c);
