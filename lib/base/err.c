/* Owns the table of error codes; invariant: one row per code, in the order of the enum, so that HTTP status,
 * gRPC status and name of a code are decided here and nowhere else. */
#include "lib/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* gRPC numbers: https grpc status code table: 1 cancelled, 3 invalid, 4 deadline, 5 not found, 7 denied,
 * 8 exhausted, 9 precondition, 10 aborted, 12 unimplemented, 13 internal, 14 unavailable, 16 unauthenticated.
 */
static const struct {
    const char *name;
    int http;
    int grpc;
} table[ERR_CODES] = {
    [ERR_OK] = {"ok", 200, 0},
    [ERR_INVALID] = {"invalid_argument", 400, 3},
    [ERR_UNAUTHENTICATED] = {"unauthenticated", 401, 16},
    [ERR_FORBIDDEN] = {"forbidden", 403, 7},
    [ERR_NOT_FOUND] = {"not_found", 404, 5},
    [ERR_CONFLICT] = {"conflict", 409, 9},
    [ERR_TOO_LARGE] = {"too_large", 413, 8},
    [ERR_RATE_LIMITED] = {"rate_limited", 429, 8},
    [ERR_INTERNAL] = {"internal_server_error", 500, 13},
    [ERR_UNSUPPORTED] = {"not_implemented", 501, 12},
    [ERR_UNAVAILABLE] = {"unavailable", 503, 14},
    [ERR_CAPACITY] = {"sandbox_capacity_unavailable", 503, 8},
    [ERR_NO_COMPATIBLE_NODE] = {"sandbox_no_compatible_node", 503, 9},
    [ERR_CREATE_FAILED] = {"sandbox_create_failed", 500, 13},
    [ERR_DEADLINE] = {"deadline_exceeded", 504, 4},
    [ERR_CANCELLED] = {"cancelled", 499, 1},
    [ERR_STALE_GENERATION] = {"stale_generation", 409, 10},
    [ERR_STORAGE_FULL] = {"storage_full", 507, 8},
};

static void format(struct err *e, const char *fmt, va_list ap)
{
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    for (char *p = e->msg; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (!e)
        return -1;
    *e = (struct err){.code = code};
    va_list ap;
    va_start(ap, fmt);
    format(e, fmt, ap);
    va_end(ap);
    return -1;
}

int err_sys(struct err *e, enum err_code code, const char *fmt, ...)
{
    int sys = errno;
    if (!e)
        return -1;
    if (sys == ENOSPC || sys == EDQUOT)
        code = ERR_STORAGE_FULL;
    *e = (struct err){.code = code, .sys = sys};
    va_list ap;
    va_start(ap, fmt);
    format(e, fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", strerror(sys));
    return -1;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -1;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    format(e, fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", old);
    return -1;
}

int err_remedy(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->remedy, sizeof e->remedy, fmt, ap);
    va_end(ap);
    return -1;
}

static unsigned row(enum err_code code)
{
    return (unsigned)code < ERR_CODES ? (unsigned)code : ERR_INTERNAL;
}

const char *err_code_name(enum err_code code)
{
    return table[row(code)].name;
}

enum err_code err_code_parse(const char *name)
{
    for (unsigned i = 0; i < ERR_CODES; i++)
        if (strcmp(table[i].name, name) == 0)
            return (enum err_code)i;
    return ERR_INTERNAL;
}

int err_code_http(enum err_code code)
{
    return table[row(code)].http;
}

int err_code_grpc(enum err_code code)
{
    return table[row(code)].grpc;
}
