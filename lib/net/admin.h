/* The admin listener of every daemon (loopback): /metrics, /healthz (the process runs), /readyz (it can do
 * its work). */
#pragma once

#include "lib/base/err.h"
#include "lib/net/loop.h"

/** `ready` fills `why` when not ready. Refuses an address off loopback. Returns the port in use (so >= 0), or
 * -1. Lives as long as the process. */
int admin_listen(struct loop *l, const char *address, bool (*ready)(char why[128], void *data), void *data,
                 struct err *e);
