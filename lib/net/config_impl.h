/* What the files of lib/net/config share, and what their fuzz target calls. */
#pragma once

#include "lib/net/config.h"

/** One value as it stands in the file. */
struct config_value {
    char *section, *key, *text;
    size_t line, column; /* 1-based, of the value */
    struct config_value *next;
};

struct config_file {
    const char *name; /* for messages; not owned */
    struct config_value *values;
};

/** Parses a whole file; checks its form only. Sequences of scalars become one comma-separated text. */
int config_parse(const char *name, const char *text, size_t n, struct config_file *out, struct err *e);
void config_file_free(struct config_file *f);

/** Every section and key that some program knows (config_schema.c). */
struct config_known {
    const char *section, *key;
    const char *fallback; /* default, where several programs share the key */
};
extern const struct config_known config_schema[]; /* ends with a NULL section */
bool config_section_known(const char *section);
const struct config_known *config_key_known(const char *section, const char *key);

/** The known key nearest to a misspelt one, or NULL when none is near. */
const char *config_key_near(const char *section, const char *key);
