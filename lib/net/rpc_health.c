/* Owns grpc.health.v1.Health of a server; invariant: each watcher gets the present state at once and every
 * change after it. */
#include "lib/net/rpc_impl.h"

#include "proto/health.pb-c.h"

#include <stdlib.h>

typedef Grpc__Health__V1__HealthCheckRequest Request;
typedef Grpc__Health__V1__HealthCheckResponse Response;

struct watcher {
    struct rpc_health *health;
    struct rpc_call *call;
    bool known; /* the service it asked for is ours */
    struct watcher *next;
};

struct rpc_health {
    struct rpc_server *server;
    bool serving;
    struct watcher *watchers;
};

static void fill(struct rpc_health *h, bool known, Response *r)
{
    grpc__health__v1__health_check_response__init(r);
    r->status = !known       ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN
                : h->serving ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                             : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
}

static void on_check(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    struct rpc_health *h = service;
    const Request *q = (const Request *)in;
    if (!rpc_server_has_service(h->server, q->service)) {
        struct err e = {0};
        err_set(&e, ERR_NOT_FOUND, "health: no service %.100s here", q->service);
        rpc_fail(c, &e);
        return;
    }
    Response r;
    fill(h, true, &r);
    rpc_reply(c, &r.base);
}

static void forget(struct watcher *w)
{
    struct watcher **at = &w->health->watchers;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    free(w);
}

static void on_watch_closed(struct rpc_call *c, void *data)
{
    forget(data);
}

static void on_watch(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    struct rpc_health *h = service;
    struct watcher *w = calloc(1, sizeof *w);
    if (!w) {
        rpc_fail(c, &(struct err){.code = ERR_INTERNAL, .msg = "health: out of memory"});
        return;
    }
    *w = (struct watcher){.health = h,
                          .call = c,
                          .next = h->watchers,
                          .known = rpc_server_has_service(h->server, ((const Request *)in)->service)};
    h->watchers = w;
    rpc_on_closed(c, on_watch_closed, w);
    Response r;
    fill(h, w->known, &r);
    rpc_send(c, &r.base);
}

static const struct rpc_method methods[] = {
    {.path = "/grpc.health.v1.Health/Check",
     .in = &grpc__health__v1__health_check_request__descriptor,
     .out = &grpc__health__v1__health_check_response__descriptor,
     .start = on_check},
    {.path = "/grpc.health.v1.Health/Watch",
     .in = &grpc__health__v1__health_check_request__descriptor,
     .out = &grpc__health__v1__health_check_response__descriptor,
     .start = on_watch},
    {0},
};

struct rpc_health *rpc_health_new(struct rpc_server *s)
{
    struct rpc_health *h = calloc(1, sizeof *h);
    if (!h)
        abort();
    h->server = s;
    rpc_server_add(s, methods, h);
    return h;
}

void rpc_health_set(struct rpc_health *h, bool serving)
{
    if (h->serving == serving)
        return;
    h->serving = serving;
    for (struct watcher *w = h->watchers; w; w = w->next) {
        Response r;
        fill(h, w->known, &r);
        rpc_send(w->call, &r.base);
    }
}

void rpc_health_drain(struct rpc_health *h)
{
    rpc_health_set(h, false);
    while (h->watchers) {
        struct rpc_call *c = h->watchers->call;
        forget(h->watchers);
        rpc_fail(c, &(struct err){.code = ERR_UNAVAILABLE, .msg = "health: the server is shutting down"});
    }
}

void rpc_health_free(struct rpc_health *h)
{
    free(h); /* the connections, and with them the watchers, are gone already */
}
