/* A small HTTP/1.1 client on the event loop, for load on loopback: keep-alive connections, one call at a time
 * on each, calls beyond that wait in order. */
#pragma once

#include "lib/net/loop.h"

struct httpc;

/** `headers` is put into every request ("Name: value\r\n"…). */
struct httpc *httpc_new(struct loop *l, int port, unsigned connections, const char *headers);
void httpc_free(struct httpc *h); /* open calls are dropped without a callback */

/** `status` 0: the connection broke. `body` is valid during the callback. `us` is the time since the call was
 * sent. */
typedef void (*httpc_done)(int status, const char *body, size_t n, int64_t us, void *data);
/** `type` is the content type of the body, NULL when there is none. */
void httpc_call(struct httpc *h, const char *method, const char *path, const char *type, const void *body,
                size_t len, httpc_done done, void *data);
