/* cube.node.v1.Sandboxes: the commands of masters. */
#pragma once

#include "lib/net/rpc.h"
#include "node/daemon/node.h"

void service_add(struct rpc_server *server, struct node *n);
