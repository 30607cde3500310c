/* Owns the processes and the directory of a benchmark's control plane. */
#include "bench/cluster.h"

#include "bench/proc.h"
#include "lib/base/ids.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define START_MS 10000

static int write_file(const struct cluster *c, const char *name, const char *text, struct err *e)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (!ok)
        err_sys(e, ERR_INTERNAL, "writing %s", path);
    if (fd >= 0)
        close(fd);
    return ok ? 0 : -1;
}

static int write_secret(const struct cluster *c, const char *name, char out[65], struct err *e)
{
    uint8_t raw[32];
    char text[66];
    random_bytes(raw, sizeof raw);
    hex_encode(raw, sizeof raw, out);
    snprintf(text, sizeof text, "%s\n", out);
    return write_file(c, name, text, e);
}

static int write_files(struct cluster *c, struct err *e)
{
    static const char *const roles[] = {"api", "master", "node", "lifecycle", "proxy", "admin"};
    char path[128], text[1024], secret[65];
    snprintf(path, sizeof path, "%s/keys", c->dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/store", c->dir);
    mkdir(path, 0700);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        snprintf(path, sizeof path, "keys/%s.key", roles[i]);
        if (write_secret(c, path, secret, e) < 0)
            return -1;
    }
    if (write_secret(c, "keys/seed", secret, e) < 0 ||
        write_secret(c, "keys/admin_token", c->admin_token, e) < 0)
        return -1;
    snprintf(text, sizeof text,
             "common:\n  redis: 127.0.0.1:%d\n  state_dir: %s\n  run_dir: %s\n  key_dir: %s/keys\n  "
             "log_level: warn\n"
             "master:\n  listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n"
             "api:\n  listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n  master: 127.0.0.1:%d\n  "
             "rate_limit: 0\n"
             "lifecycle:\n  listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n  master: 127.0.0.1:%d\n",
             c->redis_port, c->dir, c->dir, c->dir, c->master_port, proc_free_port(), c->api_port,
             proc_free_port(), c->master_port, c->lifecycle_port, proc_free_port(), c->master_port);
    return write_file(c, "cube.yaml", text, e);
}

static pid_t start(const struct cluster *c, const char *name, char *const *argv, int *stdin_fd, int port,
                   struct err *e)
{
    char log[128];
    snprintf(log, sizeof log, "%s/%s.log", c->dir, name);
    pid_t pid = proc_start(argv, log, stdin_fd, e);
    if (pid > 0 && port && proc_wait_port(pid, port, START_MS, name, e) < 0) {
        err_remedy(e, "see %s", log);
        proc_stop(pid);
        return -1;
    }
    return pid;
}

static pid_t start_daemon(const struct cluster *c, const char *build, const char *part, int port,
                          struct err *e)
{
    char binary[600], config[128], name[32];
    snprintf(name, sizeof name, "cube-%s", part);
    snprintf(binary, sizeof binary, "%s/%s/cube-%s", build, part, part);
    snprintf(config, sizeof config, "%s/cube.yaml", c->dir);
    return start(c, name, (char *[]){binary, "--config", config, NULL}, NULL, port, e);
}

static int start_all(struct cluster *c, const char *build, unsigned nodes, struct err *e)
{
    char port[16], master[32], keys[96], simnode[600], count[16];
    snprintf(port, sizeof port, "%d", c->redis_port);
    c->redis = start(c, "redis",
                     (char *[]){"redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", c->dir,
                                "--save", "", "--appendonly", "yes", NULL},
                     NULL, c->redis_port, e);
    if (c->redis < 0 || (c->master = start_daemon(c, build, "master", c->master_port, e)) < 0 ||
        (c->api = start_daemon(c, build, "api", c->api_port, e)) < 0 ||
        (c->lifecycle = start_daemon(c, build, "lifecycle", c->lifecycle_port, e)) < 0)
        return -1;
    snprintf(simnode, sizeof simnode, "%s/bench/simnode/cube-simnode", build);
    snprintf(master, sizeof master, "127.0.0.1:%d", c->master_port);
    snprintf(keys, sizeof keys, "%s/keys", c->dir);
    snprintf(count, sizeof count, "%u", nodes);
    c->nodes = start(c, "simnode",
                     (char *[]){simnode, "--master", master, "--key-dir", keys, "--nodes", count, "--cpu",
                                "1000000000", "--memory", "1000000000", "--sandboxes", "1000000",
                                "--template", CLUSTER_TEMPLATE, NULL},
                     &c->nodes_stdin, 0, e);
    return c->nodes < 0 ? -1 : 0;
}

static void stop_processes(struct cluster *c)
{
    pid_t *all[] = {&c->api, &c->lifecycle, &c->nodes, &c->master, &c->redis};
    if (c->nodes_stdin > 0)
        close(c->nodes_stdin);
    c->nodes_stdin = -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        proc_stop(*all[i]);
        *all[i] = 0;
    }
}

int cluster_start(struct cluster *c, const char *build, unsigned nodes, struct err *e)
{
    *c = (struct cluster){.dir = "/tmp/cube-bench-XXXXXX", .nodes_stdin = -1};
    if (!mkdtemp(c->dir))
        return err_sys(e, ERR_INTERNAL, "making a directory below /tmp");
    c->redis_port = proc_free_port();
    c->master_port = proc_free_port();
    c->api_port = proc_free_port();
    c->lifecycle_port = proc_free_port();
    if (write_files(c, e) == 0 && start_all(c, build, nodes, e) == 0)
        return 0;
    stop_processes(c);
    return -1;
}

void cluster_stop(struct cluster *c)
{
    stop_processes(c);
    struct err e = {0};
    proc_run((char *[]){"rm", "-rf", c->dir, NULL}, "/dev/null", &e);
}
