/* Operation events for the sandbox's log: what was done, never the content (issue 6, item 5). Without
 * cube-init they go nowhere. */
#pragma once

#include <stdint.h>

struct proc;

void oplog_start(const struct proc *p);
void oplog_exit(const struct proc *p);

/** kind: file_read, file_write, file_move, file_remove. `to` may be NULL, `size` -1. */
void oplog_file(const char *kind, const char *path, const char *to, int64_t size, const char *user);
