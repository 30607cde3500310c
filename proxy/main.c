/* cube-proxy: reads the configuration, takes over or opens the listening sockets, starts one worker per core, runs the control thread.
 * On SIGTERM or when a successor has taken the sockets it stops accepting and drains. */
#include "proxy/proxy.h"

#include "lib/base/log.h"
#include "lib/dp/handover.h"
#include "lib/net/admin.h"
#include "lib/net/config.h"
#include "lib/net/loop.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define S(field, fallback, text) {#field, CONFIG_STR, offsetof(struct proxy_config, field), fallback, 0, 0, text}
#define T(name, field, fallback, text) {name, CONFIG_MS, offsetof(struct proxy_config, field), fallback, 1, 86400000, text}
static const struct config_key keys[] = {
    S(listen, "127.0.0.1:3020", "plain HTTP: sandboxes and, by IP or localhost, the API"),
    S(tls_listen, "127.0.0.1:3021", "TLS with h1 and h2; empty = off"),
    S(admin_listen, "127.0.0.1:3120", "metrics and health, loopback only"),
    S(domain, "", "wildcard domain: <port>-<id>.DOMAIN and api.DOMAIN"),
    S(api, "127.0.0.1:3000", "cube-api"),
    S(lifecycle, "127.0.0.1:3030", "cube-lifecycle, for waking"),
    S(redis, "127.0.0.1:6379", "Redis"),
    S(redis_user, "", "its ACL user"),
    S(redis_password_file, "", "file with its password"),
    S(run_dir, "/run/cube", "for the hand-over socket"),
    S(state_dir, "/var/lib/cube", "tls/ below it holds the local CA"),
    S(key_dir, "/var/lib/cube/keys", "role keys"),
    S(cell, "0", "cell of this cluster"),
    S(log_level, "info", "debug, info, warn or error"),
    S(access_log, "", "file for JSON lines, - = stderr, empty = off"),
    S(tls_cert, "", "PEM chain; empty = a certificate of the local CA"),
    S(tls_key, "", "its key"),
    S(relay_ca, "", "CA of the cluster, for relays off loopback"),
    S(relay_cert, "", "certificate of this proxy"),
    S(relay_key, "", "its key"),
    {"threads", CONFIG_INT, offsetof(struct proxy_config, threads), "0", 0, 64, "worker threads; 0 = one per core"},
    {"max_connections_per_sandbox", CONFIG_INT, offsetof(struct proxy_config, max_per_sandbox), "2500", 1, 1000000, "requests in flight, per worker"},
    {"max_connections_per_client", CONFIG_INT, offsetof(struct proxy_config, max_per_client), "20000", 1, 1000000, "connections of one address, per worker"},
    T("head_timeout", head_timeout_ms, "30s", "first to last byte of a request head, TLS handshake"),
    T("keepalive_timeout", keepalive_timeout_ms, "620s", "idle client connection"),
    T("idle_timeout", idle_timeout_ms, "1h", "open stream without a byte"),
    T("connect_timeout", connect_timeout_ms, "10s", "relay and guest"),
    T("wake_timeout", wake_timeout_ms, "60s", "resume of a paused sandbox"),
    T("drain_timeout", drain_timeout_ms, "10s", "SIGTERM: open streams get this long"),
    {0},
};

static struct proxy proxy;

static bool ready(char why[128], void *data)
{
    bool ok = control_ready(&proxy) && !atomic_load(&proxy.draining);
    if (!ok)
        snprintf(why, 128, atomic_load(&proxy.draining) ? "draining" : "Redis is away");
    return ok;
}

static void on_tick(struct loop_timer *t)
{
    tls_reload(&proxy);
    loop_timer_start(control_loop(&proxy), t, 1000);
}

static void on_cut_off(struct loop_timer *t)
{
    loop_stop(control_loop(&proxy));
}

static void on_signal(int signo, void *data)
{
    static struct loop_timer cut_off = {.fire = on_cut_off};
    if (signo == SIGINT || atomic_exchange(&proxy.draining, 1)) {
        loop_stop(control_loop(&proxy));
        return;
    }
    log_info("draining");
    proxy_drain(&proxy, true);
    loop_timer_start(control_loop(&proxy), &cut_off, proxy.cfg.drain_timeout_ms);
}

static void on_taken(void *data)
{
    log_info("a successor has taken the sockets: draining");
    atomic_store(&proxy.draining, 1);
    proxy_drain(&proxy, false);
}

static int start(struct err *e)
{
    static struct loop_timer tick = {.fire = on_tick};
    struct err admin = {0};
    int confirm = -1;
    if (access_log_open(proxy.cfg.access_log, e) != 0 || tls_load(&proxy, e) != 0 || tls_relay_load(&proxy, e) != 0 ||
        loop_address_parse(proxy.cfg.api, &proxy.api, &proxy.api_len, e) != 0)
        return -1;
    proxy.routes = route_cache_new();
    if (proxy.routes == NULL)
        return err_set(e, ERR_INTERNAL, "making the route cache: out of memory");
    if (workers_open(&proxy, &confirm, on_taken, e) != 0 || control_start(&proxy, e) != 0)
        return -1;
    if (loop_on_signal(control_loop(&proxy), SIGTERM, on_signal, NULL, e) != 0 ||
        loop_on_signal(control_loop(&proxy), SIGINT, on_signal, NULL, e) != 0)
        return -1;
    loop_timer_start(control_loop(&proxy), &tick, 1000);
    for (int i = 0; i < proxy.worker_count; i++)
        if (worker_start(&proxy.workers[i], e) != 0)
            return -1;
    bool succeeds = confirm >= 0;
    if (succeeds)
        dp_handover_confirm(confirm);
    if (proxy.cfg.admin_listen[0] && admin_listen(control_loop(&proxy), proxy.cfg.admin_listen, ready, NULL, &admin) != 0) {
        if (!succeeds) {
            *e = admin;
            return -1;
        }
        log_fail(&admin, "the predecessor still has the admin address");
    }
    return 0;
}

static void usage(void)
{
    puts("cube-proxy [--config cube.yaml]\n\nIngress of the sandboxes: routes each request to a port of a sandbox, or to the API.\n"
         "Keys of the section `proxy`:\n");
    config_usage("proxy", keys);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"config", required_argument, 0, 'c'}, {"help", no_argument, 0, 'h'}, {"version", no_argument, 0, 'v'}, {0}};
    const char *config = NULL;
    struct err e = {0};
    enum log_level level;
    struct rlimit files;
    for (int o; (o = getopt_long(argc, argv, "c:hv", options, NULL)) != -1;) {
        if (o == 'c')
            config = optarg;
        else if (o == 'h' || o == 'v')
            return o == 'h' ? usage(), 0 : (puts("cube-proxy " CUBE_VERSION), 0);
        else
            return 2;
    }
    log_init("cube-proxy", LOG_INFO);
    signal(SIGPIPE, SIG_IGN);
    if (config_load(config, "proxy", keys, &proxy.cfg, &e) != 0) {
        log_fail(&e, "reading the configuration");
        return 1;
    }
    if (log_level_parse(proxy.cfg.log_level, &level))
        log_init("cube-proxy", level);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    stats_init();
    if (start(&e) != 0) {
        log_fail(&e, "starting");
        return 1;
    }
    log_info("%d workers on %s and %s", proxy.worker_count, proxy.cfg.listen, proxy.cfg.tls_listen[0] ? proxy.cfg.tls_listen : "no TLS");
    control_run(&proxy);
    log_info("stopped");
    exit(0);
}
