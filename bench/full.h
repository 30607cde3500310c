/* A whole cluster with real VMs for a benchmark: `cube up` in its own directories and on free ports. */
#pragma once

#include "lib/base/err.h"

struct full {
    const char *root;
    char dir[40], state[64], run[64], log[64], base[16], api_key[64], template_id[64];
    int port; /* of the API; the proxy is at +20, the node at +40 */
};

/** Makes the directories and finds ports; starts nothing. */
int full_prepare(struct full *f, const char *root, struct err *e);
/** `cube VERB` for this cluster with the front door of `root`; `seconds` (may be NULL) gets the time. */
int full_cube(struct full *f, const char *root, const char *verb, double *seconds, struct err *e);
/** Reads API key and template after `cube up`. */
int full_describe(struct full *f, struct err *e);
/** `cube down`; removes the directories unless `keep`. */
void full_end(struct full *f, bool keep);
