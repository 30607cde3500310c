/* File contents: hashing, and copies that share or stay sparse. */
#pragma once

#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/** Hash of a whole file as 64 hex digits: SHA-256 over each 64 KiB block that is not all zeros (its index as
 * u64, then the block), then the size as u64. So it names the content, is the same however sparse the file
 * is, and costs nothing for holes. Blocks. */
int content_hash(int fd, char out[65], struct err *e);

/** As content_hash; remembers (device, inode, size, modification time) → hash in a file of `dir`, so that the
 * same unchanged file is read once. For what an operator imports again and again. */
int content_hash_cached(int dir, int fd, char out[65], struct err *e);

/** Makes the empty file `to` a copy of `from`: shared blocks where the file system can (FICLONE), else a copy
 * of the data extents that leaves holes holes. */
int content_clone(int from, int to, struct err *e);

/** Checks size and hash. What was found good once is remembered for the life of the process by (device,
 * inode, size, modification time), so a hot template is not read again for each sandbox. ERR_INTERNAL with
 * both values when the file is damaged. */
int content_verify(int fd, const char *what, int64_t size, const char hash[65], struct err *e);

/** Whether `content_verify` would take this file's word for it, without reading. */
bool content_known(int fd, const char hash[65]);

/** warm.c: reads the dense parts of a memory image into the page cache in huge pages, charged to this
 * process. `again`: also what somebody else read or wrote there before. Blocks; never fails. */
void content_warm(int fd, bool again);

/** Notes that the open file is known to have this hash (it was just written by us). */
void content_trust(int fd, const char hash[65]);
