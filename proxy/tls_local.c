/* Makes a certificate authority and a certificate for this installation, so that TLS works without an
 * operator's certificates. Invariant: files are whole or absent, keys are readable by their owner alone, and
 * what is there is never replaced. */
#include "proxy/proxy.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CA_DAYS = 3650, LEAF_DAYS = 825 };

static int x509_extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    int rc = ext ? X509_add_ext(cert, ext, -1) : 0;
    X509_EXTENSION_free(ext);
    return rc;
}

static X509 *x509_make(EVP_PKEY *key, const char *name, X509 *issuer, EVP_PKEY *issuer_key, int days,
                       const char *names)
{
    X509 *cert = X509_new();
    uint64_t serial;
    random_bytes(&serial, sizeof serial);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), serial >> 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -86400);
    X509_gmtime_adj(X509_getm_notAfter(cert), (long)days * 86400);
    X509_set_pubkey(cert, key);
    X509_NAME *subject = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, issuer ? X509_get_subject_name(issuer) : subject);
    X509 *by = issuer ? issuer : cert;
    int ok = x509_extend(cert, by, NID_subject_key_identifier, "hash");
    if (issuer) {
        ok &= x509_extend(cert, by, NID_basic_constraints, "critical,CA:FALSE");
        ok &= x509_extend(cert, by, NID_ext_key_usage, "serverAuth");
        ok &= x509_extend(cert, by, NID_authority_key_identifier, "keyid:always");
        ok &= x509_extend(cert, by, NID_subject_alt_name, names);
    } else {
        ok &= x509_extend(cert, by, NID_basic_constraints, "critical,CA:TRUE");
        ok &= x509_extend(cert, by, NID_key_usage, "critical,keyCertSign,cRLSign");
    }
    if (!ok || X509_sign(cert, issuer_key, EVP_sha256()) == 0) {
        X509_free(cert);
        return NULL;
    }
    return cert;
}

/* Whole or absent: written beside, then renamed. */
static int pem_write(const char *path, mode_t mode, X509 *cert, X509 *chain, EVP_PKEY *key, struct err *e)
{
    char temp[512];
    snprintf(temp, sizeof temp, "%s.new", path);
    unlink(temp);
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    _cleanup_fclose_ FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f == NULL)
        return err_sys(e, ERR_INTERNAL, "writing %s", temp);
    int ok = cert ? PEM_write_X509(f, cert) : 1;
    if (chain)
        ok &= PEM_write_X509(f, chain);
    if (key)
        ok &= PEM_write_PKCS8PrivateKey(f, key, NULL, NULL, 0, NULL, NULL);
    if (!ok || fflush(f) != 0 || fsync(fd) != 0 || rename(temp, path) != 0)
        return err_sys(e, ERR_INTERNAL, "writing %s", path);
    return 0;
}

static X509 *cert_read(const char *path)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    return f ? PEM_read_X509(f, NULL, NULL, NULL) : NULL;
}

static EVP_PKEY *key_read(const char *path)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    return f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
}

int tls_make_local(const char *dir, const char *domain, struct err *e)
{
    char ca_path[512], ca_key_path[512], cert_path[512], key_path[512], names[600];
    snprintf(ca_path, sizeof ca_path, "%s/ca.pem", dir);
    snprintf(ca_key_path, sizeof ca_key_path, "%s/ca.key", dir);
    snprintf(cert_path, sizeof cert_path, "%s/ingress.pem", dir);
    snprintf(key_path, sizeof key_path, "%s/ingress.key", dir);
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making %s", dir);
    if (access(cert_path, R_OK) == 0 && access(key_path, R_OK) == 0)
        return 0;
    X509 *ca = cert_read(ca_path);
    EVP_PKEY *ca_key = key_read(ca_key_path);
    int rc = 0;
    if (ca == NULL || ca_key == NULL) {
        X509_free(ca);
        EVP_PKEY_free(ca_key);
        ca_key = EVP_EC_gen("P-256");
        ca = ca_key ? x509_make(ca_key, "Cube local CA", NULL, ca_key, CA_DAYS, NULL) : NULL;
        rc = ca ? pem_write(ca_key_path, 0600, NULL, NULL, ca_key, e)
                : err_set(e, ERR_INTERNAL, "making the local CA");
        if (rc == 0)
            rc = pem_write(ca_path, 0644, ca, NULL, NULL, e);
    }
    snprintf(names, sizeof names, "DNS:localhost,DNS:*.localhost,IP:127.0.0.1,IP:::1%s%s%s%s",
             domain[0] ? ",DNS:" : "", domain, domain[0] ? ",DNS:*." : "", domain);
    EVP_PKEY *key = rc == 0 ? EVP_EC_gen("P-256") : NULL;
    X509 *cert = key ? x509_make(key, domain[0] ? domain : "localhost", ca, ca_key, LEAF_DAYS, names) : NULL;
    if (rc == 0 && cert == NULL)
        rc = err_set(e, ERR_INTERNAL, "making a certificate for %s", domain);
    if (rc == 0)
        rc = pem_write(key_path, 0600, NULL, NULL, key, e);
    if (rc == 0)
        rc = pem_write(cert_path, 0644, cert, ca, NULL, e);
    X509_free(cert);
    EVP_PKEY_free(key);
    X509_free(ca);
    EVP_PKEY_free(ca_key);
    return rc;
}
