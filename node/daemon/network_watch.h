/* What is seen of the sandboxes' traffic: who is active, what was denied, the counters as metrics, and the
 * answer to `cube sandbox net`. */
#pragma once

#include "node/daemon/sandbox.h"
#include "node/net/vs.h"

void network_watch_start(struct node *n, struct vs *v);

/** The slot is free: what was seen of it is forgotten. */
void network_watch_forget(uint32_t slot);

/** Whether the VM has sent bytes to others in the last seconds. */
bool network_active(const struct vm *vm);

/** Fills the answer; `out` is initialised and its lists are owned by the caller until network_reply_free. */
void network_reply(struct sandbox *sb, Cube__Master__V1__NetworkReply *out);
void network_reply_free(Cube__Master__V1__NetworkReply *out);
