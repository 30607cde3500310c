/* Starting a process: one clone3 into its cgroup, identity, descriptors, exec. Shared by cube-envd and
 * cube-init. */
#pragma once

#include "guest/common/users.h"

struct spawn {
    const char *file; /* looked up in PATH of `envp` when it has no slash */
    char *const *argv, *const *envp;
    const char *cwd;
    bool cwd_optional;       /* a missing cwd means "/" */
    const struct user *user; /* applied when it is not the caller's own uid */
    int in, out, err;        /* descriptors of the child; -1 = /dev/null */
    bool tty;                /* `in` is a terminal: it becomes the controlling one */
    int cgroup;              /* directory descriptor of a cgroup v2, or -1 */
    int oom_score_adj; /* written when `set_oom`; the guest's daemons have -1000, which must not be inherited
                        */
    bool set_oom;
    unsigned long nofile_soft, nofile_hard; /* RLIMIT_NOFILE to give back; 0 = leave */
};

enum spawn_step { SPAWN_OK, SPAWN_CLONE, SPAWN_IDENTITY, SPAWN_CWD, SPAWN_STDIO };

/** Starts it. On success returns its pid and sets *pidfd. Otherwise -1, errno and the step that failed. A
 * file that cannot be executed is no failure here: the child says so on its stderr and exits with 126 or 127,
 * as a shell would (contracts/e2b.md §10). The child leads a new session, so its pid is also its process
 * group. */
pid_t spawn_process(const struct spawn *s, int *pidfd, enum spawn_step *step);

/** Sends a signal to the whole group of a process that the caller has not reaped yet (so its pid cannot be
 * recycled). */
int spawn_kill_group(pid_t pid, int sig);
