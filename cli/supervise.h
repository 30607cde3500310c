/* The supervisor of one machine's daemons: starts them, restarts those that die, stops them in reverse order.
 */
#pragma once

#include "cli/settings.h"

#include <sys/types.h>

/** Starts the supervisor in the background; it holds <run>/supervisor.lock while it lives. Returns when it
 * has the lock. */
int supervise_start(const struct settings *s, struct err *e);

/** The supervisor's pid, or 0 when none runs. */
pid_t supervise_pid(const struct settings *s);

/** Asks a running supervisor to restart the daemons whose programs have changed. */
void supervise_refresh(pid_t pid);

/** Stops the supervisor and with it every daemon; returns when it has ended. */
int supervise_stop(const struct settings *s, struct err *e);

/** The pid of a daemon as the supervisor last wrote it, or 0. */
pid_t supervise_daemon_pid(const struct settings *s, const char *name);
