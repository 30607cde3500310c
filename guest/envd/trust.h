/* The certificates of /init's caBundle, where the guest's programs look for trusted ones. */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>

/** What NODE_EXTRA_CA_CERTS of user processes names. */
#define TRUST_FILE "/run/e2b/ca-bundle.pem"

/** Makes programs started from now on trust the PEM certificates of `pem`, instead of those of the last call;
 * "" takes them away again. Returns 0, or -1 with an error when a trust store of this root could not be
 * written. */
int trust_install(const char *pem, struct err *e);

/** Whether the text is one or more PEM certificates and nothing else but comments. */
bool trust_valid(const char *pem);
