/* What the files of lib/net/rpc share; nobody else includes this. */
#pragma once

#include "lib/base/buf.h"
#include "lib/net/rpc.h"

#include <nghttp2/nghttp2.h>
#include <openssl/ssl.h>

#define RPC_MAX_MESSAGE (4u << 20)
#define RPC_HIGH_WATER (1u << 20)  /* more waiting than this: rpc_send says false */
#define RPC_LOW_WATER (256u << 10) /* then `drained` at this */
#define RPC_NODE_MAX 64
#define RPC_TRACE_MAX 64

/* ---- rpc_auth.c ---- */

/** Who the other end is, as its certificate says. */
struct rpc_identity {
    unsigned roles;
    char node[RPC_NODE_MAX];
};

struct rpc_creds {
    enum rpc_role role;
    unsigned known; /* roles whose keys are loaded */
    uint8_t keys[6][32];
    char own_key[65]; /* hex, "" when there is none */
    bool tls;
    X509 *cert;
    EVP_PKEY *key;
    X509_STORE *ca;
};

/** Whether `hex` is the key of this role. */
bool rpc_creds_check(const struct rpc_creds *c, enum rpc_role role, const char *hex);
/** A TLS context for one connection; on a verified handshake `who` is filled. It lives as long as the
 * context. */
SSL_CTX *rpc_creds_tls(const struct rpc_creds *c, bool server, struct rpc_identity *who);
#define RPC_TLS_NAME "cube.internal" /* DNS name in the SAN of every certificate of the cluster */

/* ---- rpc_frame.c: messages inside DATA ---- */

/** Bytes on their way out of one stream. */
struct rpc_outbuf {
    struct buf buf;
    size_t sent;
};
static inline size_t rpc_outbuf_waiting(const struct rpc_outbuf *o)
{
    return o->buf.len - o->sent;
}
/** Appends one message with its prefix of five bytes. */
int rpc_outbuf_add(struct rpc_outbuf *o, const ProtobufCMessage *m, struct err *e);
int rpc_outbuf_add_packed(struct rpc_outbuf *o, const uint8_t *packed, size_t n, struct err *e);
size_t rpc_outbuf_take(struct rpc_outbuf *o, uint8_t *to, size_t room);

/** Splits DATA into messages. `got` is called with the bytes of each; it returns false to stop (then -1 with
 * `e` untouched). */
int rpc_inbuf_feed(struct buf *in, const uint8_t *data, size_t n,
                   bool (*got)(const uint8_t *msg, size_t n, void *ctx), void *ctx, struct err *e);

/* ---- rpc_status.c: errors as trailers ---- */

#define RPC_TRAILERS 4
/** What one stream said at its end. */
struct rpc_status {
    int grpc; /* -1: none seen */
    struct err err;
    bool ours; /* cube-error-code was there */
};
/** Fills `nv` for this error (NULL = OK); `text` holds the values and must live as long. Returns how many. */
struct rpc_status_text {
    char number[4];
    char message[3 * sizeof(((struct err *)0)->msg) + 1];
    char remedy[3 * sizeof(((struct err *)0)->remedy) + 1];
};
size_t rpc_status_trailers(const struct err *e, struct rpc_status_text *text, nghttp2_nv nv[RPC_TRAILERS]);
void rpc_status_header(struct rpc_status *s, const char *name, size_t name_len, const char *value,
                       size_t value_len);
/** The error of a finished stream, or false when it ended well. */
bool rpc_status_failed(const struct rpc_status *s, const char *path, struct err *e);
nghttp2_nv rpc_nv(const char *name, const char *value);
/** "100m" and friends to milliseconds; -1 when malformed. */
int64_t rpc_timeout_parse(const char *s, size_t n);

/* ---- rpc_conn.c: one HTTP/2 connection ---- */

struct rpc_conn {
    struct loop *loop;
    h2o_socket_t *sock;
    nghttp2_session *session;
    SSL_CTX *tls;
    bool server;
    const nghttp2_session_callbacks *callbacks;
    struct rpc_identity peer;
    struct buf writing;
    struct loop_task pump;
    struct loop_timer alive;
    int64_t read_ms, alive_ms; /* when something was read, when `alive` fired */
    int busy;                  /* inside nghttp2: the object must stay */
    bool freed;                /* free as soon as not busy; nghttp2 callbacks give up */
    void (*ready)(struct rpc_conn *c);
    void (*broken)(struct rpc_conn *c, const char *why); /* must free the connection */
    void *owner;
};

/** Takes the socket over. Later, from the loop: with `creds->tls` the handshake; then the session starts and
 * `ready` is called. `callbacks` get the connection as user data. NULL when out of memory (the socket is
 * closed). */
struct rpc_conn *rpc_conn_new(struct loop *l, h2o_socket_t *sock, const struct rpc_creds *creds, bool server,
                              const nghttp2_session_callbacks *callbacks, void (*ready)(struct rpc_conn *),
                              void (*broken)(struct rpc_conn *, const char *), void *owner);
void rpc_conn_kick(struct rpc_conn *c); /* something was submitted: send it soon */
void rpc_conn_free(struct rpc_conn *c);

/* ---- rpc_health.c ---- */

struct rpc_health;
struct rpc_health *rpc_health_new(struct rpc_server *s);
void rpc_health_set(struct rpc_health *h, bool serving);
void rpc_health_drain(struct rpc_health *h); /* ends the watches */
void rpc_health_free(struct rpc_health *h);
bool rpc_server_has_service(struct rpc_server *s, const char *service);
