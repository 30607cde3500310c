/* What the sandbox network needs of a host. */
#pragma once

#include "cli/checks.h"

/** One finding that names everything that is missing. */
void check_network(struct check_result *out);
