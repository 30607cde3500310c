/* SEQPACKET Unix sockets between the processes of a node: one message per datagram, descriptors beside it
 * (internal.md §6). */
#pragma once

#include "lib/base/err.h"

#include <sys/types.h>

#define SEQPACKET_FDS_MAX 16

/** Listens at `path` (what is there is removed), mode 0600, owned by `uid` and `gid`. */
int seqpacket_listen(const char *path, uid_t uid, gid_t gid, struct err *e);
int seqpacket_connect(const char *path, struct err *e);

/** Sends one message with `nfds` descriptors, which stay the caller's; 0, or -1 with errno. Never blocks,
 * never SIGPIPE. */
int seqpacket_send(int fd, const void *data, size_t n, const int *fds, unsigned nfds);
