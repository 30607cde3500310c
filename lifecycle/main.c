/* cube-lifecycle: deadlines, idle sandboxes, wake on request. Holds nothing that matters: claims expire, requests are
 * asked again. */
#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lifecycle/lifecycle.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void usage(void)
{
    puts("NAME\n"
         "    cube-lifecycle - ends, pauses and wakes sandboxes when their time has come\n\n"
         "SYNOPSIS\n"
         "    cube-lifecycle [--config FILE]\n\n"
         "DESCRIPTION\n"
         "    Reads deadlines from Redis and proposes to a master what each sandbox asked for (kill or pause); serves\n"
         "    cube.lifecycle.v1.Wake to the proxies. Any number may run: they share the deadlines in 36 shards, and take over\n"
         "    the shards of one that died.\n\n"
         "OPTIONS\n"
         "    --config FILE   configuration (YAML); the section is `lifecycle`, with `common` below it\n"
         "    --help          this page\n"
         "    --version       the version\n\n"
         "KEYS");
    lifecycle_config_usage();
}

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
    loop_stop(((struct lifecycle *)data)->loop);
}

static void on_term(int signo, void *data)
{
    log_info("stopping");
    rpc_server_drain(((struct lifecycle *)data)->server, on_drained, data);
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
    return l->redis ? 0 : err_set(e, ERR_INVALID, "connecting to Redis at \"%s\": the address is not understood", l->cfg.redis);
}

static int start(struct lifecycle *l, const char *path, struct err *e)
{
    enum log_level level = LOG_INFO;
    if (lifecycle_config_load(path, &l->cfg, e) < 0)
        return -1;
    if (!log_level_parse(l->cfg.log_level, &level))
        return err_set(e, ERR_INVALID, "log_level must be debug, info, warn or error, not \"%s\"", l->cfg.log_level);
    log_init("cube-lifecycle", level);
    snprintf(l->prefix, sizeof l->prefix, "{c%c}", l->cfg.cell[0]);
    id_random(l->instance, sizeof l->instance - 1);
    struct rpc_auth auth = {.role = RPC_ROLE_LIFECYCLE, .key_dir = l->cfg.key_dir};
    if (*l->cfg.ca)
        auth = (struct rpc_auth){.role = RPC_ROLE_LIFECYCLE, .ca = l->cfg.ca, .cert = l->cfg.cert, .key = l->cfg.key};
    l->creds = rpc_creds_load(&auth, e);
    l->loop = l->creds ? loop_new() : NULL;
    l->server = l->loop ? rpc_server_new(l->loop, l->creds) : NULL;
    if (!l->server)
        return e->code ? -1 : err_set(e, ERR_UNAVAILABLE, "starting: out of memory");
    rpc_server_add(l->server, wake_methods, l);
    if (fiber_start(l->loop, 0, e) < 0 || redis_start(l, e) < 0 || masters_start(l, e) < 0 ||
        rpc_server_listen(l->server, l->cfg.listen, e) < 0 ||
        (*l->cfg.admin_listen && admin_listen(l->loop, l->cfg.admin_listen, is_ready, l, e) < 0) ||
        loop_on_signal(l->loop, SIGTERM, on_term, l, e) < 0 || loop_on_signal(l->loop, SIGINT, on_term, l, e) < 0)
        return -1;
    lifecycle_metrics_register();
    shards_start(l);
    due_start(l);
    log_info("cube-lifecycle %s listens on %s as %s", CUBE_VERSION, l->cfg.listen, l->instance);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'}, {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'}, {0}};
    static struct lifecycle lifecycle;
    const char *path = NULL;
    log_init("cube-lifecycle", LOG_INFO);
    for (int o; (o = getopt_long(argc, argv, "c:hv", options, NULL)) != -1;) {
        switch (o) {
        case 'c':
            path = optarg;
            break;
        case 'h':
            usage();
            return 0;
        case 'v':
            puts("cube-lifecycle " CUBE_VERSION);
            return 0;
        default:
            fputs("cube-lifecycle: see --help\n", stderr);
            return 2;
        }
    }
    struct err e = {0};
    if (start(&lifecycle, path, &e) < 0) {
        log_fail(&e, "%s", e.msg);
        return 1;
    }
    loop_run(lifecycle.loop);
    return 0;
}
