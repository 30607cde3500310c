/* cube.yaml: one file, a section per program, every key overridable by CUBE_<SECTION>_<KEY> (internal.md
 * §12). */
#pragma once

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum config_type {
    CONFIG_STR,
    CONFIG_INT,
    CONFIG_BOOL,
    CONFIG_SIZE /* bytes: 64M, 2G */,
    CONFIG_MS /* 500ms, 30s, 5m, 1h */
};

/** One key of a section. `offset` is where in the caller's struct the value lies: char* (owned by the config,
 * lives for ever), int64_t for INT, SIZE and MS, bool for BOOL. */
struct config_key {
    const char *name; /* "listen" */
    enum config_type type;
    size_t offset;
    const char
        *fallback; /* default, as text, ${key} is another key's value; NULL = that of "common", or required */
    int64_t min, max; /* for numbers, when max > 0 */
    const char *help; /* one line, for --help */
};

/** Reads `path` (NULL or missing file = only defaults and environment; a named file that is missing is an
 * error), checks the whole file (unknown section or key is an error with file, line and column), and fills
 * `out` from the section. `keys` ends with a NULL name. The section "common" (redis, state_dir, run_dir,
 * key_dir, log_level …) is merged below each program's own keys: a key in `keys` that the section does not
 * set is looked up in "common". */
int config_load(const char *path, const char *section, const struct config_key *keys, void *out,
                struct err *e);

/** Prints name, default, environment variable and help of each key. */
void config_usage(const char *section, const struct config_key *keys);

/* The list of all sections and keys, by which the whole file is checked, is made at build time from the rows
 * `"key", CONFIG_…` in the sources of the programs (lib/net/config_schema.py): a new key needs no
 * registration. */
