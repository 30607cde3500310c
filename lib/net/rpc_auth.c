/* Owns keys and certificates; invariant: an identity is filled only from a certificate that OpenSSL has
 * verified against the cluster's CA. Roles and node IDs are URIs in the SAN: cube://role/<role>,
 * cube://node/<id>. */
#include "lib/net/rpc_impl.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

static const char *const role_names[] = {"api", "master", "node", "lifecycle", "proxy", "admin"};
#define ROLES (sizeof role_names / sizeof *role_names)

const char *rpc_role_name(enum rpc_role role)
{
    for (size_t i = 0; i < ROLES; i++)
        if ((unsigned)role == 1u << i)
            return role_names[i];
    return "none";
}

enum rpc_role rpc_role_parse(const char *name)
{
    for (size_t i = 0; i < ROLES; i++)
        if (strcmp(name, role_names[i]) == 0)
            return (enum rpc_role)(1u << i);
    return RPC_ROLE_NONE;
}

bool rpc_creds_check(const struct rpc_creds *c, enum rpc_role role, const char *hex)
{
    uint8_t key[32];
    if (!(c->known & role) || !hex_decode(hex, key, sizeof key))
        return false;
    for (size_t i = 0; i < ROLES; i++)
        if ((unsigned)role == 1u << i)
            return secret_equal(key, c->keys[i], sizeof key);
    return false;
}

static int load_keys(struct rpc_creds *c, const char *dir, struct err *e)
{
    for (size_t i = 0; i < ROLES; i++) {
        char path[512];
        struct err one = {0};
        if ((size_t)snprintf(path, sizeof path, "%s/%s.key", dir, role_names[i]) >= sizeof path)
            return err_set(e, ERR_INVALID, "the key directory's path is too long: %s", dir);
        bool own = (unsigned)c->role == 1u << i;
        if (secret_file_load(path, c->keys[i], &one) == 0) {
            c->known |= 1u << i;
            if (own)
                hex_encode(c->keys[i], 32, c->own_key);
        } else if (own || (one.sys != ENOENT && one.sys != EACCES)) {
            *e = one;
            return err_remedy(e, "`cube up` makes the keys; key_dir names their directory");
        }
    }
    return 0;
}

static int tls_error(struct err *e, const char *doing, const char *path)
{
    char text[160];
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
    ERR_clear_error();
    return err_set(e, ERR_INTERNAL, "%s %s: %s", doing, path, text);
}

static int load_tls(struct rpc_creds *c, const struct rpc_auth *a, struct err *e)
{
    if (!a->ca || !a->cert || !a->key)
        return err_set(e, ERR_INVALID, "TLS inside the cluster needs all of ca, cert and key");
    _cleanup_fclose_ FILE *cert = fopen(a->cert, "re");
    if (!cert || !(c->cert = PEM_read_X509(cert, NULL, NULL, NULL)))
        return cert ? tls_error(e, "reading the certificate", a->cert)
                    : err_sys(e, ERR_INTERNAL, "opening %s", a->cert);
    _cleanup_fclose_ FILE *key = fopen(a->key, "re");
    if (!key || !(c->key = PEM_read_PrivateKey(key, NULL, NULL, NULL)))
        return key ? tls_error(e, "reading the private key", a->key)
                   : err_sys(e, ERR_INTERNAL, "opening %s", a->key);
    c->ca = X509_STORE_new();
    if (!c->ca || X509_STORE_load_file(c->ca, a->ca) != 1)
        return tls_error(e, "reading the CA", a->ca);
    if (X509_check_private_key(c->cert, c->key) != 1)
        return tls_error(e, "matching the private key to", a->cert);
    c->tls = true;
    return 0;
}

struct rpc_creds *rpc_creds_load(const struct rpc_auth *auth, struct err *e)
{
    struct rpc_creds *c = calloc(1, sizeof *c);
    if (!c) {
        err_set(e, ERR_INTERNAL, "loading credentials: out of memory");
        return NULL;
    }
    c->role = auth->role;
    bool tls = auth->ca || auth->cert || auth->key;
    int r = tls ? load_tls(c, auth, e) : auth->key_dir ? load_keys(c, auth->key_dir, e) : 0;
    if (r == 0)
        return c;
    rpc_creds_free(c);
    return NULL;
}

void rpc_creds_free(struct rpc_creds *c)
{
    if (!c)
        return;
    X509_free(c->cert);
    EVP_PKEY_free(c->key);
    X509_STORE_free(c->ca);
    OPENSSL_cleanse(c, sizeof *c);
    free(c);
}

static void read_uri(const ASN1_IA5STRING *uri, struct rpc_identity *who)
{
    static const char role[] = "cube://role/", node[] = "cube://node/";
    const char *s = (const char *)ASN1_STRING_get0_data(uri);
    size_t n = (size_t)ASN1_STRING_length(uri);
    char text[128];
    if (n >= sizeof text || memchr(s, '\0', n))
        return;
    memcpy(text, s, n);
    text[n] = '\0';
    if (strncmp(text, role, sizeof role - 1) == 0)
        who->roles |= rpc_role_parse(text + sizeof role - 1);
    else if (strncmp(text, node, sizeof node - 1) == 0 && n - (sizeof node - 1) < sizeof who->node)
        strcpy(who->node, text + sizeof node - 1);
}

static int on_verify(X509_STORE_CTX *store, void *arg)
{
    struct rpc_identity *who = arg;
    *who = (struct rpc_identity){0};
    if (X509_verify_cert(store) != 1)
        return 0;
    GENERAL_NAMES *names =
        X509_get_ext_d2i(X509_STORE_CTX_get0_cert(store), NID_subject_alt_name, NULL, NULL);
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_URI)
            read_uri(name->d.uniformResourceIdentifier, who);
    }
    GENERAL_NAMES_free(names);
    return 1;
}

/* One context per connection: h2o hides the SSL object, so the verified identity reaches us through the
 * context's own callback argument. Connections inside the cluster are few and long-lived. */
SSL_CTX *rpc_creds_tls(const struct rpc_creds *c, bool server, struct rpc_identity *who)
{
    static const uint8_t alpn[] = {2, 'h', '2'};
    SSL_CTX *ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!ctx)
        return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set1_cert_store(ctx, c->ca);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, on_verify, who);
    SSL_CTX_set_purpose(ctx, server ? X509_PURPOSE_SSL_CLIENT : X509_PURPOSE_SSL_SERVER);
    if (SSL_CTX_use_certificate(ctx, c->cert) != 1 || SSL_CTX_use_PrivateKey(ctx, c->key) != 1) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    if (server) {
        static const h2o_iovec_t h2[] = {{H2O_STRLIT("h2")}, {NULL, 0}};
        h2o_ssl_register_alpn_protocols(ctx, h2);
    } else {
        SSL_CTX_set_alpn_protos(ctx, alpn, sizeof alpn);
    }
    return ctx;
}
