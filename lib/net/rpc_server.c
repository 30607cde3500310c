/* Owns the listeners and connections of one server, and its shutting down; invariant: after rpc_server_drain
 * no new call is taken, and `done` is called when the last connection is gone. */
#include "lib/net/rpc_server_impl.h"
#include "lib/base/sockaddr.h"

#include <stdlib.h>
#include <string.h>

static void check_drained(struct rpc_server *s)
{
    if (!s->draining || s->conns || !s->drained)
        return;
    void (*done)(void *) = s->drained;
    s->drained = NULL;
    done(s->drained_data);
}

static void conn_end(struct server_conn *sc)
{
    while (sc->calls)
        rpc_call_detach(sc->calls);
    *sc->prev = sc->next;
    if (sc->next)
        sc->next->prev = sc->prev;
    rpc_conn_free(sc->conn);
    free(sc);
}

static void on_broken(struct rpc_conn *conn, const char *why)
{
    struct server_conn *sc = conn->owner;
    struct rpc_server *s = sc->server;
    conn_end(sc);
    check_drained(s);
}

static void on_ready(struct rpc_conn *conn)
{
}

static void on_accepted(h2o_socket_t *sock, void *data)
{
    struct rpc_server *s = data;
    struct server_conn *sc = calloc(1, sizeof *sc);
    if (!sc) {
        h2o_socket_close(sock);
        return;
    }
    sc->server = s;
    sc->conn = rpc_conn_new(s->loop, sock, s->creds, true, rpc_call_callbacks(), on_ready, on_broken, sc);
    if (!sc->conn) {
        free(sc);
        return;
    }
    sc->next = s->conns;
    sc->prev = &s->conns;
    if (sc->next)
        sc->next->prev = &sc->next;
    s->conns = sc;
}

struct rpc_server *rpc_server_new(struct loop *l, struct rpc_creds *creds)
{
    struct rpc_server *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->loop = l;
    s->creds = creds;
    s->health = rpc_health_new(s);
    return s;
}

void rpc_server_add(struct rpc_server *s, const struct rpc_method *methods, void *service)
{
    struct service *sv = calloc(1, sizeof *sv);
    if (!sv)
        abort();
    *sv = (struct service){.methods = methods, .data = service, .next = s->services};
    s->services = sv;
}

bool rpc_server_has_service(struct rpc_server *s, const char *service)
{
    size_t n = strlen(service);
    for (struct service *sv = s->services; sv; sv = sv->next)
        for (const struct rpc_method *m = sv->methods; m->path; m++)
            if (m->path[0] == '/' && strncmp(m->path + 1, service, n) == 0 && m->path[1 + n] == '/')
                return true;
    return n == 0;
}

int rpc_server_listen(struct rpc_server *s, const char *address, struct err *e)
{
    struct sockaddr_storage a;
    socklen_t len;
    if (loop_address_parse(address, &a, &len, e) < 0)
        return -1;
    if (!s->creds->tls && !sockaddr_is_local((const struct sockaddr *)&a)) {
        err_set(e, ERR_INVALID, "listening on %s: plaintext RPC is allowed on loopback only", address);
        return err_remedy(e, "set ca, cert and key, or listen on 127.0.0.1");
    }
    struct listener *ln = calloc(1, sizeof *ln);
    if (!ln)
        return err_set(e, ERR_INTERNAL, "listening on %s: out of memory", address);
    ln->listener = loop_listen(s->loop, address, false, false, on_accepted, s, e);
    if (!ln->listener) {
        free(ln);
        return -1;
    }
    ln->next = s->listeners;
    s->listeners = ln;
    return 0;
}

int rpc_server_port(struct rpc_server *s)
{
    return s->listeners ? loop_listener_port(s->listeners->listener) : -1;
}

void rpc_server_set_serving(struct rpc_server *s, bool serving)
{
    rpc_health_set(s->health, serving);
}

static void close_listeners(struct rpc_server *s)
{
    while (s->listeners) {
        struct listener *ln = s->listeners;
        s->listeners = ln->next;
        loop_listener_free(ln->listener);
        free(ln);
    }
}

void rpc_server_drain(struct rpc_server *s, void (*done)(void *data), void *data)
{
    s->draining = true;
    s->drained = done;
    s->drained_data = data;
    close_listeners(s);
    rpc_health_drain(s->health);
    for (struct server_conn *sc = s->conns, *next; sc; sc = next) {
        next = sc->next;
        if (!sc->conn->session) { /* still in its handshake */
            conn_end(sc);
            continue;
        }
        for (struct rpc_call *c = sc->calls, *after; c; c = after) {
            after = c->next;
            rpc_call_shut_down(c);
        }
        nghttp2_submit_goaway(sc->conn->session, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(sc->conn->session), NGHTTP2_NO_ERROR,
                              NULL, 0);
        rpc_conn_kick(sc->conn);
    }
    check_drained(s);
}

void rpc_server_free(struct rpc_server *s)
{
    if (!s)
        return;
    close_listeners(s);
    s->drained = NULL;
    while (s->conns)
        conn_end(s->conns);
    rpc_health_free(s->health);
    while (s->services) {
        struct service *sv = s->services;
        s->services = sv->next;
        free(sv);
    }
    free(s);
}
