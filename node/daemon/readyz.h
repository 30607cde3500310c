/* What /readyz of the node's admin listener says. */
#pragma once

#include <stdbool.h>

/** As admin_listen wants it; `node` is the struct node. false: `why` says what is missing (empty while it
 * ends). */
bool readyz_answer(char why[128], void *node);
