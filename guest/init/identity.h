/* Giving a clone its identity: everything that must differ from its siblings before user code runs (DESIGN
 * §3.7). */
#pragma once

#include "guest/init/control.h"

/** Once at boot: what every guest gets alike, so that a clone finds it in the snapshot. Best effort:
 * `identity_set` checks each thing again. */
void identity_prepare(void);

/** Applies the request and fills the answer: each flag is true only when the thing is in force. Thaws last,
 * and only when everything else succeeded. Returns 0, or -1 with an error (the answer is still valid). */
int identity_set(const Cube__Init__V1__SetIdentity *req, Cube__Init__V1__IdentitySet *out, struct err *e);

bool identity_is_set(void);
uint64_t identity_generation(void);
