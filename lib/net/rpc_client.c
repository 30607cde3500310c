/* Owns the connection of a client to one address; invariant: calls wait in the queue only while an attempt to
 * connect is under way, so every call either goes out or fails as "never sent" at once when the attempt
 * fails. */
#include "lib/net/rpc_client_impl.h"

#include "lib/base/log.h"
#include "lib/base/sockaddr.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#define BACKOFF_FIRST_MS 50
#define BACKOFF_MOST_MS 2000
#define CONNECT_MS 2000

static void connect_now(struct rpc_client *c);

static void client_release(struct rpc_client *c)
{
    free(c->address);
    free(c->expect_node);
    free(c->node_id);
    free(c);
}

/* Around everything that runs callbacks of calls, since these may free the client. */
static void enter(struct rpc_client *c)
{
    c->busy++;
}

static bool leave(struct rpc_client *c)
{
    bool freed = c->freed;
    if (--c->busy == 0 && freed)
        client_release(c);
    return !freed;
}

static void conn_end(struct client_conn *cc, const char *why)
{
    struct rpc_client *c = cc->client;
    enter(c);
    cc->ending = true;
    if (c->current == cc)
        c->current = NULL;
    while (cc->calls) /* sent, and nobody knows whether it was done */
        rpc_out_fail(cc->calls, ERR_UNAVAILABLE, ECONNRESET, why);
    *cc->prev = cc->next;
    if (cc->next)
        cc->next->prev = cc->prev;
    rpc_conn_free(cc->conn);
    free(cc);
    leave(c);
}

/* Fails what waits now; calls that the callbacks start stay. */
static void fail_queue(struct rpc_client *c, const char *why)
{
    size_t n = 0;
    for (struct rpc_out *o = c->queue; o; o = o->next)
        n++;
    while (n-- > 0 && c->queue)
        rpc_out_fail(c->queue, ERR_UNAVAILABLE, ECONNREFUSED, why);
}

static void wait_for_next(struct rpc_client *c, int64_t failed_ms)
{
    c->state = CLIENT_WAITING;
    c->failed_ms = failed_ms;
    loop_timer_start(c->loop, &c->timer, c->backoff_ms);
}

static void attempt_failed(struct rpc_client *c, const char *why)
{
    resolve_cancel(c->resolving);
    c->resolving = NULL;
    if (c->connecting)
        h2o_socket_close(c->connecting);
    c->connecting = NULL;
    wait_for_next(c, loop_now_ms(c->loop));
    c->backoff_ms = c->backoff_ms * 2 > BACKOFF_MOST_MS ? BACKOFF_MOST_MS : c->backoff_ms * 2;
    log_debug("connecting to %s: %s", c->address, why);
    enter(c);
    fail_queue(c, why);
    leave(c);
}

static void on_timer(struct loop_timer *t)
{
    struct rpc_client *c = H2O_STRUCT_FROM_MEMBER(struct rpc_client, timer, t);
    if (c->state == CLIENT_WAITING) {
        connect_now(c);
    } else if (c->state == CLIENT_CONNECTING) {
        if (c->current)
            conn_end(c->current, "timed out"); /* in its handshake: it has no calls yet */
        attempt_failed(c, "timed out");
    }
}

static void on_ready(struct rpc_conn *conn)
{
    struct client_conn *cc = conn->owner;
    struct rpc_client *c = cc->client;
    loop_timer_stop(c->loop, &c->timer);
    c->state = CLIENT_READY;
    c->backoff_ms = BACKOFF_FIRST_MS;
    loop_defer(c->loop, &c->flush);
}

static void on_broken(struct rpc_conn *conn, const char *why)
{
    struct client_conn *cc = conn->owner;
    struct rpc_client *c = cc->client;
    bool current = c->current == cc, starting = current && c->state == CLIENT_CONNECTING;
    char text[160];
    snprintf(text, sizeof text, "%s", why);
    if (current && !starting) /* it was up: the next call may try at once, and the timer does without one */
        wait_for_next(c, loop_now_ms(c->loop) - BACKOFF_FIRST_MS);
    enter(c);
    conn_end(cc, text);
    if (starting && !c->freed)
        attempt_failed(c, text);
    leave(c);
}

void rpc_client_goaway(struct client_conn *cc)
{
    struct rpc_client *c = cc->client;
    if (c->current != cc)
        return;
    c->current = NULL;
    wait_for_next(c, loop_now_ms(c->loop) - BACKOFF_FIRST_MS);
}

