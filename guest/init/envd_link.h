/* cube-envd and cube-gateway under supervision, and the requests that cube-init makes to envd. */
#pragma once

#include "guest/init/mounts.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Starts both programs. */
int link_start(const struct tools *tools, struct err *e);

/** Told of every reaped child; restarts ours. Returns true when it was one of them. */
bool link_child_ended(pid_t pid);

/** Sends the bytes of an 'X' message and the like. */
struct notify_msg;
void link_notify(const struct notify_msg *m);

/** One request to envd on the control connection, waiting at most `timeout_ms`. `body` NULL = none. Returns
 * the HTTP status, or -1 with an error. */
int link_request(const char *method, const char *path, const char *body, size_t n, int timeout_ms,
                 struct err *e);

/** What a restarted envd must be told first: the body of the last /init (kept in locked memory), and whether
 * frozen. */
int link_init(const char *body, size_t n, struct err *e);
int link_freeze(bool frozen, struct err *e);

uint32_t link_restarts(void);
pid_t link_envd_pid(void);
