/* Random identifiers. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

#define SANDBOX_ID_LEN 21 /* 'i' + 20 of [a-z0-9]; contracts/e2b.md §7 */

/** Writes a sandbox ID: 'i', the cell character, 19 random characters (DESIGN.md §4). `out` holds 22 bytes.
 */
void id_sandbox(char out[SANDBOX_ID_LEN + 1], char cell);

/** Whether `s` of `n` bytes has the shape of a sandbox ID: 'i' + 20 of [a-z0-9]. */
bool id_sandbox_valid(const char *s, size_t n);

/** Writes `n` random characters of [a-z0-9] and a NUL. */
void id_random(char *out, size_t n);

/** Writes a random version 4 UUID with dashes; `out` holds 37 bytes. */
void id_uuid(char out[37]);

/** Fills from getrandom(2); aborts when the kernel cannot (never seen after boot). */
void random_bytes(void *p, size_t n);

/** Lower-case hex of `n` bytes; `out` holds 2n+1 bytes. */
void hex_encode(const void *p, size_t n, char *out);

/** Parses 2n hex digits (either case); returns false when the text is anything else. */
bool hex_decode(const char *s, void *out, size_t n);

/** Compares secrets of the same length in time that depends only on the length. */
bool secret_equal(const void *a, const void *b, size_t n);
