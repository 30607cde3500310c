/* The record of a sandbox on disk: <state>/sandboxes/<id>/record (proto/node.proto, Record). */
#pragma once

#include "node/daemon/sandbox.h"

int record_save(const struct sandbox *sb, bool durable, struct err *e);
/** Makes the record as it is on disk durable. Blocks. */
int record_flush(struct node *n, const char *id, struct err *e);
/** Reads one record; the caller frees it with cube__node__v1__record__free_unpacked. */
int record_load(struct node *n, const char *id, Cube__Node__V1__Record **out, struct err *e);
/** The bytes of a record, checked: checksum, format, and that it is this sandbox's. */
int record_decode(const char *data, size_t len, const char *id, Cube__Node__V1__Record **out, struct err *e);
void record_remove(struct node *n, const char *id);
/** Removes what a node that was killed while it wrote left beside the record; and the directory when there
 * never was one. */
void record_tidy(struct node *n, const char *id);
