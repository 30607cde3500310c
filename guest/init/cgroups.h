/* Control groups: `infra` for our own programs, `sandbox/{user,pty,system}` for everything of the user. */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_SANDBOX CGROUP_ROOT "/sandbox"

/** Makes the tree and moves this process into `infra`. What the kernel lacks is only logged. */
void cgroups_setup(void);

/** Stops or continues all user processes and waits until that is so (2 s at most). */
int cgroups_freeze(bool freeze, struct err *e);

/** Directory descriptor of sandbox/<child>, or -1. The caller closes it. */
int cgroups_open(const char *child);

/** Whether any process is left in the sandbox. */
bool cgroups_populated(void);

/** Sends a signal to every process of the sandbox. */
void cgroups_signal(int sig);

/** Kills everything in the sandbox. */
void cgroups_kill(void);

/** Processes killed by the OOM killer in the sandbox so far. */
uint32_t cgroups_oom_kills(void);
