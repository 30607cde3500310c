/* Makes what a cluster on one machine needs before its daemons start: directories, keys, Redis' and the
 * daemons' configuration. */
#pragma once

#include "cli/settings.h"

/** Idempotent: what exists stays (keys are never made anew). */
int bootstrap(const struct settings *s, struct err *e);
