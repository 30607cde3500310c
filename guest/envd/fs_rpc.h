/* Handlers of filesystem.Filesystem except the watchers (contracts/e2b.md §4.4). */
#pragma once

#include "guest/envd/rpc.h"
#include "lib/base/err.h"

void fs_rpc_stat(struct rpc *r, void *request);
void fs_rpc_list(struct rpc *r, void *request);
void fs_rpc_mkdir(struct rpc *r, void *request);
void fs_rpc_move(struct rpc *r, void *request);
void fs_rpc_remove(struct rpc *r, void *request);

/** The Connect code for an error of a file operation. */
enum rpc_code fs_rpc_code(const struct err *e);
