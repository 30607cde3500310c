/* What is written in the configuration about the operator's authentication service, and what it answers. */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CALLBACK_ANSWER_MAX (64 << 10) /* bytes of an answer's body */
#define CALLBACK_TEAM_MAX 63

struct callback_url {
    char host[256]; /* "" = no service */
    char path[512];
    uint16_t port;
};

/** Parses "http://host[:port]/path"; "" is legal and means none. */
int callback_parse(const char *url, struct callback_url *out, struct err *e);

/** What an answer with this HTTP status and body says: 0 with the team that the key belongs to (never empty)
 * and whether it is an operator's, or -1 with ERR_UNAUTHENTICATED, ERR_FORBIDDEN, or ERR_UNAVAILABLE for
 * every other answer. */
int callback_read(int status, const char *body, size_t n, char team[CALLBACK_TEAM_MAX + 1], bool *admin,
                  struct err *e);
