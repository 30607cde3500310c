/* cube-lifecycle: deadlines, idle sandboxes, wake on request. Holds nothing that matters: claims expire,
 * requests are asked again. */
#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/daemon.h"
#include "lifecycle/lifecycle.h"

#include <stdio.h>
#include <string.h>

static struct lifecycle lifecycle;

static bool is_ready(char why[128], void *data)
{
    struct lifecycle *l = data;
    if (!redis_connected(l->redis))
        snprintf(why, 128, "Redis does not answer");
    else if (!l->master_count)
        snprintf(why, 128, "no master is known");
    else
        return true;
    return false;
}

static void on_drained(void *data)
{
    (void)data;
    daemon_done();
}

static void drain(void)
{
    rpc_server_drain(lifecycle.server, on_drained, NULL);
}

static int redis_start(struct lifecycle *l, struct err *e)
{
    static char password[256];
    struct redis_config rc = {.address = l->cfg.redis, .user = *l->cfg.redis_user ? l->cfg.redis_user : NULL};
    if (*l->cfg.redis_password_file) {
        _cleanup_fclose_ FILE *f = fopen(l->cfg.redis_password_file, "re");
        if (!f || !fgets(password, sizeof password, f))
            return err_sys(e, ERR_INVALID, "reading the Redis password file %s", l->cfg.redis_password_file);
        password[strcspn(password, "\r\n")] = 0;
        rc.password = password;
    }
    l->redis = redis_new(l->loop, &rc);
    return l->redis ? 0
                    : err_set(e, ERR_INVALID, "connecting to Redis at \"%s\": the address is not understood",
                              l->cfg.redis);
}

static int start(struct loop *loop, struct err *e)
{
    struct lifecycle *l = &lifecycle;
    struct rpc_auth auth = {.role = RPC_ROLE_LIFECYCLE, .key_dir = l->cfg.key_dir};
    if (*l->cfg.ca)
        auth = (struct rpc_auth){
            .role = RPC_ROLE_LIFECYCLE, .ca = l->cfg.ca, .cert = l->cfg.cert, .key = l->cfg.key};
    if (lifecycle_config_check(&l->cfg, e) < 0 || !(l->creds = rpc_creds_load(&auth, e)))
        return -1;
    snprintf(l->prefix, sizeof l->prefix, "{c%c}", l->cfg.cell[0]);
    id_random(l->instance, sizeof l->instance - 1);
    l->loop = loop;
    l->server = rpc_server_new(loop, l->creds);
    if (!l->server)
        return err_set(e, ERR_UNAVAILABLE, "starting: out of memory");
    rpc_server_add(l->server, wake_methods, l);
    if (fiber_start(loop, 0, e) < 0 || redis_start(l, e) < 0 || masters_start(l, e) < 0 ||
        rpc_server_listen(l->server, l->cfg.listen, e) < 0 ||
        (*l->cfg.admin_listen && admin_listen(loop, l->cfg.admin_listen, is_ready, l, e) < 0))
        return -1;
    lifecycle_metrics_register();
    shards_start(l);
    due_start(l);
    log_info("listening on %s as %s", l->cfg.listen, l->instance);
    return 0;
}

int main(int argc, char **argv)
{
    const struct daemon_spec spec = {
        .name = "cube-lifecycle",
        .section = "lifecycle",
        .summary = "ends, pauses and wakes sandboxes when their time has come",
        .description = "Reads deadlines from Redis and proposes to a master what each sandbox asked for; "
                       "serves cube.lifecycle.v1.Wake "
                       "to the proxies. Any number may run: they share the deadlines and take over those of "
                       "one that died.",
        .keys = lifecycle_config_keys,
        .config = &lifecycle.cfg,
        .start = start,
        .drain = drain,
    };
    return daemon_main(&spec, argc, argv);
}
