/* What happened in a sandbox, for the logs API: events of its guest and of the node, in a bounded file of
 * JSON lines next to its record. */
#pragma once

#include "node/daemon/node.h"
#include "proto/init.pb-c.h"
#include "proto/master.pb-c.h"

struct eventlog;
struct sandbox;

struct eventlog *eventlog_new(struct node *n, const char *sandbox_id);
/** Memory only: the files go with the sandbox's directory, when its tombstone does (an hour after the end).
 */
void eventlog_free(struct eventlog *l);

void eventlog_add(struct eventlog *l, int64_t ts_ms, const char *level, const char *message);
/** A guest's event: bounded in size, and in number per second; what is too much is counted and said once. */
void eventlog_add_guest(struct sandbox *sb, const Cube__Init__V1__Event *ev);

/** Entries from `cursor_ms` on (backward: up to it), at most `limit`; released with eventlog_reply_free. */
int eventlog_read(struct eventlog *l, const Cube__Master__V1__ReadLogRequest *req,
                  Cube__Master__V1__ReadLogReply *out, struct err *e);
void eventlog_reply_free(Cube__Master__V1__ReadLogReply *reply);
