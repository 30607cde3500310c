/* Who calls: API keys by their digest at a master, with a short cache; the operator by his token. */
#pragma once

#include "api/call.h"

struct key_cache;
struct key_cache *key_cache_new(void);
void key_cache_free(struct key_cache *k);

/** Checks what the route asks for, then goes on with server_authorized(), or ends the call with 401, 403 or
 * 503. */
void auth_check(struct call *c);

/** Forgets a key everywhere in this worker (it was revoked). */
void key_cache_clear(struct key_cache *k);
