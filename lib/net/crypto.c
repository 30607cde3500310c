/* Owns hashes, MACs and the derivation of tokens from the cluster's seed; invariant: the texts that go into a
 * derivation are those of internal.md §5 and §9 and are written nowhere else. */
#include "lib/net/crypto.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"

#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;
static pthread_key_t sha256_contexts;
static EVP_MD *sha256_md;

static void context_free(void *ctx)
{
    EVP_MD_CTX_free(ctx);
}

static void sha256_prepare(void)
{
    sha256_md = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!sha256_md || pthread_key_create(&sha256_contexts, context_free) != 0)
        abort();
}

/* The one-shot SHA256() looks the algorithm up under the library's locks and allocates each time; requests
 * are authenticated by this, so each thread keeps a context. */
void sha256(const void *p, size_t n, uint8_t out[32])
{
    pthread_once(&sha256_once, sha256_prepare);
    EVP_MD_CTX *ctx = pthread_getspecific(sha256_contexts);
    if (!ctx) {
        ctx = EVP_MD_CTX_new();
        if (!ctx || pthread_setspecific(sha256_contexts, ctx) != 0)
            abort();
    }
    if (!EVP_DigestInit_ex2(ctx, sha256_md, NULL) || !EVP_DigestUpdate(ctx, p, n) ||
        !EVP_DigestFinal_ex(ctx, out, NULL))
        abort();
}

void sha256_hex(const void *p, size_t n, char out[65])
{
    uint8_t raw[32];
    sha256(p, n, raw);
    hex_encode(raw, sizeof raw, out);
}

void hmac_sha256(const void *key, size_t key_len, const void *p, size_t n, uint8_t out[32])
{
    unsigned len = 0;
    /* Only an allocation failure can end here, and a token made of garbage must never leave. */
    if (!HMAC(EVP_sha256(), key, (int)key_len, p, n, out, &len) || len != 32)
        abort();
}

int secret_file_load(const char *path, uint8_t out[32], struct err *e)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "opening the secret file %s", path);
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "checking the secret file %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INTERNAL, "the secret file %s is no regular file", path);
    if (st.st_mode & 0037) {
        err_set(e, ERR_INTERNAL, "the secret file %s has mode %04o, which lets others read or change it",
                path, st.st_mode & 07777);
        return err_remedy(e, "chmod 0600 %s", path);
    }
    char text[80];
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n < 0)
        return err_sys(e, ERR_INTERNAL, "reading the secret file %s", path);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    text[n] = '\0';
    bool ok = n == 64 && hex_decode(text, out, 32);
    OPENSSL_cleanse(text, sizeof text);
    if (!ok)
        return err_set(e, ERR_INTERNAL, "the secret file %s does not hold 64 hex digits", path);
    return 0;
}

int seed_load(const char *path, struct seed *out, struct err *e)
{
    *out = (struct seed){.version = 1};
    return secret_file_load(path, out->bytes, e);
}

static void derive(const struct seed *s, const char *text, uint8_t out[32])
{
    hmac_sha256(s->bytes, sizeof s->bytes, text, strlen(text), out);
}

void token_envd(const struct seed *s, const char *sandbox_id, char out[65])
{
    uint8_t raw[32];
    derive(s, sandbox_id, raw);
    hex_encode(raw, sizeof raw, out);
}

void token_traffic(const struct seed *s, const char *sandbox_id, char out[65])
{
    char text[64];
    uint8_t raw[32];
    snprintf(text, sizeof text, "traffic-%.40s", sandbox_id);
    derive(s, text, raw);
    hex_encode(raw, sizeof raw, out);
}

void ticket_derive(const struct seed *s, const char *sandbox_id, uint64_t gen, uint8_t out[32])
{
    char text[96];
    snprintf(text, sizeof text, "ticket-%.40s-%" PRIu64, sandbox_id, gen);
    derive(s, text, out);
}
