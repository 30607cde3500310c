/* Names to addresses without stopping the loop: numeric addresses at once, names by getaddrinfo on a thread
 * of their own. */
#pragma once

#include "lib/base/err.h"
#include "lib/net/loop.h"

struct resolve;

/** Resolves "host:port" (also numeric, IPv6 in brackets, and "unix:/path"). `done` is always called later,
 * from the loop, with `a` NULL on failure. The result is freed by the caller's `resolve_cancel` only before
 * `done`. */
struct resolve *resolve_start(struct loop *l, const char *address,
                              void (*done)(const struct sockaddr_storage *a, socklen_t len,
                                           const struct err *e, void *data),
                              void *data);
/** The loop is freed: what is looked up for it is dropped when it comes. */
void resolve_loop_ends(struct loop *l);
void resolve_cancel(struct resolve *r); /* no callback follows; NULL is allowed */
