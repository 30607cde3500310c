/* `cube sandbox net ID`, and the denied packets that `cube why` tells of. */
#pragma once

#include "cli/client.h"

/** Prints rules, connections and drops of a sandbox; exit status. */
int sandbox_net_show(struct client *c, const char *id, bool as_json);

/** Prints one line per destination that was denied; nothing when the sandbox has no network or nothing was.
 */
void sandbox_net_denied(struct client *c, const char *id);
