/* Making a template's snapshot for this class of host: boot with the memory in a file, wait for envd, freeze,
 * write, publish. */
#pragma once

#include "node/daemon/node.h"

/** Whether the snapshot for the node's class, kernel, tools and size is there. The class must be known. */
enum presence make_presence(struct node *n, const char *template_id, struct err *e);

/** Makes it. In a fiber; takes about as long as a boot. */
int make_snapshot(struct node *n, const char *template_id, struct err *e);
