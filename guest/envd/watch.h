/* Directory watchers (contracts/e2b.md §4.4): inotify behind WatchDir streams and polled watchers. */
#pragma once

#include "guest/envd/rpc.h"

void watch_dir(struct rpc *r, void *request);
void watch_create(struct rpc *r, void *request);
void watch_events(struct rpc *r, void *request);
void watch_remove(struct rpc *r, void *request);
