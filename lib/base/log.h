/* JSON-line log on stderr (contracts/internal.md §12): {ts, level, prog, msg, sandbox, gen, trace,
 * error_code}. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/** What a line is about; every member may be NULL or 0. */
struct log_about {
    const char *sandbox;
    uint64_t gen;
    const char *trace;
    const struct err *err;
};

/** Sets program name (kept, not copied) and the least level that is written. Call once at start. */
void log_init(const char *prog, enum log_level least);

/** Parses debug|info|warn|error; returns false for anything else. */
bool log_level_parse(const char *s, enum log_level *out);

/** Writes one line with a single write(2); never blocks on a lock, never allocates; lines are cut at 4 KiB.
 */
void log_line(enum log_level level, const struct log_about *about, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(...) log_line(LOG_DEBUG, NULL, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, NULL, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, NULL, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, NULL, __VA_ARGS__)
/** As the above with an error: log_fail(&e, "starting %s", id). */
#define log_fail(e, ...) log_line(LOG_ERROR, &(struct log_about){.err = (e)}, __VA_ARGS__)
