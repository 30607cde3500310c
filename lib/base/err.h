/* One error, as every function of the platform reports it: what was being done to which thing, the errno, and
 * a stable code that reaches the API. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Stable error codes. The name (`err_code_name`) is what the API shows as `error_code`; the HTTP status and
 * the gRPC status are derived from it in one place each (`err_code_http`, `err_code_grpc`). */
enum err_code {
    ERR_OK = 0,
    ERR_INVALID,            /* the caller's input is wrong: 400 */
    ERR_UNAUTHENTICATED,    /* no or wrong credentials: 401 */
    ERR_FORBIDDEN,          /* known, but not allowed: 403 */
    ERR_NOT_FOUND,          /* 404 */
    ERR_CONFLICT,           /* wrong state, stale rev or gen: 409 */
    ERR_TOO_LARGE,          /* a limit of size: 413 */
    ERR_RATE_LIMITED,       /* rate or quota: 429 */
    ERR_INTERNAL,           /* a bug or a broken host: 500 */
    ERR_UNSUPPORTED,        /* a feature that is not there: 501 */
    ERR_UNAVAILABLE,        /* a dependency is away; try again: 503 */
    ERR_CAPACITY,           /* no node has room: 503, sandbox_capacity_unavailable */
    ERR_NO_COMPATIBLE_NODE, /* no node fits: 503, sandbox_no_compatible_node */
    ERR_CREATE_FAILED,      /* every candidate failed: 500, sandbox_create_failed */
    ERR_DEADLINE,           /* took too long: 504 */
    ERR_CANCELLED,          /* the caller went away: 499 */
    ERR_STALE_GENERATION,   /* a node knows a newer generation: 409 */
    ERR_STORAGE_FULL,       /* ENOSPC, EDQUOT: 507 */
    ERR_CODES
};

/** An error. Zero-initialise (`struct err e = {0}`); no ownership, safe to copy. */
struct err {
    enum err_code code;
    int sys;          /* errno, or 0 */
    char msg[256];    /* what was being done to which thing, then the reason; one line, never a secret */
    char remedy[128]; /* what the reader can do about it; may be empty */
};

/** Fills `e` (may be NULL) and returns -1. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/** As `err_set`, from `errno`: appends ": strerror", and maps ENOSPC/EDQUOT to ERR_STORAGE_FULL, ENOENT to
 * what was given. */
int err_sys(struct err *e, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/** Puts "prefix: " before the message of an error that came from below; returns -1. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Sets the remedy; returns -1. */
int err_remedy(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Stable lower-case name, for example "not_found"; "internal_server_error" for codes out of range. */
const char *err_code_name(enum err_code code);

/** The code with this name, or ERR_INTERNAL. */
enum err_code err_code_parse(const char *name);

/** HTTP status of the control API for a code. */
int err_code_http(enum err_code code);

/** gRPC status number (0–16) for a code. */
int err_code_grpc(enum err_code code);
