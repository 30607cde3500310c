/* The self-test of a host: the guest kernel boots under cube-vmm and a probe runs in its user mode. */
#pragma once

#include "lib/base/err.h"

/** Boots `kernel` with the tools disk and runs cube-init's probe in it, without jail, node or template.
 * Returns the milliseconds it took, or -1 with the reason and a remedy in `e`. Needs /dev/kvm. */
long selftest_run(const char *kernel, const char *tools, struct err *e);
