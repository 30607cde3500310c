/* Runs a command in a sandbox: process.Process/Start of envd over Connect-JSON (contracts/e2b.md §4). */
#pragma once

#include "lib/base/err.h"

#include <stddef.h>

struct envd_target {
    const char *base_url; /* ingress, or an envd itself */
    const char *sandbox_id;
    const char *access_token; /* NULL or "" when the sandbox is not secured */
    const char *user;         /* NULL = the sandbox's default user */
};

struct envd_result {
    int exit_code;
    char status[64]; /* "exit status 0", "signal: killed" */
};

/** Runs argv (argv[0] is the program) and hands output to `out` as it comes: stream 1 or 2. `timeout_ms` 0 =
 * none. */
int envd_run(const struct envd_target *t, char *const *argv, const char *cwd, long timeout_ms,
             void (*out)(int stream, const char *p, size_t n, void *data), void *data,
             struct envd_result *result, struct err *e);
