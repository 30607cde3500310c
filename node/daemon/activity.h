/* What the relay sees: open streams per sandbox and when the last byte passed (<run>/relay/activity.sock). */
#pragma once

#include "node/daemon/node.h"

/** Starts the fiber that asks the relay each second. */
void activity_start(struct node *n);
