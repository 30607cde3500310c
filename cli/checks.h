/* What a machine must and should have; each check with its finding and the fix. */
#pragma once

#include "cli/settings.h"

enum check_level { CHECK_OK, CHECK_WARN, CHECK_BAD };

struct check_result {
    enum check_level level;
    const char *name;
    char finding[160];
    char fix[160]; /* "" when there is nothing to fix */
};

#define CHECKS_MAX 16

/** Runs all checks; returns how many results were stored. Changes nothing on the machine but a probe file in
 * the state directory. */
int checks_run(const struct settings *s, struct check_result out[CHECKS_MAX]);

/** Boots the guest kernel and runs a probe in its user mode: takes about a second. A warning when `kernel` or
 * `tools` are NULL or not there yet. */
struct check_result checks_selftest(const char *kernel, const char *tools);

/** Fails with the first check that forbids running; used by `cube up`. */
int checks_required(const struct settings *s, struct err *e);

/** One line about the machine, after checks_required: "pvm KVM, cgroup v1, 2 cores, 23 GiB". */
const char *checks_summary(void);

/** "pvm", "hardware" or "none". */
const char *checks_kvm_kind(void);
