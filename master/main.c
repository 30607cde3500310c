/* cube-master: scheduler and the one committer of sandbox state. Wires configuration, Redis, services and
 * sweepers. */
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/daemon.h"
#include "lib/net/fiber.h"
#include "master/cell.h"
#include "master/fleet.h"
#include "master/reconcile.h"
#include "master/stats.h"

#include <stdio.h>

static struct master master;

static bool is_ready(char why[128], void *data)
{
    struct master *m = data;
    if (m->cell == CELL_READY)
        return true;
    snprintf(why, 128, "%s",
             m->cell == CELL_RECOVERING ? "the cell is recovering its records" : "Redis does not answer");
    return false;
}

static void on_drained(void *data)
{
    (void)data;
    daemon_done();
}

static void drain(void)
{
    rpc_server_drain(master.server, on_drained, NULL);
}

static int start(struct loop *l, struct err *e)
{
    struct master *m = &master;
    struct rpc_auth auth = {.role = RPC_ROLE_MASTER, .key_dir = m->cfg.key_dir};
    if (*m->cfg.ca)
        auth = (struct rpc_auth){
            .role = RPC_ROLE_MASTER, .ca = m->cfg.ca, .cert = m->cfg.cert, .key = m->cfg.key};
    if (master_config_check(&m->cfg, e) < 0 || seed_load(m->cfg.seed_file, &m->seed, e) < 0 ||
        !(m->journal = journal_open(m->cfg.journal, e)) || !(m->creds = rpc_creds_load(&auth, e)))
        return -1;
    m->journal->growth = m->cfg.journal_growth_kib << 10;
    snprintf(m->prefix, sizeof m->prefix, "{c%c}", m->cfg.cell[0]);
    id_random(m->instance, sizeof m->instance - 1);
    m->now_ms = clock_realtime_ms;
    m->loop = l;
    m->server = rpc_server_new(l, m->creds);
    m->fleet = fleet_new(m);
    if (!m->server || !m->fleet)
        return err_set(e, ERR_UNAVAILABLE, "starting: out of memory");
    rpc_server_set_serving(m->server, false);
    rpc_server_add(m->server, sandboxes_methods, m);
    rpc_server_add(m->server, snapshots_methods, m);
    rpc_server_add(m->server, catalog_methods, m);
    rpc_server_add(m->server, team_methods, m);
    rpc_server_add(m->server, templates_methods, m);
    rpc_server_add(m->server, nodes_methods, m);
    rpc_server_add(m->server, link_methods, m);
    if (fiber_start(l, 0, e) < 0 || rpc_server_listen(m->server, m->cfg.listen, e) < 0 ||
        cell_start(m, e) < 0 ||
        (*m->cfg.admin_listen && admin_listen(l, m->cfg.admin_listen, is_ready, m, e) < 0))
        return -1;
    stats_register();
    fleet_start(m->fleet, reconcile_node_lost);
    reconcile_start(m);
    log_info("listening on %s as %s", m->cfg.listen, m->instance);
    return 0;
}

int main(int argc, char **argv)
{
    const struct daemon_spec spec = {
        .name = "cube-master",
        .section = "master",
        .summary = "places sandboxes and commits every change of their state",
        .description =
            "Serves cube.master.v1 (Sandboxes, Catalog, Nodes, NodeLink) over gRPC. Holds no state that "
            "matters: any number "
            "may run, any may be killed at any time; another finishes or undoes what it had begun.",
        .keys = master_config_keys,
        .config = &master.cfg,
        .start = start,
        .drain = drain,
    };
    return daemon_main(&spec, argc, argv);
}
