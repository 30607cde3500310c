/* Hashes, MACs and the tokens derived from the cluster's seed (internal.md §5, §9). OpenSSL behind. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

void sha256(const void *p, size_t n, uint8_t out[32]);
void sha256_hex(const void *p, size_t n, char out[65]);
void hmac_sha256(const void *key, size_t key_len, const void *p, size_t n, uint8_t out[32]);

/** Reads a secret of 32 bytes: a regular file of mode 0600 or 0640 that holds one line of 64 hex digits. */
int secret_file_load(const char *path, uint8_t out[32], struct err *e);

/** The cluster's secret seed: file of mode 0600, 64 hex digits. */
struct seed {
    uint8_t bytes[32];
    int version;
};
int seed_load(const char *path, struct seed *out, struct err *e);

void token_envd(const struct seed *s, const char *sandbox_id, char out[65]); /* hex HMAC(seed, id) */
void token_traffic(const struct seed *s, const char *sandbox_id,
                   char out[65]); /* hex HMAC(seed, "traffic-" id) */
void ticket_derive(const struct seed *s, const char *sandbox_id, uint64_t gen,
                   uint8_t out[32]); /* HMAC(seed, "ticket-" id "-" gen) */
