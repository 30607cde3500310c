/* The token by which a list goes on where the last page ended. */
#pragma once

#include "lib/base/err.h"
#include "lib/base/ids.h"

#include <stdbool.h>

/** Sort key of the indexes: 13 digits of inverted start time, then the ID. */
#define INDEX_MEMBER_LEN (13 + SANDBOX_ID_LEN)
#define CURSOR_MAX (INDEX_MEMBER_LEN + 2)

/** Writes the token of a member; `out` holds CURSOR_MAX bytes. */
void cursor_encode(const char *member, bool ascending, char out[CURSOR_MAX]);

/** Reads a token; `member` holds INDEX_MEMBER_LEN + 1 bytes and becomes "" for an empty token. ERR_INVALID
 * "Invalid next token" when it is malformed or was made for the other order. */
int cursor_decode(const char *token, bool ascending, char *member, struct err *e);
