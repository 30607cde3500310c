/* The masters that a worker knows: any of them serves any call. */
#pragma once

#include "lib/net/rpc.h"

#define MASTERS_MAX 16

struct masters;

/** Opens clients to the addresses of a comma-separated list. */
struct masters *masters_new(struct loop *l, struct rpc_creds *creds, const char *addresses, struct err *e);
/** The one in use, and its number for masters_failed. */
struct rpc_client *masters_current(struct masters *m, unsigned *number);
/** The one with this number could not be reached: the next takes its place, unless another call noticed
 * before. */
void masters_failed(struct masters *m, unsigned number);
unsigned masters_count(struct masters *m);
void masters_free(struct masters *m);