static void on_connected(h2o_socket_t *sock, const char *err)
{
    struct rpc_client *c = sock->data;
    if (err) {
        attempt_failed(c, err);
        return;
    }
    c->connecting = NULL;
    int on = 1;
    setsockopt(h2o_socket_get_fd(sock), IPPROTO_TCP, TCP_NODELAY, &on,
               sizeof on); /* fails on Unix sockets, harmlessly */
    struct client_conn *cc = calloc(1, sizeof *cc);
    if (!cc)
        abort();
    cc->client = c;
    cc->conn = rpc_conn_new(c->loop, sock, c->creds, false, rpc_out_callbacks(), on_ready, on_broken, cc);
    if (!cc->conn) {
        free(cc);
        attempt_failed(c, "setting up TLS failed");
        return;
    }
    cc->next = c->conns;
    cc->prev = &c->conns;
    if (cc->next)
        cc->next->prev = &cc->next;
    c->conns = c->current = cc;
}

static void on_resolved(const struct sockaddr_storage *a, socklen_t len, const struct err *e, void *data)
{
    struct rpc_client *c = data;
    c->resolving = NULL;
    if (!a) {
        attempt_failed(c, e->msg);
        return;
    }
    if (!c->creds->tls && !sockaddr_is_local((const struct sockaddr *)a)) {
        attempt_failed(c, "plaintext RPC is allowed on loopback only");
        return;
    }
    c->connecting = h2o_socket_connect(loop_h2o(c->loop), (struct sockaddr *)a, len, on_connected);
    if (c->connecting)
        c->connecting->data = c;
    else
        attempt_failed(c, "connection refused");
}

static void connect_now(struct rpc_client *c)
{
    c->state = CLIENT_CONNECTING;
    loop_timer_start(c->loop, &c->timer, CONNECT_MS);
    c->resolving = resolve_start(c->loop, c->address, on_resolved, c);
}

/* Sends what waits, or sees to it that there will be a connection. Calls are never sent from rpc_unary
 * itself, so no callback runs before that has returned. */
static void on_flush(struct loop_task *t)
{
    struct rpc_client *c = H2O_STRUCT_FROM_MEMBER(struct rpc_client, flush, t);
    if (!c->queue)
        return;
    enter(c);
    if (c->state == CLIENT_READY) {
        while (!c->freed && c->queue && c->current)
            rpc_out_submit(c->queue, c->current);
    } else if (c->state == CLIENT_IDLE) {
        connect_now(c);
    } else if (c->state == CLIENT_WAITING) {
        /* A new call may try earlier than the backoff says: a restarted peer is found by the first call that
         * needs it. */
        if (loop_now_ms(c->loop) - c->failed_ms >= BACKOFF_FIRST_MS)
            connect_now(c);
        else
            fail_queue(c, "the peer was away a moment ago");
    }
    leave(c);
}

struct rpc_client *rpc_client_new(struct loop *l, struct rpc_creds *creds, const char *address,
                                  const char *expect_node)
{
    struct rpc_client *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    *c = (struct rpc_client){.loop = l,
                             .creds = creds,
                             .timer.fire = on_timer,
                             .flush.run = on_flush,
                             .backoff_ms = BACKOFF_FIRST_MS};
    c->queue_tail = &c->queue;
    c->address = strdup(address);
    c->expect_node = expect_node ? strdup(expect_node) : NULL;
    return c;
}

void rpc_client_set_node(struct rpc_client *c, const char *node_id)
{
    free(c->node_id);
    c->node_id = strdup(node_id);
}

const char *rpc_client_address(struct rpc_client *c)
{
    return c->address;
}

void rpc_client_free(struct rpc_client *c)
{
    if (!c)
        return;
    enter(c);
    c->freed = true;
    loop_timer_stop(c->loop, &c->timer);
    resolve_cancel(c->resolving);
    if (c->connecting)
        h2o_socket_close(c->connecting);
    c->connecting = NULL;
    c->state = CLIENT_CONNECTING; /* calls that callbacks start now wait in the queue and end below */
    c->current = NULL;
    for (struct client_conn *cc = c->conns; cc; cc = cc->next)
        while (cc->calls)
            rpc_out_fail(cc->calls, ERR_CANCELLED, 0, "the client was closed");
    for (struct client_conn *cc = c->conns, *next; cc; cc = next) {
        next = cc->next;
        if (!cc->ending) /* else a caller of ours is at it */
            conn_end(cc, "the client was closed");
    }
    while (c->queue)
        rpc_out_fail(c->queue, ERR_CANCELLED, 0, "the client was closed");
    loop_defer_cancel(c->loop, &c->flush);
    leave(c);
}
