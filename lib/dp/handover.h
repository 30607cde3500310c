/* Passing the listening sockets of a running daemon to its successor, so that an upgrade refuses no
 * connection. */
#pragma once

#include "lib/dp/loop.h"

#define DP_HANDOVER_MAX 64

/** Successor, at start: asks the process that serves `path` for its sockets. Returns their number, 0 when
 * nobody serves the path.
 *  `*confirm` is a descriptor for dp_handover_confirm. The order is that of the predecessor's
 * dp_handover_serve. */
int dp_handover_take(const char *path, int fds[DP_HANDOVER_MAX], int *confirm);
/** Says "I accept connections now": the predecessor starts to drain. Closes the descriptor. */
void dp_handover_confirm(int confirm);

/** Predecessor: serves `path` to processes of the same user (or root). `taken` is called when a successor has
 * confirmed. */
int dp_handover_serve(struct dp_loop *l, const char *path, const int *fds, int count,
                      void (*taken)(void *data), void *data, struct err *e);
