/* `cube-init --probe`: the guest's half of the self-test of a host. */
#pragma once

/** As PID 1: tries what a kernel on this kind of host must do for user programs, prints "cube-probe: ok" or
 * "cube-probe: FAILED: what" on the console and resets the machine. Never returns. */
_Noreturn void probe_run(void);
