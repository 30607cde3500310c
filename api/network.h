/* The `network` object of a create and of PUT /sandboxes/{id}/network: the contract's rules, and what this
 * version can honour. */
#pragma once

#include "api/body.h"

#include <stdint.h>

struct network {
    bool private_traffic;          /* allowPublicTraffic: false */
    bool deny_internet;            /* denyOut holds everything and allowOut nothing */
    const char *mask_request_host; /* "" = none; points into the JSON */
};

/** Which network options the nodes of this version enforce; a legal option beyond them is a 400 that names
 * it. */
struct network_support {
    bool lists;   /* CIDR blocks and addresses in allowOut, and in denyOut beyond "everything" */
    bool domains; /* domains in allowOut */
    bool rules;   /* header rules of domains */
    bool egress_proxy;
    bool dns_servers;
    bool https_ports;
};
extern const struct network_support network_supported;

/** Checks a `network` object. `update`: the PUT form, without the ingress options. `secured`: the sandbox has
 * an envd token. */
int network_parse(const json_t *net, const char *path, bool update, bool secured,
                  const struct network_support *can, struct network *out, struct unknown *u, struct err *e);

/** The options that the contract knows, as text for the record (owned by the caller; NULL: out of memory):
 * what nobody knows is not kept, so that it is never shown as if it were in force. */
char *network_text(const json_t *net, bool update);
