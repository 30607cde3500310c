/* A control plane of real daemons with simulated nodes, in a directory and on ports of its own. */
#pragma once

#include "lib/base/err.h"

#include <sys/types.h>

struct cluster {
    char dir[64];
    int redis_port, master_port, api_port, lifecycle_port;
    pid_t redis, master, api, lifecycle, nodes;
    int nodes_stdin;
    char admin_token[65], api_key[48];
};

#define CLUSTER_TEMPLATE "benchtemplate0000001"

/** Starts Redis, master, API, lifecycle and `nodes` simulated nodes, and waits until each listens. On an
 * error what was started is stopped; the logs stay in `dir`. */
int cluster_start(struct cluster *c, const char *build, unsigned nodes, struct err *e);
void cluster_stop(struct cluster *c); /* removes the directory as well */
