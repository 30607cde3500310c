/* The table of routes (routes.def) and the match of a request against it. */
#pragma once

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum route_method { ROUTE_GET, ROUTE_POST, ROUTE_PUT, ROUTE_PATCH, ROUTE_DELETE, ROUTE_METHODS };

/** Who may call: anyone, a team's API key, or the operator. */
enum route_auth { ROUTE_AUTH_NONE, ROUTE_AUTH_KEY, ROUTE_AUTH_ADMIN };

enum route_id {
#define ROUTE(id, ...) ROUTE_ID_##id,
#define MISSING(id, ...) ROUTE_ID_##id,
#include "api/routes.def"
#undef ROUTE
#undef MISSING
    ROUTE_COUNT
};

struct route {
    const char *name; /* "sandbox_create_v2": label of metrics, operationId */
    enum route_method method;
    const char *pattern;
    enum route_auth auth;
    int status;           /* of success; 0 = answers 501 */
    const char *request;  /* schema name, "?" at the end = body optional, "" = no body */
    const char *response; /* schema name, "[]" at the end = list, "" = empty */
    const char *query;    /* "name:type,…" */
    const char *summary;  /* for `status` 0: what is missing */
};

extern const struct route routes[ROUTE_COUNT];

const char *route_method_name(enum route_method m);
/** ROUTE_METHODS when it is none of ours. */
enum route_method route_method_parse(const char *s, size_t n);

#define ROUTE_MAX_ARGS 3
#define ROUTE_MAX_PATH                                                                                       \
    2048 /* longer paths are refused: the longest legal one has two names of 128 characters */

struct route_match {
    enum route_id id;
    const char *args[ROUTE_MAX_ARGS]; /* decoded, NUL-terminated, in `mem` */
    size_t nargs;
    unsigned
        allowed; /* bits (1 << method) of the routes with this path; set also when the method does not fit */
    char mem[ROUTE_MAX_PATH];
};

/** Finds the route of a raw path (without the query). Splits at '/' first and percent-decodes each parameter
 * after it, so that a name like "ns%2Falias" stays one segment (contracts/e2b.md §9.2); empty segments at the
 * front are dropped, for base URLs that end with a slash. Fails with ERR_INVALID (encoding), ERR_TOO_LARGE,
 * ERR_NOT_FOUND, or ERR_UNSUPPORTED when only the method does not fit. */
int route_match(enum route_method method, const char *path, size_t n, struct route_match *out, struct err *e);

/** Percent-decodes `n` bytes; '+' becomes a space when `plus`. Writes at most n bytes (no NUL) and returns
 * how many, or -1 for a bad escape or a NUL byte. `out` may be `s` itself. */
ssize_t percent_decode(const char *s, size_t n, bool plus, char *out);
