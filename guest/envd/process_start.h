/* Turning a Start request into a running process. */
#pragma once

#include "guest/envd/process.h"

/** Spawns and lists the process; NULL after having answered the call with an error. */
struct proc *process_start(struct rpc *r, const struct msg_start *req);

/** PATH for processes: the daemon's own, or the usual one. */
const char *process_path(void);
