/* cube.node.v1.Sandboxes: the commands of masters. One that comes while the node still takes over its
 * sandboxes waits up to 5 s, then fails with ERR_UNAVAILABLE: nothing true could be said or done before. */
#pragma once

#include "lib/net/rpc.h"
#include "node/daemon/node.h"

void service_add(struct rpc_server *server, struct node *n);

/** Adoption is done: serves what waited. Once, from a fiber. */
void service_ready(struct node *n);
