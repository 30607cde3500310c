/* A worker thread: its own loop, its own listening sockets (SO_REUSEPORT), nothing shared but the route cache
 * and counters. Owns the list of client connections. */
#include "proxy/link.h"

#include "lib/base/log.h"
#include "lib/dp/handover.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 32 };

void front_link_add(struct worker *w, struct front_link *f)
{
    f->next = w->front_list;
    f->link = &w->front_list;
    if (f->next)
        f->next->link = &f->next;
    w->front_list = f;
    w->fronts++;
}

void front_link_remove(struct worker *w, struct front_link *f)
{
    if (f->link == NULL)
        return;
    *f->link = f->next;
    if (f->next)
        f->next->link = f->link;
    f->link = NULL;
    w->fronts--;
}

/* ---- accepting ---- */

/* An IPv4 address and the same one mapped into IPv6 are one client. NULL: over the limit, or no memory. */
static struct share *client_enter(struct worker *w, const struct sockaddr *peer)
{
    uint8_t a[17] = {1}; /* no sandbox's ID begins so */
    if (peer->sa_family == AF_INET) {
        a[11] = a[12] = 0xff;
        memcpy(a + 13, &((const struct sockaddr_in *)peer)->sin_addr, 4);
    } else if (peer->sa_family == AF_INET6) {
        memcpy(a + 1, &((const struct sockaddr_in6 *)peer)->sin6_addr, 16);
    }
    return share_enter(a, sizeof a, (uint32_t)w->proxy->cfg.max_per_client);
}

static void accept_one(struct worker *w, int fd, const struct sockaddr_storage *peer, bool tls)
{
    char address[46] = "";
    struct share *c = client_enter(w, (const struct sockaddr *)peer);
    if (c == NULL) {
        stats_add("refused_clients");
        close(fd);
        return;
    }
    if (peer->ss_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)peer)->sin_addr, address, sizeof address);
    else if (peer->ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)peer)->sin6_addr, address, sizeof address);
    SSL *ssl = tls ? tls_accept(w->proxy) : NULL;
    if (tls && ssl == NULL) {
        share_leave(c);
        close(fd);
        return;
    }
    front1_start(w, fd, ssl, c, address);
}

static void accept_some(struct worker *w, struct dp_watch *listener, bool tls)
{
    for (int i = 0; i < ACCEPTS_PER_TURN && listener->fd >= 0; i++) {
        struct sockaddr_storage peer = {0};
        socklen_t len = sizeof peer;
        int fd = accept4(listener->fd, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) {
                /* Clients wait in the backlog; asking again and again would take the processor from those
                 * whose end gives a descriptor back. */
                stats_add("no_descriptors");
                dp_watch_pause(w->loop, listener, true);
                w->accept_paused = true;
            }
            return;
        }
        accept_one(w, fd, &peer, tls);
    }
}

static void on_plain(struct dp_watch *l, uint32_t events)
{
    accept_some((struct worker *)((char *)l - offsetof(struct worker, listen_plain)), l, false);
}

static void on_tls(struct dp_watch *l, uint32_t events)
{
    accept_some((struct worker *)((char *)l - offsetof(struct worker, listen_tls)), l, true);
}

/* ---- draining ---- */

struct drain_msg {
    struct dp_msg msg;
    struct worker *worker;
    bool hard; /* idle connections are closed too */
};

static void drain_check(struct worker *w)
{
    if (atomic_load(&w->proxy->draining) && w->fronts == 0)
        dp_loop_stop(w->loop);
}

static void on_drain_msg(struct dp_msg *m)
{
    struct drain_msg *d = (struct drain_msg *)m;
    struct worker *w = d->worker;
    dp_watch_close(w->loop, &w->listen_plain);
    dp_watch_close(w->loop, &w->listen_tls);
    for (struct front_link *f = w->front_list, *next; d->hard && f; f = next) {
        next = f->next;
        f->drain(f);
    }
    drain_check(w);
    free(d);
}

static void worker_drain(struct worker *w, bool hard)
{
    struct drain_msg *d = calloc(1, sizeof *d);
    if (d == NULL)
        return;
    *d = (struct drain_msg){.msg = {.run = on_drain_msg}, .worker = w, .hard = hard};
    dp_post(w->loop, &d->msg);
}

void proxy_drain(struct proxy *p, bool hard)
{
    for (int i = 0; i < p->worker_count; i++)
        worker_drain(&p->workers[i], hard);
}

