/* Start and end of the process: opens (or takes over) the sockets, begins to accept when routes can be read,
 * drains when told to or when a successor has taken the sockets. Runs on the control thread, but for
 * on_taken. */
#include "proxy/proxy.h"

#include "lib/base/log.h"
#include "lib/dp/handover.h"
#include "lib/net/admin.h"
#include "lib/net/daemon.h"
#include "lib/net/loop.h"

#include <stdio.h>
#include <stdlib.h>

static struct proxy *proxy;
static int confirm = -1; /* a predecessor waits for our word */
static bool accepting;
static int64_t started_ms;

/* Accepting begins when routes can be looked up (or after a while without Redis): until then a predecessor
 * goes on, or clients wait in the queue of the socket. */
static void accept_start(void)
{
    struct err e = {0};
    if (!control_ready(proxy) && loop_now_ms(control_loop(proxy)) - started_ms < 3000)
        return;
    accepting = true;
    for (int i = 0; i < proxy->worker_count; i++) {
        if (worker_start(&proxy->workers[i], &e) != 0) {
            log_fail(&e, "starting the workers");
            exit(1);
        }
    }
    if (confirm >= 0)
        dp_handover_confirm(confirm);
    control_accepting(proxy);
    log_info("%d workers on %s and %s", proxy->worker_count, proxy->cfg.listen,
             proxy->cfg.tls_listen[0] ? proxy->cfg.tls_listen : "no TLS");
}

static void on_tick(struct loop_timer *t)
{
    if (!accepting)
        accept_start();
    else
        tls_reload(proxy);
    loop_timer_start(control_loop(proxy), t, accepting ? 1000 : 10);
}

static bool ready(char why[128], void *data)
{
    bool ok = accepting && control_ready(proxy) && !atomic_load(&proxy->draining);
    if (!ok)
        snprintf(why, 128, atomic_load(&proxy->draining) ? "draining" : "Redis is away");
    return ok;
}

void proxy_stop(struct proxy *p)
{
    atomic_store(&proxy->draining, 1);
    if (accepting)
        proxy_drain(proxy, true);
    else
        daemon_done();
}

static void on_taken(void *data)
{
    log_info("a successor has taken the sockets: draining");
    atomic_store(&proxy->draining, 1);
    proxy_drain(proxy, false);
}

int proxy_start(struct proxy *p, struct loop *l, struct err *e)
{
    proxy = p;
    static struct loop_timer tick = {.fire = on_tick};
    struct err admin = {0};
    /* All of it may wait here for a client: behind the proxy there is no other buffer of that size, and a
     * handle that is not read for a while should not hold its process up (E2B's own way holds megabytes). */
    dp_io_limit(proxy->cfg.stream_buffer, proxy->cfg.stream_buffer);
    if (access_log_open(proxy->cfg.access_log, e) != 0 || tls_load(proxy, e) != 0 ||
        relay_tls_load(proxy, e) != 0 ||
        loop_address_parse(proxy->cfg.api, &proxy->api, &proxy->api_len, e) != 0)
        return -1;
    proxy->routes = route_cache_new();
    if (proxy->routes == NULL)
        return err_set(e, ERR_INTERNAL, "making the route cache: out of memory");
    if (workers_open(proxy, &confirm, on_taken, e) != 0 || control_start(proxy, l, e) != 0)
        return -1;
    started_ms = loop_now_ms(l);
    loop_timer_start(l, &tick, 0);
    if (proxy->cfg.admin_listen[0] && admin_listen(l, proxy->cfg.admin_listen, ready, NULL, &admin) < 0) {
        if (confirm < 0) {
            *e = admin;
            return -1;
        }
        log_fail(&admin, "the predecessor still has the admin address");
    }
    return 0;
}
