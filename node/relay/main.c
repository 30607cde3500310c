/* cube-relay: reads the configuration, takes over or opens the listening socket, runs the loop. On SIGTERM or
 * when a successor has taken the socket it stops accepting and ends with its last stream. */
#include "node/relay/relay.h"

#include "lib/base/crash.h"
#include "lib/base/log.h"
#include "lib/dp/handover.h"
#include "lib/net/daemon.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

static struct relay relay;

static void drain(void *data)
{
    relay.draining = true;
    dp_watch_close(relay.loop, &relay.listener);
    links_close(&relay);
    log_info("draining %u streams", relay.open);
    if (relay.open == 0)
        dp_loop_stop(relay.loop);
}

static void on_signal(struct dp_watch *w, uint32_t events)
{
    struct signalfd_siginfo si;
    if (read(w->fd, &si, sizeof si) != sizeof si)
        return;
    if (relay.draining || si.ssi_signo == SIGINT)
        dp_loop_stop(relay.loop);
    else
        drain(NULL);
}

static void on_sweep(struct dp_timer *t)
{
    tickets_sweep(&relay);
    dp_timer_start(relay.loop, t, 5000);
}

static int start(struct err *e)
{
    char path[256];
    int fds[DP_HANDOVER_MAX], confirm = -1;
    static int given[1];
    if (relay_tls_load(&relay, e) != 0)
        return -1;
    dp_io_limit(relay.cfg.stream_buffer, relay.cfg.stream_buffer / 8);
    relay.loop = dp_loop_new();
    if (relay.loop == NULL)
        return err_sys(e, ERR_INTERNAL, "making the event loop");
    snprintf(path, sizeof path, "%s/relay/handover.sock", relay.cfg.run_dir);
    int n = dp_handover_take(path, fds, &confirm);
    given[0] = n == 1 ? fds[0] : dp_listen(relay.cfg.listen, false, e);
    if (given[0] < 0)
        return -1;
    relay.listener.fd = dup(given[0]);
    static struct dp_watch signals;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signals = (struct dp_watch){.ready = on_signal, .fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
    static struct dp_timer sweep = {.fire = on_sweep};
    dp_timer_start(relay.loop, &sweep, 5000);
    if (accept_start(&relay, e) != 0)
        return -1;
    if (dp_watch_add(relay.loop, &signals, EPOLLIN) != 0)
        return err_sys(e, ERR_INTERNAL, "watching for signals");
    if (links_serve(&relay, e) != 0) /* before a predecessor closes its own: proxies come here at once */
        return -1;
    if (confirm >= 0)
        dp_handover_confirm(confirm);
    if (activity_serve(&relay, e) != 0 || dp_handover_serve(relay.loop, path, given, 1, drain, NULL, e) != 0)
        return -1;
    struct err admin = {0};
    if (relay_admin_serve(&relay, &admin) != 0) {
        if (confirm < 0) {
            *e = admin;
            return -1;
        }
        log_fail(&admin, "the predecessor still has the admin address");
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, 0, 'c'},
                                            {"help", no_argument, 0, 'h'},
                                            {"version", no_argument, 0, 'v'},
                                            {0}};
    const char *config = NULL;
    for (int o; (o = getopt_long(argc, argv, "c:hv", options, NULL)) != -1;) {
        switch (o) {
        case 'c':
            config = optarg;
            break;
        case 'v':
            puts("cube-relay " CUBE_VERSION);
            return 0;
        case 'h':
            puts("cube-relay [--config cube.yaml]\n\nCarries authenticated streams from cube-proxy into the "
                 "guests of this node.\n"
                 "Keys of the section `relay`:\n");
            config_usage("relay", relay_keys);
            return 0;
        default:
            return 2;
        }
    }
    log_init("cube-relay", LOG_INFO);
    crash_init("cube-relay");
    signal(SIGPIPE, SIG_IGN);
    struct err e = {0};
    enum log_level level;
    if (config_load(config, "relay", relay_keys, &relay.cfg, &e) != 0) {
        log_fail(&e, "reading the configuration");
        return 1;
    }
    if (log_level_parse(relay.cfg.log_level, &level))
        log_init("cube-relay", level);
    daemon_raise_descriptors();
    if (start(&e) != 0) {
        log_fail(&e, "starting");
        return 1;
    }
    log_info("listening on %s", relay.cfg.listen);
    dp_loop_run(relay.loop);
    return 0;
}
