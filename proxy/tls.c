/* TLS towards clients: certificate and key from files, or from the local CA (tls_local.c); a changed file is
 * loaded without a restart. Invariant: a certificate that does not load leaves the old one in use. */
#include "proxy/proxy.h"

#include "lib/base/log.h"

#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int alpn_choose(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                       unsigned in_len, void *arg)
{
    static const unsigned char ours[] = "\x02h2\x08http/1.1";
    return SSL_select_next_proto((unsigned char **)out, out_len, ours, sizeof ours - 1, in, in_len) ==
                   OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_ALERT_FATAL;
}

bool tls_is_h2(SSL *ssl)
{
    const unsigned char *p;
    unsigned n;
    SSL_get0_alpn_selected(ssl, &p, &n);
    return n == 2 && memcmp(p, "h2", 2) == 0;
}

SSL *tls_accept(struct proxy *p)
{
    SSL_CTX *ctx = atomic_load_explicit(&p->tls, memory_order_acquire);
    SSL *ssl = ctx ? SSL_new(ctx) : NULL;
    if (ssl)
        SSL_set_accept_state(ssl);
    return ssl;
}

static SSL_CTX *ctx_load(const char *cert, const char *key, struct err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    ERR_clear_error();
    if (ctx == NULL || SSL_CTX_use_certificate_chain_file(ctx, cert) != 1 ||
        SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1) {
        char why[160];
        ERR_error_string_n(ERR_get_error(), why, sizeof why);
        SSL_CTX_free(ctx);
        err_set(e, ERR_INVALID, "loading the certificate %s: %s", cert, why);
        return NULL;
    }
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx,
                        SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_select_cb(ctx, alpn_choose, NULL);
    SSL_CTX_set_session_id_context(ctx, (const unsigned char *)"cube-proxy", 10);
    return ctx;
}

static struct {
    char cert[512], key[512];
    struct timespec cert_time, key_time;
} files;

static bool files_changed(void)
{
    struct stat c, k;
    if (stat(files.cert, &c) != 0 || stat(files.key, &k) != 0)
        return false;
    bool changed = memcmp(&c.st_mtim, &files.cert_time, sizeof c.st_mtim) != 0 ||
                   memcmp(&k.st_mtim, &files.key_time, sizeof k.st_mtim) != 0;
    files.cert_time = c.st_mtim;
    files.key_time = k.st_mtim;
    return changed;
}

/* One reference is kept for ever per reload: a worker may be about to take it. Certificates change a few
 * times a year. */
static int swap_in(struct proxy *p, struct err *e)
{
    SSL_CTX *ctx = ctx_load(files.cert, files.key, e);
    if (ctx == NULL)
        return -1;
    atomic_store_explicit(&p->tls, ctx, memory_order_release);
    return 0;
}

int tls_load(struct proxy *p, struct err *e)
{
    if (p->cfg.tls_listen[0] == 0)
        return 0;
    if (p->cfg.tls_cert[0]) {
        snprintf(files.cert, sizeof files.cert, "%s", p->cfg.tls_cert);
        snprintf(files.key, sizeof files.key, "%s", p->cfg.tls_key);
    } else {
        char dir[400];
        snprintf(dir, sizeof dir, "%s/tls", p->cfg.state_dir);
        struct err why = {0};
        if (tls_make_local(dir, p->cfg.domain, &why) != 0) {
            log_fail(&why, "no TLS: neither proxy.tls_cert nor a directory for a local CA");
            p->cfg.tls_listen = (char *)"";
            return 0;
        }
        snprintf(files.cert, sizeof files.cert, "%s/ingress.pem", dir);
        snprintf(files.key, sizeof files.key, "%s/ingress.key", dir);
    }
    files_changed();
    return swap_in(p, e);
}

void tls_reload(struct proxy *p)
{
    struct err e = {0};
    if (p->cfg.tls_listen[0] == 0 || !files_changed())
        return;
    if (swap_in(p, &e) != 0)
        log_fail(&e, "the old certificate stays in use");
    else
        log_info("loaded the new certificate %s", files.cert);
}
