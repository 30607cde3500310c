/* The operator's own authentication service: asked over HTTP about keys that the platform does not know. */
#pragma once

#include "api/call.h"
#include "api/callback_answer.h"

/** The service's word: `team_id` NULL with an error (ERR_UNAUTHENTICATED, ERR_FORBIDDEN, ERR_UNAVAILABLE), or
 * the team and whether the caller is an operator. */
typedef void callback_answer(struct call *c, const char *team_id, bool admin, const struct err *e);

/** Asks about a key: POST {"key","method","path"}; the service answers 200 {"teamID","admin"?}, 401 or 403.
 */
void callback_ask(struct call *c, const char *key, callback_answer *answer);
/** Ends a question in flight, without a callback. */
void callback_cancel(struct call *c);
