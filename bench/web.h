/* HTTP calls that a fiber waits for, and the JSON that they carry. */
#pragma once

#include "bench/httpc.h"
#include "lib/base/buf.h"
#include "lib/base/err.h"

/** One call; the answer's body is put into `body` (may be NULL). Returns the status, 0 when the connection
 * broke; `us` (may be NULL) gets the time. */
int web_call(struct httpc *h, const char *method, const char *path, const char *request, struct buf *body,
             int64_t *us);

/** Runs bash with a command line in a sandbox, as the SDK's commands.run does (contracts/e2b.md §4.2): a
 * Connect stream to envd through the ingress; `h` sends the sandbox's headers. Standard output is appended to
 * `out`. Returns the exit code, or -1. */
int web_run(struct httpc *h, const char *command, struct buf *out, int64_t *us, struct err *e);

/** The string member `key` of a JSON object, copied; false when it is not there. */
bool web_string(struct buf *json, const char *key, char *out, size_t room);

/** Runs `n` calls, at most `h`'s connections at a time; `make` fills path and body (may be NULL) of call i;
 * `seen` (may be NULL) gets each answer. Returns how many had a status other than 2xx. */
size_t web_many(struct httpc *h, size_t n, const char *method,
                void (*make)(size_t i, char path[256], struct buf *body, void *data),
                void (*seen)(size_t i, int status, const char *body, size_t len, int64_t us, void *data),
                void *data);
