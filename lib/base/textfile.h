/* Small files: control files of the kernel, and records that are there whole or not at all. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>
#include <sys/types.h>

/** One write of `text` to an existing file; 0, or -1 with errno. */
int textfile_write(const char *path, const char *text);

/** Reads at most `room` - 1 bytes and a NUL; the length, or -1 with errno. */
ssize_t textfile_read(const char *path, char *buf, size_t room);

/** Puts a file with this text in place of `path` by rename; mode 0644. */
int textfile_replace(const char *path, const char *text, struct err *e);

/** Makes a directory, or gives an existing one this mode and owner. */
int dir_make(const char *path, mode_t mode, uid_t uid, gid_t gid, struct err *e);

/** Field 22 of /proc/<pid>/stat, which tells a process from another that got the same number; 0: it does not
 * live. */
uint64_t proc_start_time(pid_t pid);
