/* Owns one HTTP/2 connection: socket, TLS, nghttp2 session, what is on its way out, keepalive. Invariant:
 * nghttp2 is never entered from one of its own callbacks, and the object stays as long as nghttp2 is inside
 * it. */
#include "lib/net/rpc_impl.h"

#include <stdlib.h>
#include <string.h>

#define WRITE_BATCH (64u << 10)
#define STREAM_WINDOW (1 << 20)
#define CONNECTION_WINDOW (8 << 20)
#define MAX_STREAMS 10000
#define PING_MS 20000 /* silence before a PING; twice that ends the connection */

static void on_written(h2o_socket_t *sock, const char *err);

static void release(struct rpc_conn *c)
{
    loop_timer_stop(c->loop, &c->alive);
    loop_defer_cancel(c->loop, &c->pump);
    h2o_socket_read_stop(c->sock);
    h2o_socket_close(c->sock);
    nghttp2_session_del(c->session);
    SSL_CTX_free(c->tls);
    buf_free(&c->writing);
    free(c);
}

void rpc_conn_free(struct rpc_conn *c)
{
    if (!c)
        return;
    c->freed = true;
    if (c->busy == 0)
        release(c);
}

/* Leaves nghttp2; false when the connection was freed meanwhile. */
static bool leave(struct rpc_conn *c)
{
    if (--c->busy == 0 && c->freed) {
        release(c);
        return false;
    }
    return true;
}

static void pump(struct rpc_conn *c)
{
    if (!c->session || h2o_socket_is_writing(c->sock))
        return;
    ssize_t n = 0;
    buf_reset(&c->writing);
    c->busy++;
    while (c->writing.len < WRITE_BATCH && !c->freed) {
        const uint8_t *data;
        n = nghttp2_session_mem_send(c->session, &data);
        if (n <= 0)
            break;
        buf_append(&c->writing, data, (size_t)n);
    }
    if (!leave(c))
        return;
    if (n < 0 || c->writing.failed) {
        c->broken(c, n < 0 ? nghttp2_strerror((int)n) : "out of memory");
        return;
    }
    if (c->writing.len > 0) {
        h2o_iovec_t vec = {c->writing.data, c->writing.len};
        h2o_socket_write(c->sock, &vec, 1, on_written);
    } else if (!nghttp2_session_want_read(c->session) && !nghttp2_session_want_write(c->session)) {
        c->broken(c, "closed");
    }
}

static void on_pump(struct loop_task *t)
{
    pump(H2O_STRUCT_FROM_MEMBER(struct rpc_conn, pump, t));
}

void rpc_conn_kick(struct rpc_conn *c)
{
    loop_defer(c->loop, &c->pump);
}

static void on_written(h2o_socket_t *sock, const char *err)
{
    struct rpc_conn *c = sock->data;
    if (err)
        c->broken(c, err);
    else
        pump(c);
}

static void on_read(h2o_socket_t *sock, const char *err)
{
    struct rpc_conn *c = sock->data;
    if (err) {
        c->broken(c, err);
        return;
    }
    c->read_ms = loop_now_ms(c->loop);
    c->busy++;
    ssize_t n = nghttp2_session_mem_recv(c->session, (uint8_t *)sock->input->bytes, sock->input->size);
    if (!leave(c))
        return;
    if (n < 0) {
        c->broken(c, nghttp2_strerror((int)n));
        return;
    }
    h2o_buffer_consume(&sock->input, (size_t)n);
    pump(c);
}

static void on_alive(struct loop_timer *t)
{
    struct rpc_conn *c = H2O_STRUCT_FROM_MEMBER(struct rpc_conn, alive, t);
    int64_t now = loop_now_ms(c->loop), silent = now - c->read_ms;
    bool stood_still = now - c->alive_ms >= PING_MS; /* we did, not the peer: what it said is unread */
    c->alive_ms = now;
    if (!c->session || (silent >= 2 * PING_MS && !stood_still)) {
        c->broken(c, c->session ? "no answer to a keepalive PING" : "the TLS handshake takes too long");
        return;
    }
    if (silent >= PING_MS) {
        nghttp2_submit_ping(c->session, NGHTTP2_FLAG_NONE, NULL);
        rpc_conn_kick(c);
    }
    loop_timer_start(c->loop, &c->alive, PING_MS / 2);
}

static bool start_session(struct rpc_conn *c)
{
    nghttp2_option *opt;
    if (nghttp2_option_new(&opt) != 0)
        return false;
    /* Deadlines of a burst of calls end in a burst of resets; the peers are our own, so allow more than the
     * default. */
    nghttp2_option_set_stream_reset_rate_limit(opt, 20000, 2000);
    int r = c->server ? nghttp2_session_server_new2(&c->session, c->callbacks, c, opt)
                      : nghttp2_session_client_new2(&c->session, c->callbacks, c, opt);
    nghttp2_option_del(opt);
    if (r != 0)
        return false;
    const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, MAX_STREAMS},
                                               {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
                                               {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
    c->read_ms = loop_now_ms(c->loop);
    return nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, c->server ? 2 : 3) == 0 &&
           nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW) == 0;
}

static void begin(struct rpc_conn *c)
{
    if (!start_session(c)) {
        c->broken(c, "out of memory");
        return;
    }
    c->busy++;
    c->ready(c);
    if (!leave(c))
        return;
    h2o_socket_read_start(c->sock, on_read);
    if (c->sock->input->size > 0)
        on_read(c->sock, NULL); /* bytes that came with the end of the handshake */
    else
        rpc_conn_kick(c);
}

static void on_handshake(h2o_socket_t *sock, const char *err)
{
    struct rpc_conn *c = sock->data;
    if (err) {
        c->broken(c, err);
        return;
    }
    h2o_iovec_t alpn = h2o_socket_ssl_get_selected_protocol(sock);
    if (alpn.len == 2 && memcmp(alpn.base, "h2", 2) == 0)
        begin(c);
    else
        c->broken(c, "the peer does not speak HTTP/2 over TLS");
}

static void on_start(struct loop_task *t)
{
    struct rpc_conn *c = H2O_STRUCT_FROM_MEMBER(struct rpc_conn, pump, t);
    c->pump.run = on_pump;
    if (c->tls)
        h2o_socket_ssl_handshake(c->sock, c->tls, c->server ? NULL : RPC_TLS_NAME, on_handshake);
    else
        begin(c);
}

struct rpc_conn *rpc_conn_new(struct loop *l, h2o_socket_t *sock, const struct rpc_creds *creds, bool server,
                              const nghttp2_session_callbacks *callbacks, void (*ready)(struct rpc_conn *),
                              void (*broken)(struct rpc_conn *, const char *), void *owner)
{
    struct rpc_conn *c = calloc(1, sizeof *c);
    if (c)
        *c = (struct rpc_conn){.loop = l,
                               .sock = sock,
                               .server = server,
                               .callbacks = callbacks,
                               .pump.run = on_start,
                               .alive.fire = on_alive,
                               .read_ms = loop_now_ms(l),
                               .alive_ms = loop_now_ms(l),
                               .ready = ready,
                               .broken = broken,
                               .owner = owner};
    if (c && creds->tls)
        c->tls = rpc_creds_tls(creds, server, &c->peer);
    if (!c || (creds->tls && !c->tls)) {
        h2o_socket_close(sock);
        free(c);
        return NULL;
    }
    sock->data = c;
    loop_timer_start(l, &c->alive, PING_MS / 2);
    loop_defer(l, &c->pump);
    return c;
}
