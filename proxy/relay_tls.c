/* TLS towards relays on other hosts: mutual certificates of the cluster's CA, the node's name verified,
 * sessions resumed. Invariant: a session is only offered to the same address and node for which its
 * certificate was verified. */
#include "proxy/proxy.h"

#include "lib/dp/cert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct relay_session {
    struct relay_session *next;
    struct sockaddr_storage address;
    char node[64];
    SSL_SESSION *session;
};

static struct relay_session *session_slot(struct worker *w, const struct route *r, bool make)
{
    for (struct relay_session *s = w->relay_sessions; s; s = s->next)
        if (memcmp(&s->address, &r->relay, sizeof r->relay) == 0 && strcmp(s->node, r->node) == 0)
            return s;
    struct relay_session *s = make ? calloc(1, sizeof *s) : NULL;
    if (s) {
        s->address = r->relay;
        memcpy(s->node, r->node, sizeof s->node);
        s->next = w->relay_sessions;
        w->relay_sessions = s;
    }
    return s;
}

/* OpenSSL asks for each certificate of the chain; the last is the node's own. */
static int on_verify(int ok, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct back *b = SSL_get_app_data(ssl);
    char uri[96];
    if (!ok || X509_STORE_CTX_get_error_depth(store) != 0)
        return ok;
    snprintf(uri, sizeof uri, "cube://node/%s", b->sandbox->route.node);
    if (b->gen == b->sandbox->route.gen && dp_cert_has_uri(X509_STORE_CTX_get_current_cert(store), uri))
        return 1;
    X509_STORE_CTX_set_error(store, X509_V_ERR_HOSTNAME_MISMATCH);
    return 0;
}

static int on_session(SSL *ssl, SSL_SESSION *session)
{
    struct back *b = SSL_get_app_data(ssl);
    struct relay_session *s = b && b->state != BACK_CLOSED && b->gen == b->sandbox->route.gen
                                  ? session_slot(b->worker, &b->sandbox->route, true)
                                  : NULL;
    if (s == NULL)
        return 0;
    SSL_SESSION_free(s->session);
    s->session = session; /* the reference is ours now */
    return 1;
}

int relay_tls_load(struct proxy *p, struct err *e)
{
    const struct proxy_config *c = &p->cfg;
    if (c->relay_ca[0] == 0)
        return 0;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (ctx == NULL || SSL_CTX_load_verify_locations(ctx, c->relay_ca, NULL) != 1 ||
        SSL_CTX_use_certificate_chain_file(ctx, c->relay_cert) != 1 ||
        SSL_CTX_use_PrivateKey_file(ctx, c->relay_key, SSL_FILETYPE_PEM) != 1) {
        SSL_CTX_free(ctx);
        return err_set(e, ERR_INVALID, "proxy: loading %s, %s and %s for the relays", c->relay_ca,
                       c->relay_cert, c->relay_key);
    }
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, on_verify);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, on_session);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    p->relay_tls = ctx;
    return 0;
}

SSL *relay_tls_connect(struct back *b)
{
    SSL *ssl = SSL_new(b->worker->proxy->relay_tls);
    if (ssl == NULL)
        return NULL;
    SSL_set_connect_state(ssl);
    SSL_set_app_data(ssl, b);
    struct relay_session *s = session_slot(b->worker, &b->sandbox->route, false);
    if (s && s->session)
        SSL_set_session(ssl, s->session);
    return ssl;
}
