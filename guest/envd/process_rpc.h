/* Handlers of process.Process (contracts/e2b.md §4.3). */
#pragma once

#include "guest/envd/rpc.h"

void process_list(struct rpc *r, void *request);
void process_start_call(struct rpc *r, void *request);
void process_connect(struct rpc *r, void *request);
void process_update(struct rpc *r, void *request);
void process_send_input(struct rpc *r, void *request);
void process_stream_input(struct rpc *r, void *request);
void process_send_signal(struct rpc *r, void *request);
void process_close_stdin(struct rpc *r, void *request);
