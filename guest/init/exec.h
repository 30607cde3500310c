/* Exec on the control connection: the commands of template builds. */
#pragma once

#include "guest/init/control.h"

#include <sys/types.h>

/** Starts the command; its output and end go to `c` as ExecEvents with the request's id. Answers errors
 * itself. */
void exec_start(struct ctl *c, uint64_t id, const Cube__Init__V1__Exec *req);

/** Input for a session of this connection. Returns 0 or -1 with an error. */
int exec_input(struct ctl *c, const Cube__Init__V1__ExecInput *req, struct err *e);

/** Told of every reaped child (waitid's code and status); returns true when it was a session's. */
bool exec_child_ended(pid_t pid, int code, int status);

unsigned exec_count(void);
