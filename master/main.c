/* cube-master: scheduler and the one committer of sandbox state. Wires configuration, Redis, services and sweepers. */
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/fiber.h"
#include "master/cell.h"
#include "master/fleet.h"
#include "master/reconcile.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(void)
{
    puts("NAME\n"
         "    cube-master - places sandboxes and commits every change of their state\n\n"
         "SYNOPSIS\n"
         "    cube-master [--config FILE]\n\n"
         "DESCRIPTION\n"
         "    Serves cube.master.v1 (Sandboxes, Catalog, Nodes, NodeLink) over gRPC. Holds no state that matters: any number may\n"
         "    run, any may be killed at any time; another finishes or undoes what it had begun.\n\n"
         "OPTIONS\n"
         "    --config FILE   configuration (YAML); the section is `master`, with `common` below it\n"
         "    --help          this page\n"
         "    --version       the version\n\n"
         "KEYS");
    master_config_usage();
}

static bool is_ready(char why[128], void *data)
{
    struct master *m = data;
    if (m->cell == CELL_READY)
        return true;
    snprintf(why, 128, "%s", m->cell == CELL_RECOVERING ? "the cell is recovering its records" : "Redis does not answer");
    return false;
}

static void on_drained(void *data)
{
    loop_stop(((struct master *)data)->loop);
}

static void on_term(int signo, void *data)
{
    struct master *m = data;
    log_info("stopping");
    rpc_server_drain(m->server, on_drained, m);
}

static int start(struct master *m, const char *path, struct err *e)
{
    enum log_level level = LOG_INFO;
    if (master_config_load(path, &m->cfg, e) < 0)
        return -1;
    if (!log_level_parse(m->cfg.log_level, &level))
        return err_set(e, ERR_INVALID, "log_level must be debug, info, warn or error, not \"%s\"", m->cfg.log_level);
    log_init("cube-master", level);
    snprintf(m->prefix, sizeof m->prefix, "{c%c}", m->cfg.cell[0]);
    id_random(m->instance, sizeof m->instance - 1);
    m->now_ms = clock_realtime_ms;
    if (seed_load(m->cfg.seed_file, &m->seed, e) < 0 || !(m->journal = journal_open(m->cfg.journal, e)))
        return -1;
    struct rpc_auth auth = {.role = RPC_ROLE_MASTER, .key_dir = m->cfg.key_dir};
    if (*m->cfg.ca)
        auth = (struct rpc_auth){.role = RPC_ROLE_MASTER, .ca = m->cfg.ca, .cert = m->cfg.cert, .key = m->cfg.key};
    if (!(m->creds = rpc_creds_load(&auth, e)))
        return -1;
    m->loop = loop_new();
    m->server = m->loop ? rpc_server_new(m->loop, m->creds) : NULL;
    m->fleet = fleet_new(m);
    if (!m->server || !m->fleet)
        return err_set(e, ERR_UNAVAILABLE, "starting: out of memory");
    if (fiber_start(m->loop, 0, e) < 0)
        return -1;
    rpc_server_set_serving(m->server, false);
    rpc_server_add(m->server, sandboxes_methods, m);
    rpc_server_add(m->server, catalog_methods, m);
    rpc_server_add(m->server, nodes_methods, m);
    rpc_server_add(m->server, link_methods, m);
    if (rpc_server_listen(m->server, m->cfg.listen, e) < 0 || cell_start(m, e) < 0 ||
        (*m->cfg.admin_listen && admin_listen(m->loop, m->cfg.admin_listen, is_ready, m, e) < 0) ||
        loop_on_signal(m->loop, SIGTERM, on_term, m, e) < 0 || loop_on_signal(m->loop, SIGINT, on_term, m, e) < 0)
        return -1;
    fleet_start(m->fleet, reconcile_node_lost);
    reconcile_start(m);
    log_info("cube-master %s listens on %s as %s", CUBE_VERSION, m->cfg.listen, m->instance);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'}, {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'}, {0}};
    static struct master master;
    const char *path = NULL;
    log_init("cube-master", LOG_INFO);
    for (int o; (o = getopt_long(argc, argv, "c:hv", options, NULL)) != -1;) {
        switch (o) {
        case 'c':
            path = optarg;
            break;
        case 'h':
            usage();
            return 0;
        case 'v':
            puts("cube-master " CUBE_VERSION);
            return 0;
        default:
            fputs("cube-master: see --help\n", stderr);
            return 2;
        }
    }
    struct err e = {0};
    if (start(&master, path, &e) < 0) {
        log_fail(&e, "%s", e.msg);
        return 1;
    }
    loop_run(master.loop);
    return 0;
}
