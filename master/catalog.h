/* What the two files of the Catalog service share. */
#pragma once

#include "master/master.h"
#include "proto/master.pb-c.h"

/** 1 to `max` of [a-z0-9] and the characters of `extra`. */
bool catalog_name_ok(const char *s, size_t max, const char *extra);
/** Reads an integer reply; for db_eval. */
int catalog_int_parse(const redisReply *r, void *out, struct err *e);
/** Writes one template; `mode` is "force" or "absent". */
int catalog_template_write(struct master *m, const char *mode, const Cube__Master__V1__Template *t,
                           const uint8_t *packed, size_t n, struct err *e);
