/* `cube vm run`: boots one VM outside the platform, for kernel and guest developers. */
#pragma once

/** Runs the command; `argv[0]` is its name. Returns the exit status. */
int vm_run_command(int argc, char **argv);
