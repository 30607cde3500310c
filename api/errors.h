/* The error body of the contract: {code, message, error_code, cause?, remediation?}. */
#pragma once

#include "lib/base/buf.h"
#include "lib/base/err.h"

/** Appends the body for an error that is answered with this HTTP status. `code` is the status as a number,
 * which the JS SDK branches on (contracts/e2b.md §0.2). */
void error_write(struct buf *out, int status, const struct err *e);
