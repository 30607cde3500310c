/* Signed /files requests (contracts/e2b.md §3.6). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SIGNATURE_SIZE 48

/** Writes "v1_" and the unpadded base64 SHA-256 of the request's fields; `expiry` NULL = none. */
void signature_make(const char *path, const char *operation, const char *user, const char *token,
                    const char *expiry, char out[SIGNATURE_SIZE]);

struct conn;

/** Checks access to /files: token header, else signature. Returns 0, or -1 after having answered 401. */
int signature_check(struct conn *c, const char *operation);