static void on_sweep(struct dp_timer *t)
{
    struct worker *w = (struct worker *)((char *)t - offsetof(struct worker, sweep));
    if (atomic_load(&w->proxy->draining) && !w->drained_hard) {
        /* After a hand-over idle clients get some time to make one more request, which is answered with
         * `Connection: close`. */
        if (w->drain_ms == 0)
            w->drain_ms = dp_now_ms(w->loop);
        if (dp_now_ms(w->loop) - w->drain_ms >= w->proxy->cfg.drain_timeout_ms) {
            w->drained_hard = true;
            worker_drain(w, true);
        }
    }
    if (w->accept_paused) {
        w->accept_paused = false;
        if (w->listen_plain.fd >= 0)
            dp_watch_pause(w->loop, &w->listen_plain, false);
        if (w->listen_tls.fd >= 0)
            dp_watch_pause(w->loop, &w->listen_tls, false);
    }
    drain_check(w);
    access_log_flush(w);
    memory_publish(w);
    dp_timer_start(w->loop, t, 200);
}

/* ---- the thread ---- */

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    dp_loop_run(w->loop);
    access_log_flush(w);
    control_worker_ended(w->proxy);
    return NULL;
}

/* Sockets of a predecessor (all plain ones, then all TLS ones) or new ones; then they are offered to a
 * successor. */
static int sockets_open(struct proxy *p, int *fds, int *confirm, struct err *e)
{
    char path[256];
    int per_worker = p->cfg.tls_listen[0] ? 2 : 1;
    snprintf(path, sizeof path, "%s/proxy/handover.sock", p->cfg.run_dir);
    int n = dp_handover_take(path, fds, confirm);
    if (n > 0 && n % per_worker == 0) {
        p->worker_count = n / per_worker;
        return n;
    }
    for (n = 0; n < p->worker_count * per_worker; n++) {
        fds[n] = dp_listen(n < p->worker_count ? p->cfg.listen : p->cfg.tls_listen, true, e);
        if (fds[n] < 0)
            return -1;
    }
    return n;
}

int workers_open(struct proxy *p, int *confirm, void (*taken)(void *), struct err *e)
{
    static int fds[DP_HANDOVER_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    p->worker_count = (int)(p->cfg.threads ? p->cfg.threads : cores > 0 ? cores : 1);
    if (p->worker_count > DP_HANDOVER_MAX / 2)
        p->worker_count = DP_HANDOVER_MAX / 2;
    int n = sockets_open(p, fds, confirm, e);
    if (n < 0)
        return -1;
    p->workers = calloc((size_t)p->worker_count, sizeof *p->workers);
    if (p->workers == NULL)
        return err_set(e, ERR_INTERNAL, "making %d workers: out of memory", p->worker_count);
    for (int i = 0; i < p->worker_count; i++) {
        struct worker *w = &p->workers[i];
        w->proxy = p;
        w->index = i;
        memory_init(w);
        retire_init(w);
        w->loop = dp_loop_new();
        w->routes = route_reader_new(p->routes);
        if (w->loop == NULL || w->routes == NULL)
            return err_sys(e, ERR_INTERNAL, "making worker %d", i);
        w->listen_plain.fd = dup(fds[i]);
        w->listen_tls.fd = n > p->worker_count ? dup(fds[p->worker_count + i]) : -1;
    }
    char path[256];
    snprintf(path, sizeof path, "%s/proxy/handover.sock", p->cfg.run_dir);
    struct err why = {0};
    if (dp_handover_serve(p->workers[0].loop, path, fds, n, taken, NULL, &why) != 0)
        log_fail(&why, "an upgrade will have to refuse connections for a moment");
    return 0;
}

int worker_start(struct worker *w, struct err *e)
{
    w->listen_plain.ready = on_plain;
    w->listen_tls.ready = on_tls;
    if (w->listen_plain.fd >= 0 && dp_watch_add(w->loop, &w->listen_plain, DP_WATCH_LISTEN) != 0)
        return err_sys(e, ERR_INTERNAL, "watching the listener");
    if (w->listen_tls.fd >= 0 && dp_watch_add(w->loop, &w->listen_tls, DP_WATCH_LISTEN) != 0)
        return err_sys(e, ERR_INTERNAL, "watching the TLS listener");
    link_start(w);
    w->sweep.fire = on_sweep;
    dp_timer_start(w->loop, &w->sweep, 200);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    return rc ? (errno = rc, err_sys(e, ERR_INTERNAL, "starting worker %d", w->index)) : 0;
}

void workers_join(struct proxy *p)
{
    for (int i = 0; i < p->worker_count; i++)
        pthread_join(p->workers[i].thread, NULL);
}
