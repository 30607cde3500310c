/* A free port for a simulated node. */
#pragma once

#include "lib/base/err.h"
#include "lib/net/rpc.h"

#include <unistd.h>

/** Listens on a free port of 127.0.0.1. Where connections of others hold every port of the machine, which
 * lasts a minute after their end, it tries again: a test is not told of it. -1 after a minute, or on another
 * error. */
static inline int listen_somewhere(struct rpc_server *server, struct err *e)
{
    for (int tries = 0; rpc_server_listen(server, "127.0.0.1:0", e) < 0; tries++) {
        if (e->code != ERR_CONFLICT || tries == 600)
            return -1;
        *e = (struct err){0};
        usleep(100000);
    }
    return 0;
}
