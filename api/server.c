/* Owns the HTTP side: connections, the way of a request through route, key, limits and body to its handler,
 * and draining. Invariants: every request is answered exactly once, with JSON when it is an error, also when
 * libh2o makes the error; a request that does not become complete and a client that leaves cost nothing for
 * long. libh2o speaks HTTP/1.1 only here (contracts: c-libraries.md §1.7). */
#include "api/server.h"

#include "api/auth.h"
#include "api/errors.h"
#include "api/handlers.h"
#include "api/limit.h"
#include "api/masters.h"
#include "api/metrics.h"
#include "api/trace.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <h2o/http1.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define KEEPALIVE_MS                                                                                         \
    310000 /* longer than any client pool keeps an idle connection (contracts/e2b.md §9.6)                  \
            */
#define SWEEP_MS 1000
/* libh2o answers 413 at once and closes with bytes unread, which many clients see as a reset; up to this size
 * the body is taken in and the handler answers, on a connection that lives on. */
#define ENTITY_MAX (32 << 20)
#define DRAIN_MS 10000
#define DRAIN_STEP_MS 20

static call_handler *const handlers[ROUTE_COUNT] = {
#define ROUTE(id, ...) handle_##id,
#define MISSING(id, ...) NULL,
#include "api/routes.def"
#undef ROUTE
#undef MISSING
};

static struct conn *conn_of(h2o_req_t *req)
{
    return req->conn->callbacks->get_socket(req->conn)->on_close.data;
}

static void on_call_dispose(void *p)
{
    struct call *c = p;
    upstream_cancel(c);
    callback_cancel(c);
    if (!c->answered)
        api_metrics_request(c->route ? c->match.id : ROUTE_COUNT, 499, clock_mono_us() - c->start_us);
    if (c->conn)
        c->conn->call = NULL;
    json_decref(c->body);
    c->w->ncalls--;
    api_metrics_in_flight(-1);
}

static void client_left(struct conn *conn)
{
    struct call *c = conn->call;
    if (!c || c->answered)
        return;
    api_metrics_disconnect();
    upstream_cancel(c);
    callback_cancel(c);
    call_error(c, ERR_CANCELLED, "the client left before the answer");
}

