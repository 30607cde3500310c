/* The masters that a worker knows: any of them serves any call. */
#pragma once

#include "lib/net/rpc.h"

#define MASTERS_MAX 16
#define MASTER_ADDRESS_MAX 128

struct masters;
struct master;

/** No master yet. With `spread`, this worker prefers another of them than the next worker does, and only a
 * share of the workers moves when one comes or goes; else the first in the list is preferred. */
struct masters *masters_new(struct loop *l, struct rpc_creds *creds, bool spread);
/** The masters are now those of this comma-separated list. One that is no longer in it ends its calls in
 * flight first. On an error nothing has changed. */
int masters_set(struct masters *m, const char *addresses, struct err *e);
/** The master to call, until masters_leave; NULL while none is known. */
struct master *masters_take(struct masters *m);
struct rpc_client *master_client(struct master *one);
/** The call is over. */
void masters_leave(struct master *one);
/** It could not be reached: the next takes its place, unless another call noticed before. */
void masters_failed(struct masters *m, struct master *one);
unsigned masters_count(struct masters *m);
void masters_free(struct masters *m); /* when no call is in flight */
