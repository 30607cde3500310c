/* The `network` object of a sandbox (contracts/e2b.md §1.4) as CubeVS enforces it: ranges, and names whose
 * addresses DNS opens. */
#pragma once

#include "node/net/vs.h"

#define VS_RULES_NAMES_MAX 1024

struct vs_rules {
    struct vs_cidr *allow, *deny; /* owned */
    size_t n_allow, n_deny;
    char **names; /* owned; lower case, "example.com" or "*.example.com" */
    size_t n_names;
};

/** Reads the validated object ("" = none). `deny_internet` adds a denial of everything, beside which only the
 * allow list stands. */
int vs_rules_parse(const char *network_json, bool deny_internet, struct vs_rules *out, struct err *e);
void vs_rules_free(struct vs_rules *r);

/** Whether DNS may open the addresses of `name` (lower case, no last dot). "*.x" covers every name below x,
 * not x itself. */
bool vs_rules_allows_name(const struct vs_rules *r, const char *name);
