/* What the instances of cube-api learn from Redis beside their requests: which masters there are, and how
 * many requests of a team the other instances have counted. One connection per process, on the first
 * thread's loop; no request waits for it. */
#pragma once

#include "api/server.h"

struct cell_config {
    char *redis, *redis_user, *redis_password_file, *cell;
};

/** Connects when something needs Redis (api.master = "discover", or a request limit). `workers` are those
 * that get the masters. Before the threads start. */
int cell_start(const struct cell_config *cfg, struct api *api, struct worker *workers, struct loop *l,
               struct err *e);
/** Ends all of it; from the first thread's loop. */
void cell_stop(void);

/** Whether the masters are to be found in Redis and none was found yet. Any thread. */
bool cell_without_master(void);

/** A count changed: tells the others soon, or at once when `urgent`. Any thread. */
void cell_share_counts(bool urgent);
