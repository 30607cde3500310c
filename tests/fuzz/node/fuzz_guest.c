/* What a hostile guest may send to cube-node on the control connection: any bytes, as length-prefixed replies
 * (node/daemon/peer.c). */
#include "lib/net/fiber.h"
#include "node/daemon/peer.h"
#include "proto/init.pb-c.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct loop *loop;

static void on_event(const ProtobufCMessage *m, void *data)
{
    (void)data;
    if (m->descriptor != &cube__init__v1__reply__descriptor)
        abort();
}

static void on_quiet(struct loop_timer *t)
{
    (void)t;
    loop_stop(loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct loop_timer quiet = {.fire = on_quiet};
    int pair[2];
    if (!loop)
        loop = loop_new();
    if (n > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    struct peer *p = peer_new(loop, pair[0],
                              &(struct peer_config){.name = "fuzz",
                                                    .framing = PEER_STREAM,
                                                    .event = on_event,
                                                    .reply = &cube__init__v1__reply__descriptor});
    if (write(pair[1], data, n) < 0)
        abort();
    close(pair[1]);
    loop_timer_start(loop, &quiet, 0);
    loop_run(loop);
    peer_free(p);
    return 0;
}
