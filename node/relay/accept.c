/* Accepts streams of proxies over TCP. Invariant: without a descriptor left no listener is asked again at
 * once: whoever waits stays in the backlog, and the processor is there for those whose end gives one back. */
#include "node/relay/relay.h"

#include "lib/base/log.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

enum { REST_MS = 200, PER_TURN = 64 };

static void listeners_pause(struct relay *r, bool on)
{
    if (r->listener.fd >= 0)
        dp_watch_pause(r->loop, &r->listener, on);
    if (r->link_listener.fd >= 0)
        dp_watch_pause(r->loop, &r->link_listener, on);
}

static void on_rest(struct dp_timer *t)
{
    listeners_pause((struct relay *)((char *)t - offsetof(struct relay, rest)), false);
}

void accept_failed(struct relay *r)
{
    if ((errno != EMFILE && errno != ENFILE) || r->rest.link)
        return;
    log_warn("no descriptors are left");
    listeners_pause(r, true);
    dp_timer_start(r->loop, &r->rest, REST_MS);
}

static void on_listener(struct dp_watch *w, uint32_t events)
{
    struct relay *r = (struct relay *)((char *)w - offsetof(struct relay, listener));
    for (int i = 0; i < PER_TURN && w->fd >= 0; i++) {
        int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            accept_failed(r);
            return;
        }
        stream_start(r, fd);
    }
}

int accept_start(struct relay *r, struct err *e)
{
    r->rest.fire = on_rest;
    r->listener.ready = on_listener;
    r->link_listener.fd = -1; /* until links_serve */
    return dp_watch_add(r->loop, &r->listener, DP_WATCH_LISTEN) == 0
               ? 0
               : err_sys(e, ERR_INTERNAL, "watching the listener");
}
