/** Configuration of cube-api: the section `api` of cube.yaml, and what is read from files named there. */
#pragma once

#include "api/cell.h"
#include "api/server.h"
#include "lib/base/err.h"
#include "lib/net/config.h"

#define MAX_THREADS 64

/** What the keys fill. The strings belong to the configuration and live as long as the process. */
struct settings {
    struct api api;
    struct cell_config cell;
    char *admin_listen, *key_dir, *ca, *cert, *key, *admin_token_file, *auth_url;
};

/** The keys of the section, with defaults and help; ended by an entry without a name. */
extern const struct config_key api_keys[];

/** Reads the operator's token and keeps its digest in s->api. Without the file the routes of operators are
 * for admin API keys only (logged). 0, or -1 with ERR_INVALID for a token that is too short. */
int api_config_token(struct settings *s, struct err *e);
