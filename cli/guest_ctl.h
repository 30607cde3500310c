/* The infrastructure plane of a guest (proto/init.proto) as far as a developer's command needs it. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

/** Says hello on a connection to ctl.sock (taken over; -1 = `e` is set already) and gives the guest an
 * identity of a developer's VM; returns when the guest has confirmed it and envd answers, or after
 * `timeout_ms`. */
int guest_ctl_identify(int fd, int64_t timeout_ms, struct err *e);
