/* Whether this node could start a sandbox now. */
#include "node/daemon/readyz.h"

#include "node/daemon/jailer.h"
#include "node/daemon/network.h"
#include "node/daemon/node.h"
#include "node/daemon/selftest.h"

#include <stdio.h>

bool readyz_answer(char why[128], void *node)
{
    struct node *n = node;
    const char *unfit = *selftest_unfit() ? selftest_unfit() : network_fault();
    snprintf(why, 128, "%s", n->ready ? unfit : "sandboxes are still being taken over");
    if (!*why && !jailer_connected(n->jailer))
        snprintf(why, 128, "no cube-jailer at %s", n->cfg.jailer_socket);
    return !*why && !n->stopping;
}
