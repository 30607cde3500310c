/* Child processes of a benchmark: they end with it, whatever happens. */
#pragma once

#include "lib/base/err.h"

#include <sys/types.h>

/** A port on 127.0.0.1 that nobody uses now. */
int proc_free_port(void);

/** Starts argv with output appended to `log`; `stdin_fd` (may be NULL) receives the write end of its standard
 * input. */
pid_t proc_start(char *const *argv, const char *log, int *stdin_fd, struct err *e);

/** Waits until something listens on 127.0.0.1:port; fails when the process ends before, or after
 * `timeout_ms`. */
int proc_wait_port(pid_t pid, int port, int timeout_ms, const char *name, struct err *e);

/** SIGTERM, then SIGKILL after two seconds. */
void proc_stop(pid_t pid);

/** User and system CPU time of a running process so far, in microseconds; -1 when it is gone. */
long long proc_cpu_us(pid_t pid);
/** Resident memory in KiB. */
long proc_rss_kib(pid_t pid);

/** Runs a command to its end; returns its exit status, or -1. Output goes to `log`. */
int proc_run(char *const *argv, const char *log, struct err *e);
