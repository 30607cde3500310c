/* What outlives cube-envd: the descriptors of running processes, how the last ones ended, and the latest
 * operation events. */
#pragma once

#include "guest/common/notify.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Keeps a process record (takes the descriptors over). */
void store_put(struct notify_msg *m);
void store_forget(pid_t pid);

/** Keeps how a process ended (the message 'Z'). */
void store_ended(const struct notify_msg *m);

/** Lets go of a process's stdin. */
void store_stdin_close(pid_t pid);

/** Signals the group of a kept process, if it was not reaped yet: who reaps it is who calls this, so its pid
 * is its own.
 */
void store_signal(pid_t pid, int sig);

/** Whether a reaped pid is a kept process; then *out becomes its 'X' message, and the record is marked as
 * ended. */
bool store_exited(pid_t pid, int code, int status, struct notify_msg *out);

/** Sends every kept process ('S', then 'X' for those that ended meanwhile), every kept end ('Z') and 'D' to a
 * fresh envd. */
void store_replay(int fd);

unsigned store_count(void);
