/* What /init sets and everything else reads: token, environment, default user, readiness. One daemon, one
 * state. */
#pragma once

#include "guest/common/users.h"
#include "guest/envd/codec.h"
#include "lib/base/err.h"

#include <stdint.h>

struct state {
    bool in_vm; /* started by cube-init: closed until the identity is set, internal paths only on the control
                   connection */
    bool ready; /* the identity is set */
    bool ca_bundle; /* /init brought certificates (trust.c) */
    bool frozen;    /* between freeze and thaw: nothing starts, nothing but /health answers */
    char sandbox_id[64], template_id[64];
    char default_user[64], default_workdir[4096];
    char *token; /* locked memory, never in a core dump; NULL = none */
    size_t token_len;
    struct pairs envs;                          /* of /init; malloc'ed strings */
    int64_t init_ns;                            /* timestamp of the newest /init */
    int cgroup_user, cgroup_pty, cgroup_system; /* directory descriptors or -1 */
    unsigned long nofile_soft, nofile_hard;     /* limits that we were started with */
    uint64_t root_fallbacks; /* file operations done as root after the user's own identity was refused */
};

extern struct state state;

/** Replaces the token; "" or NULL clears it. Returns 0 or -1. */
int state_token_set(const char *token);

/** Whether `given` is the current token; constant time. With no token set: true. */
bool state_token_matches(const char *given);

/** Replaces all user variables. Returns 0 or -1. */
int state_envs_set(const struct pairs *envs);

/** Calls `each` for the platform's and then the user's variables. */
void state_envs_each(void (*each)(void *arg, const char *key, const char *value), void *arg);

/** The user a request acts as: `name`, or the default one when it is NULL or "". Returns 0, or -1 with errno
 *  (ENOENT: unknown). `name_out` gets what was looked up. */
int state_user(const char *name, struct user *out);

/** Resolves a path as the contract says (§3.2): "" → default workdir or home, ~ → home, relative → home.
 * Normalises it lexically. Returns 0 or fills e. `out` holds PATH_MAX bytes. */
int state_path(const char *path, const struct user *user, char *out, struct err *e);
