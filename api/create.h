/* The body of a create, checked and turned into the spec that the master gets. */
#pragma once

#include "api/body.h"
#include "api/names.h"
#include "proto/sandbox.pb-c.h"

#include <stdint.h>

#define CREATE_TIMEOUT_V1_MS 15000 /* server defaults, contracts/e2b.md §0.1 */
#define CREATE_TIMEOUT_V2_MS 300000

struct create {
    Cube__V1__SandboxSpec spec; /* strings point into the body's JSON and into this struct */
    char template_ref[TEMPLATE_REF_MAX + 1];
    char *network_json;
    Cube__V1__Pair *pairs;
    Cube__V1__Pair **pair_refs;
    struct unknown unknown;
};

/** Checks a body by the rules of contracts/e2b.md §1.4. `max_timeout_ms` is the team's longest timeout, 0 =
 * none. The JSON must outlive `out`; release with create_free, also after a failure. */
int create_parse(const json_t *body, bool v2, int64_t max_timeout_ms, struct create *out, struct err *e);
void create_free(struct create *c);

/** A timeout in seconds against a team's longest; the message is E2B's. */
int timeout_check(int64_t seconds, int64_t max_timeout_ms, struct err *e);
