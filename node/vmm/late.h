/* What the log gets when a running guest does not answer. */
#pragma once

#include "node/vmm/vm.h"

/** Stops the vCPUs for a moment and logs, a line each, their registers and local APICs, the IOAPIC and the
 * rings of every device: a lost interrupt shows as work in a ring with nothing pending anywhere. Control
 * thread only. */
void late_report(struct vm *vm);
