/* File operations in the name of a user: the calling thread takes that user's file system identity for a
 * while. */
#pragma once

#include "guest/common/users.h"

#include <stdbool.h>

/** Takes the identity (groups, fsgid, fsuid) of `u` on this thread only. Returns false, and changes nothing,
 * when it is the daemon's own already or the daemon may not change (not root). */
bool fsid_enter(const struct user *u);

/** Back to the daemon's own. Call when `fsid_enter` returned true. */
void fsid_leave(void);
