/* The guest's network: loopback and eth0, by rtnetlink. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

/** Brings loopback up. */
int net_loopback_up(struct err *e);

/** Sets eth0: address "a.b.c.d/len", gateway, mtu; idempotent. 0 also when nothing had to change. */
int net_configure(const char *address, const char *gateway, uint32_t mtu, struct err *e);
