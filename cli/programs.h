/* The programs that a cluster runs: copies below <state>/bin. */
#pragma once

#include "cli/daemons.h"

/** Copies every daemon, cube-vmm and cube-vs of this build to <state>/bin where they differ (size or time of
 * change); each copy appears by a rename, so a running program keeps its own. Needs root. */
int programs_install(const struct settings *s, struct err *e);

/** Path of an installed program: <state>/bin/NAME. */
void program_path(const struct settings *s, const char *name, char *out, size_t cap);

/** Path of a daemon's program: the installed one, or the distribution's for those that are not ours. */
void program_of(const struct settings *s, const struct daemon_spec *d, char *out, size_t cap);
