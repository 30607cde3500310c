/* Signatures of /files. Invariant: the comparison takes the same time whatever is wrong, and expiry is looked
 * at only when the signature is right. */
#include "guest/envd/signature.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "guest/envd/codec.h"
#include "guest/envd/conn.h"
#include "guest/envd/state.h"

void signature_make(const char *path, const char *operation, const char *user, const char *token,
                    const char *expiry, char out[SIGNATURE_SIZE])
{
    crypto_hash_sha256_state h;
    unsigned char digest[crypto_hash_sha256_BYTES];
    const char *parts[] = {
        path, ":", operation, ":", user, ":", token, expiry ? ":" : "", expiry ? expiry : ""};
    crypto_hash_sha256_init(&h);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        crypto_hash_sha256_update(&h, (const unsigned char *)parts[i], strlen(parts[i]));
    crypto_hash_sha256_final(&h, digest);
    memcpy(out, "v1_", 3);
    base64_encode(digest, sizeof(digest), out + 3);
    out[3 + 43] = 0; /* 32 bytes are 43 characters and one '=' */
}

static int64_t parse_seconds(const char *s, bool *ok)
{
    char *end;
    long long v = strtoll(s, &end, 10);
    *ok = *s && !*end;
    return v;
}

int signature_check(struct conn *c, const char *operation)
{
    const struct http_req *req = &c->req->http;
    const char *header = http_header(req, "x-access-token");
    if (!state.token)
        return 0;
    if (header) {
        if (state_token_matches(header))
            return 0;
        conn_error(c, 401, "access token present in header but does not match");
        return -1;
    }
    char path[4096], user[256], given[256], expiry[32], want[SIGNATURE_SIZE];
    bool bad = false, ok = true;
    http_query(req->query, "path", path, sizeof(path), &bad);
    http_query(req->query, "username", user, sizeof(user), &bad);
    bool has_expiry = http_query(req->query, "signature_expiration", expiry, sizeof(expiry), &bad);
    if (!http_query(req->query, "signature", given, sizeof(given), &bad)) {
        conn_error(c, 401, "missing signature query parameter");
        return -1;
    }
    signature_make(path, operation, user, state.token, has_expiry ? expiry : NULL, want);
    if (bad || strlen(given) != strlen(want) || sodium_memcmp(given, want, strlen(want)) != 0) {
        conn_error(c, 401, "invalid signature");
        return -1;
    }
    int64_t until = has_expiry ? parse_seconds(expiry, &ok) : 0;
    if (has_expiry && (!ok || until < (int64_t)time(NULL))) {
        conn_error(c, 401, "signature is already expired");
        return -1;
    }
    return 0;
}