static bool client_is_gone(const struct conn *conn)
{
    struct pollfd p = {.fd = h2o_socket_get_fd(conn->sock), .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* While a handler waits, h2o does not read, so the end of the connection shows only here (c-libraries.md
 * §1.4). Nothing may be read into the socket's buffer meanwhile: it could move, and the request's headers and
 * body lie in it. A client that sends more before it has its answer is looked at by the sweep. */
static void on_client_event(h2o_socket_t *sock, const char *err)
{
    struct conn *conn = sock->on_close.data;
    h2o_socket_read_stop(sock);
    if (err || client_is_gone(conn))
        client_left(conn);
}

static void watch_client(struct conn *conn)
{
    h2o_socket_dont_read(conn->sock, 1);
    h2o_socket_read_start(conn->sock, on_client_event);
}

void conn_unwatch(struct conn *conn)
{
    h2o_socket_read_stop(conn->sock);
    h2o_socket_dont_read(conn->sock, 0);
}

void server_authorized(struct call *c)
{
    if (limit_check(c) < 0)
        return;
    if (c->route->status == 0) {
        struct err e = {0};
        err_set(&e, ERR_UNSUPPORTED, "%s (%s %s) is not implemented yet: it needs %s", c->route->name,
                route_method_name(c->route->method), c->route->pattern, c->route->summary);
        call_fail(c, &e);
        return;
    }
    size_t n = strlen(c->route->request);
    if (n) {
        struct err e = {0};
        bool optional = c->route->request[n - 1] == '?';
        if (body_parse(c->req->entity.base, c->req->entity.len, optional, &c->body, &e) < 0) {
            call_fail(c, &e);
            return;
        }
    }
    handlers[c->match.id](c);
}

static void add_cors(struct call *c, bool preflight)
{
    const char *allowed = c->w->api->cors_origin;
    const char *origin = call_header(c, "origin");
    if (!origin || !*allowed || (strcmp(allowed, "*") != 0 && strcmp(allowed, origin) != 0))
        return;
    call_add_header(c, "access-control-allow-origin", allowed);
    if (strcmp(allowed, "*") != 0)
        call_add_header(c, "vary", "origin");
    if (!preflight) {
        call_add_header(c, "access-control-expose-headers",
                        "X-Next-Token, X-Total-Running, RateLimit-Limit, RateLimit-Remaining, "
                        "RateLimit-Reset, Retry-After, Warning");
        return;
    }
    call_add_header(c, "access-control-allow-methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS");
    call_add_header(c, "access-control-allow-headers",
                    "Authorization, Content-Type, X-API-Key, X-Team-ID, X-Admin-Token, Idempotency-Key, "
                    "browser, lang, lang_version, "
                    "package_version, publisher, sdk_runtime, system, traceparent");
    call_add_header(c, "access-control-max-age", "86400");
}

static void add_allow(struct call *c)
{
    char allow[64] = "";
    for (int m = 0; m < ROUTE_METHODS; m++)
        if (c->match.allowed & 1u << m) {
            strcat(allow, *allow ? ", " : "");
            strcat(allow, route_method_name((enum route_method)m));
        }
    call_add_header(c, "allow", allow);
}

static int find_route(struct call *c, struct err *e)
{
    h2o_req_t *req = c->req;
    bool has_query = req->query_at != SIZE_MAX;
    size_t path_len = has_query ? req->query_at : req->path.len;
    enum route_method method = h2o_memis(req->method.base, req->method.len, H2O_STRLIT("HEAD"))
                                   ? ROUTE_GET
                                   : route_method_parse(req->method.base, req->method.len);
    if (route_match(method, req->path.base, path_len, &c->match, e) < 0)
        return -1;
    c->route = &routes[c->match.id];
    if (!has_query)
        return 0;
    size_t n = req->path.len - path_len - 1;
    return query_parse(&c->query, req->path.base + path_len + 1, n, call_alloc(c, n + 1), e);
}

static void dispatch(struct call *c)
{
    h2o_req_t *req = c->req;
    bool options = h2o_memis(req->method.base, req->method.len, H2O_STRLIT("OPTIONS"));
    add_cors(c, options);
    if (options) {
        call_send_empty(c, 204);
        return;
    }
    struct err e = {0};
    if (find_route(c, &e) < 0) {
        if (e.code == ERR_UNSUPPORTED) {
            add_allow(c);
            call_fail_as(c, 405, &e);
        } else {
            call_fail(c, &e);
        }
        return;
    }
    if ((int64_t)req->entity.len > c->w->api->max_body) {
        err_set(&e, ERR_TOO_LARGE, "the request body is larger than %lld bytes",
                (long long)c->w->api->max_body);
        call_fail(c, &e);
        return;
    }
    trace_continue(call_header(c, "traceparent"), c->trace);
    auth_check(c);
}

static int on_request(h2o_handler_t *self, h2o_req_t *req)
{
    struct call *c = h2o_mem_alloc_shared(&req->pool, sizeof *c, on_call_dispose);
    memset(c, 0, offsetof(struct call, match));
    memset(&c->query, 0, sizeof *c - offsetof(struct call, query));
    c->match.id = ROUTE_COUNT;
    c->req = req;
    c->w = H2O_STRUCT_FROM_MEMBER(struct worker, ctx, req->conn->ctx);
    c->conn = conn_of(req);
    c->conn->call = c;
    c->conn->since_ms = 0;
    c->start_us = clock_mono_us();
    c->w->ncalls++;
    api_metrics_in_flight(1);
    h2o_socket_t *sock = c->conn->sock;
    dispatch(c);
    /* The call may be gone by now; its connection too, but then h2o closed the socket from a later turn of
     * the loop. */
    if (sock->on_close.data && ((struct conn *)sock->on_close.data)->call == c && !c->answered)
        watch_client(sock->on_close.data);
    return 0;
}

/* ---- errors that libh2o makes by itself (too large a body, no such host …) become JSON too ---- */

struct json_error {
    h2o_ostream_t super;
    h2o_iovec_t body;
};

static void send_json_error(h2o_ostream_t *self, h2o_req_t *req, h2o_iovec_t *bufs, size_t n,
                            h2o_send_state_t state)
{
    struct json_error *o = (struct json_error *)self;
    h2o_iovec_t body = o->body;
    o->body.len = 0;
    h2o_ostream_send_next(&o->super, req, &body, body.len ? 1 : 0, state);
}

static void on_setup_error(h2o_filter_t *self, h2o_req_t *req, h2o_ostream_t **slot)
{
    struct buf text = {0};
    struct err e = {0};
    enum err_code code = req->res.status == 413 ? ERR_TOO_LARGE : ERR_INVALID;
    err_set(&e, code,
            code == ERR_TOO_LARGE ? "the request body is larger than %lld bytes" : "malformed HTTP request",
            (long long)BODY_MAX);
    error_write(&text, req->res.status, &e);
    struct json_error *o = (struct json_error *)h2o_add_ostream(req, sizeof *o, slot);
    o->super.do_send = send_json_error;
    o->body = h2o_strdup(&req->pool, text.data, text.len);
    buf_free(&text);
    req->res.content_length = o->body.len;
    h2o_set_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE, H2O_STRLIT("application/json"), 1);
    h2o_setup_next_ostream(req, &o->super.next);
}

/* ---- connections ---- */

static void on_conn_closed(void *data)
{
    struct conn *conn = data;
    if (conn->call)
        conn->call->conn = NULL;
    *conn->link = conn->next;
    if (conn->next)
        conn->next->link = conn->link;
    conn->w->nconns--;
    free(conn);
}

static void on_accepted(h2o_socket_t *sock, void *data)
{
    struct worker *w = data;
    struct conn *conn = w->nconns < w->api->max_connections ? calloc(1, sizeof *conn) : NULL;
    if (!conn) {
        h2o_socket_close(sock);
        return;
    }
    *conn = (struct conn){.sock = sock, .w = w, .next = w->conns, .link = &w->conns};
    if (conn->next)
        conn->next->link = &conn->next;
    w->conns = conn;
    w->nconns++;
    sock->on_close.cb = on_conn_closed;
    sock->on_close.data = conn;
    h2o_http1_accept(&w->accept, sock, *h2o_get_timestamp(&w->ctx, NULL, NULL));
}

/* libh2o's only limit spans idle time too, so it is long; this one is for a request that has begun and does
 * not end. */
static void refuse_incomplete(struct conn *conn)
{
    static const char body[] = "{\"code\":408,\"message\":\"the request did not become complete in "
                               "time\",\"error_code\":\"incomplete_request\"}";
    char answer[400];
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
                     "content-length: %zu\r\n\r\n%s",
                     sizeof body - 1, body);
    int fd = h2o_socket_get_fd(conn->sock);
    /* Best effort: the client may not read. Nothing else can be in the socket's way, for no answer is being
     * sent. */
    if (send(fd, answer, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log_debug("answering 408: %m");
    shutdown(fd, SHUT_RDWR); /* h2o sees the end and closes */
    api_metrics_incomplete();
}

static void on_sweep(struct loop_timer *t)
{
    struct worker *w = H2O_STRUCT_FROM_MEMBER(struct worker, sweep, t);
    int64_t now = loop_now_ms(w->loop);
    for (struct conn *conn = w->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->call && client_is_gone(conn))
            client_left(conn);
        else if (conn->call || conn->sock->input->size == 0)
            conn->since_ms = 0;
        else if (conn->since_ms == 0)
            conn->since_ms = now;
        else if (now - conn->since_ms >= w->api->incomplete_ms)
            refuse_incomplete(conn);
    }
    loop_timer_start(w->loop, &w->sweep, SWEEP_MS);
}

/* ---- start and end ---- */

void server_setup(struct api *api)
{
    h2o_config_init(&api->h2o);
    api->h2o.server_name = h2o_iovec_init(H2O_STRLIT("cube-api"));
    api->h2o.max_request_entity_size = ENTITY_MAX;
    api->h2o.http1.req_timeout = KEEPALIVE_MS;
    api->h2o.http1.upgrade_to_http2 = 0;
    api->h2o.proxy.io_timeout = (uint64_t)api->auth_timeout_ms;
    api->host = h2o_config_register_host(&api->h2o, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    h2o_pathconf_t *all = h2o_config_register_path(api->host, "/", 0);
    h2o_create_handler(all, sizeof(h2o_handler_t))->on_req = on_request;
    h2o_create_filter(&api->host->fallback_path, sizeof(h2o_filter_t))->on_setup_ostream = on_setup_error;
}

int worker_start(struct worker *w, struct api *api, struct loop *loop, struct err *e)
{
    w->api = api;
    w->loop = loop;
    h2o_context_init(&w->ctx, loop_h2o(loop), &api->h2o);
    w->accept = (h2o_accept_ctx_t){.ctx = &w->ctx, .hosts = api->h2o.hosts};
    w->keys = key_cache_new();
    if (!w->keys)
        return err_set(e, ERR_INTERNAL, "starting a worker: out of memory");
    bool discover = strcmp(api->master, "discover") == 0;
    w->masters = masters_new(loop, api->creds, discover);
    if (!w->masters)
        return err_set(e, ERR_INTERNAL, "starting a worker: out of memory");
    if (!discover && masters_set(w->masters, api->master, e) < 0)
        return err_wrap(e, "api.master");
    w->listener = loop_listen(loop, api->listen, api->threads > 1, false, on_accepted, w, e);
    if (!w->listener)
        return -1;
    w->sweep.fire = on_sweep;
    loop_timer_start(loop, &w->sweep, SWEEP_MS);
    return 0;
}

static void end_connections(struct worker *w, bool with_calls)
{
    for (struct conn *conn = w->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->call && !with_calls)
            continue;
        if (conn->call && !conn->call->answered) {
            upstream_cancel(conn->call);
            callback_cancel(conn->call);
            call_error(conn->call, ERR_UNAVAILABLE, "the API is shutting down");
        }
        shutdown(h2o_socket_get_fd(conn->sock), SHUT_RD); /* h2o sees the end and closes */
    }
}

static void worker_end(struct worker *w)
{
    loop_timer_stop(w->loop, &w->sweep);
    masters_free(w->masters);
    key_cache_free(w->keys);
    buf_free(&w->out);
    h2o_context_dispose(&w->ctx);
    w->drained(w);
}

static void on_drain(struct loop_timer *t)
{
    struct worker *w = H2O_STRUCT_FROM_MEMBER(struct worker, drain, t);
    if (w->nconns == 0) {
        worker_end(w);
        return;
    }
    end_connections(w, loop_now_ms(w->loop) - w->drain_since_ms >= DRAIN_MS);
    loop_timer_start(w->loop, t, DRAIN_STEP_MS);
}

void worker_drain(struct worker *w, void (*drained)(struct worker *w))
{
    if (w->drain.fire)
        return;
    loop_listener_free(w->listener);
    w->listener = NULL;
    w->ctx.shutdown_requested =
        1; /* answers say `connection: close`; h2o's own call also starts timers for HTTP/2 */
    w->drain_since_ms = loop_now_ms(w->loop);
    w->drained = drained;
    w->drain.fire = on_drain;
    loop_timer_start(w->loop, &w->drain, 0);
}
