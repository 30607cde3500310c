/* TLS of the relay: off loopback it is required, and only certificates of proxies may come in. */
#include "node/relay/relay.h"

#include "lib/dp/cert.h"

#include <string.h>

/* Only proxies may come in. */
static int on_verify(int ok, X509_STORE_CTX *store)
{
    if (!ok || X509_STORE_CTX_get_error_depth(store) != 0 ||
        dp_cert_has_uri(X509_STORE_CTX_get_current_cert(store), "cube://role/proxy"))
        return ok;
    X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
    return 0;
}

int relay_tls_load(struct relay *r, struct err *e)
{
    const struct relay_config *c = &r->cfg;
    if (c->tls_cert[0] == 0) {
        if (strncmp(c->listen, "127.", 4) == 0 || strncmp(c->listen, "[::1]", 5) == 0 ||
            strncmp(c->listen, "unix:", 5) == 0)
            return 0;
        return err_set(e, ERR_INVALID,
                       "relay.listen %s: off loopback tls_ca, tls_cert and tls_key are required", c->listen);
    }
    r->tls = SSL_CTX_new(TLS_server_method());
    if (r->tls == NULL || SSL_CTX_use_certificate_chain_file(r->tls, c->tls_cert) != 1 ||
        SSL_CTX_use_PrivateKey_file(r->tls, c->tls_key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_load_verify_locations(r->tls, c->tls_ca, NULL) != 1)
        return err_set(e, ERR_INVALID, "relay: loading %s, %s and %s", c->tls_ca, c->tls_cert, c->tls_key);
    SSL_CTX_set_min_proto_version(r->tls, TLS1_2_VERSION);
    SSL_CTX_set_verify(r->tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, on_verify);
    SSL_CTX_set_session_id_context(r->tls, (const unsigned char *)"cube-relay", 10);
    SSL_CTX_set_mode(r->tls, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return 0;
}
