/* The HTTP server of cube-api: one worker per thread, each with its own loop, listener (SO_REUSEPORT),
 * masters and caches. */
#pragma once

#include "api/call.h"
#include "api/callback.h"

#include <h2o.h>
#include <pthread.h>

struct key_cache;
struct masters;

/** Configuration, common to all workers; read-only after start. */
struct api {
    char *listen;
    char *master;      /* addresses by comma, or "discover" */
    char *domain;      /* "" = none */
    char *cors_origin; /* "*", an origin, or "" = no CORS */
    int64_t threads;
    int64_t max_body;
    int64_t max_connections; /* per worker */
    int64_t key_ttl_ms;
    int64_t incomplete_ms; /* for a request that does not become complete */
    int64_t master_timeout_ms;
    int64_t master_wait_ms;             /* for a master that is being restarted */
    int64_t rate_limit, rate_window_ms; /* requests of a team per window; 0 = none */
    int64_t wrong_keys;                 /* API keys that nobody knows, of an address per window; 0 = none */
    struct callback_url auth_url;
    int64_t auth_timeout_ms;
    bool has_admin_token;
    uint8_t admin_sha256[32];
    struct rpc_creds *creds;
    h2o_globalconf_t h2o;
    h2o_hostconf_t *host;
    _Atomic bool draining;
};

/** A client connection, for what h2o does not watch: slow requests, and clients that leave while a handler
 * waits. */
struct conn {
    struct conn *next, **link;
    h2o_socket_t *sock;
    struct worker *w;
    struct call *call; /* the request in progress, or NULL */
    int64_t since_ms;  /* when its incomplete request began; 0 = none */
};

struct worker {
    struct api *api;
    struct loop *loop;
    h2o_context_t ctx;
    h2o_accept_ctx_t accept;
    struct loop_listener *listener;
    struct masters *masters;
    struct key_cache *keys;
    struct buf out; /* the answer being built */
    struct conn *conns;
    int64_t nconns, ncalls;
    struct loop_timer sweep;
    struct loop_timer drain;
    int64_t drain_since_ms;
    void (*drained)(struct worker *w);
    pthread_t thread;
};

/** Fills the shared h2o configuration. Once, before any worker. */
void server_setup(struct api *api);
/** Starts a worker on `loop`: listener, masters, timers. The calling thread runs the loop. */
int worker_start(struct worker *w, struct api *api, struct loop *loop, struct err *e);
/** Stops accepting, lets requests in flight end (at most 10 s), then calls `drained`. From the worker's own
 * thread. */
void worker_drain(struct worker *w, void (*drained)(struct worker *w));

/** Stops looking whether the client is still there; the answer begins. */
void conn_unwatch(struct conn *conn);

/** What happens after the key was checked: limits, body, handler (server.c). */
void server_authorized(struct call *c);
