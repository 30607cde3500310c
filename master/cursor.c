/* Owns the shape of list cursors. Invariant: only what this file could have written is accepted, so a cursor
 * can name a place in an index and nothing else. */
#include "master/cursor.h"

#include <stdio.h>
#include <string.h>

void cursor_encode(const char *member, bool ascending, char out[CURSOR_MAX])
{
    snprintf(out, CURSOR_MAX, "%c%s", ascending ? 'a' : 'd', member);
}

int cursor_decode(const char *token, bool ascending, char *member, struct err *e)
{
    member[0] = 0;
    if (!*token)
        return 0;
    if (strlen(token) != 1 + INDEX_MEMBER_LEN || token[0] != (ascending ? 'a' : 'd') ||
        strspn(token + 1, "0123456789") < 13 || !id_sandbox_valid(token + 14, SANDBOX_ID_LEN))
        return err_set(e, ERR_INVALID, "Invalid next token");
    memcpy(member, token + 1, INDEX_MEMBER_LEN + 1);
    return 0;
}
