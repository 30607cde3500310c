/* HTTP for people's commands, on libcurl. */
#pragma once

#include "lib/base/buf.h"
#include "lib/base/err.h"

/** Starts libcurl; call once. */
void http_init(void);

/** One request. `headers` ends with NULL ("Name: value"). `body` may be NULL. The answer's body is appended
 * to `out` (at most 64 MiB), its status is stored in `status`. Returns -1 only when no answer came. */
int http_call(const char *method, const char *url, const char *const *headers, const char *body,
              long timeout_ms, long *status, struct buf *out, struct err *e);

/** As http_call, handing each piece of the body to `piece` as it arrives; `piece` returns false to stop (not
 * an error). */
int http_stream(const char *method, const char *url, const char *const *headers, const void *body,
                size_t body_len, long timeout_ms, long *status,
                bool (*piece)(const char *p, size_t n, void *data), void *data, struct err *e);

/** Turns an API answer that is not 2xx into an error: code from the status, message and remedy from the body;
 * returns -1. */
int http_api_error(long status, struct buf *body, struct err *e);
