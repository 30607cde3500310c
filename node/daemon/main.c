/* cube-node: wires the modules of the node daemon and runs the loop. */
#include "lib/base/crash.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/daemon.h"
#include "lib/net/fiber.h"
#include "lib/net/rpc.h"
#include "node/daemon/activity.h"
#include "node/daemon/adopt.h"
#include "node/daemon/deadline.h"
#include "node/daemon/jailer.h"
#include "node/daemon/master_link.h"
#include "node/daemon/network.h"
#include "node/daemon/node.h"
#include "node/daemon/pool.h"
#include "node/daemon/ready.h"
#include "node/daemon/readyz.h"
#include "node/daemon/samples.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/selftest.h"
#include "node/daemon/service.h"
#include "node/daemon/stats.h"
#include "node/daemon/vm.h"
#include "node/template/catalog.h"
#include "node/template/commands.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* Tries of 20 ms for VMs; time for what a worker has begun; threads for file work. */
enum { STOP_TRIES = 250, STOP_MS = 2000, WORKERS = 3 };

static void begin(void *arg)
{
    struct node *n = arg;
    struct err e = {0};
    while (jailer_wait(n->jailer, 5000, &e) < 0 && !n->stopping)
        log_fail(&e, "waiting for the jailer");
    network_start(n);
    adopt_all(n);
    selftest_start(n);
    service_ready(n);
    pool_new(n);
    ready_new(n);
    if (!n->class.kvm_kind[0] && n->cfg.vmm_pool == 0)
        vm_destroy(vm_make(n, &e)); /* its hello tells the class of this host */
    log_info("ready: %u sandboxes", sandbox_live_count(n));
}

static void end(void *arg)
{
    struct node *n = arg;
    ready_drain(n);
    pool_drain(n);
    for (int i = 0; vm_unowned() > 0 && i < STOP_TRIES; i++)
        fiber_sleep(20);
    loop_stop(n->loop);
}

static void on_signal(int signo, void *data)
{
    struct node *n = data;
    if (n->stopping)
        return;
    log_info("stopping on signal %d; sandboxes go on", signo);
    n->stopping = true;
    fiber_spawn(end, n);
}

static int serve(struct node *n, const char *user, struct err *e)
{
    struct rpc_auth auth = {.role = RPC_ROLE_NODE, .key_dir = n->cfg.key_dir};
    struct rpc_creds *creds = rpc_creds_load(&auth, e);
    if (!creds || (user && node_become(&n->cfg, user, e) < 0) || node_open(n, e) < 0)
        return -1;
    n->loop = loop_new();
    n->sandboxes = sandboxes_new();
    if (fiber_start(n->loop, WORKERS, e) < 0 || loop_on_signal(n->loop, SIGTERM, on_signal, n, e) < 0 ||
        loop_on_signal(n->loop, SIGINT, on_signal, n, e) < 0)
        return -1;
    stats_register();
    catalog_new(n);
    n->jailer = jailer_new(n);
    struct rpc_server *server = rpc_server_new(n->loop, creds);
    service_add(server, n);
    if (rpc_server_listen(server, n->cfg.listen, e) < 0 ||
        (*n->cfg.admin_listen && admin_listen(n->loop, n->cfg.admin_listen, readyz_answer, n, e) < 0))
        return -1;
    daemon_notify("READY=1");
    fiber_spawn(begin, n);
    master_link_new(n, creds);
    catalog_start(n);
    samples_start(n);
    deadline_start(n);
    sweep_start(n);
    activity_start(n);
    loop_run(n->loop);
    if (!fiber_stop(STOP_MS))
        _exit(0); /* a large file is being hashed, say: the next start clears away what was begun */
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"user", required_argument, NULL, 'u'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'},
                                            {0}};
    if (argc > 1 && argv[1][0] != '-')
        return commands_run(argc - 1, argv + 1);
    const char *config = NULL, *user = NULL;
    daemon_raise_descriptors();
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'h')
            return node_config_usage(), 0;
        if (o == 'v')
            return printf("cube-node %s\n", CUBE_VERSION), 0;
        if (o == 'c')
            config = optarg;
        else if (o == 'u')
            user = optarg;
        else
            return 2;
    }
    static struct node n;
    struct err e = {0};
    log_init("node", LOG_INFO);
    crash_init("node");
    signal(SIGPIPE, SIG_IGN);
    enum log_level level;
    if (node_config_load(config, &n.cfg, &e) < 0) {
        log_fail(&e, "configuration");
        return 2;
    }
    if (log_level_parse(n.cfg.log_level, &level))
        log_init("node", level);
    if (serve(&n, user, &e) < 0) {
        log_fail(&e, "cannot start");
        return 1;
    }
    return 0;
}
