/* The operator's own authentication service: asked over HTTP about keys that the platform does not know. */
#pragma once

#include "api/call.h"

struct callback_url {
    char host[256]; /* "" = no service */
    char path[512];
    uint16_t port;
};

/** Parses "http://host[:port]/path"; "" is legal and means none. */
int callback_parse(const char *url, struct callback_url *out, struct err *e);

/** The service's word: `team_id` NULL with an error (ERR_UNAUTHENTICATED, ERR_FORBIDDEN, ERR_UNAVAILABLE), or
 * the team and whether the caller is an operator. */
typedef void callback_answer(struct call *c, const char *team_id, bool admin, const struct err *e);

/** Asks about a key: POST {"key","method","path"}; the service answers 200 {"teamID","admin"?}, 401 or 403.
 */
void callback_ask(struct call *c, const char *key, callback_answer *answer);
/** Ends a question in flight, without a callback. */
void callback_cancel(struct call *c);
