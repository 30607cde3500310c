/* Owns the directories and ports of a benchmark's own cluster; invariant: a running cluster of this machine
 * is not touched. */
#include "bench/full.h"

#include "bench/proc.h"
#include "lib/base/clock.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT_TRIES 200

static bool port_free(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool ok = bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return ok;
}

/* A base from which all ports of a cluster are free (cli/settings.h). */
static int find_ports(struct full *f, struct err *e)
{
    static const int offsets[] = {0, 10, 20, 21, 30, 40, 41, 100, 110, 120, 130, 140, 141};
    for (int i = 0; i < PORT_TRIES; i++) {
        int base = 21000 + (int)((getpid() * 37 + i * 200) % 9000);
        bool all = true;
        for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++)
            all &= port_free(base + offsets[k]);
        if (all) {
            f->port = base;
            snprintf(f->base, sizeof f->base, "%d", base);
            return 0;
        }
    }
    return err_set(e, ERR_INTERNAL, "no free ports between 21000 and 30000");
}

int full_prepare(struct full *f, const char *root, struct err *e)
{
    *f = (struct full){.root = root, .dir = "/tmp/cube-line-XXXXXX"};
    if (!mkdtemp(f->dir) || chmod(f->dir, 0755) < 0) /* the daemons run as users of their own */
        return err_sys(e, ERR_INTERNAL, "making a directory below /tmp");
    snprintf(f->state, sizeof f->state, "%s/state", f->dir);
    snprintf(f->run, sizeof f->run, "%s/run", f->dir);
    snprintf(f->log, sizeof f->log, "%s/log", f->dir);
    return find_ports(f, e);
}

int full_cube(struct full *f, const char *root, const char *verb, double *seconds, struct err *e)
{
    char program[600];
    snprintf(program, sizeof program, "%s/cube", root);
    int64_t t = clock_mono_us();
    int status = proc_run(
        (char *[]){program, (char *)verb, "--state", f->state, "--run", f->run, "--port-base", f->base, NULL},
        f->log, e);
    if (seconds)
        *seconds = (double)(clock_mono_us() - t) / 1e6;
    if (status == 0)
        return 0;
    err_set(e, ERR_INTERNAL, "`cube %s` ended with status %d", verb, status);
    return err_remedy(e, "see %s", f->log);
}

int full_describe(struct full *f, struct err *e)
{
    char path[96], command[512];
    snprintf(path, sizeof path, "%s/keys/api_key", f->state);
    FILE *key = fopen(path, "re");
    bool ok = key && fgets(f->api_key, sizeof f->api_key, key);
    if (key)
        fclose(key);
    f->api_key[strcspn(f->api_key, "\r\n")] = '\0';
    if (!ok)
        return err_sys(e, ERR_INTERNAL, "reading %s", path);
    /* The store's directory is named by the template (contracts/internal.md §7). */
    snprintf(command, sizeof command, "ls '%s/store/tpl' 2>/dev/null", f->state);
    FILE *list = popen(command, "re");
    while (list && fgets(f->template_id, sizeof f->template_id, list)) {
        f->template_id[strcspn(f->template_id, "\r\n")] = '\0';
        if (strlen(f->template_id) == 20)
            break;
    }
    if (list)
        pclose(list);
    return f->template_id[0] ? 0 : err_set(e, ERR_INTERNAL, "no template below %s/store/tpl", f->state);
}

void full_end(struct full *f, bool keep)
{
    struct err e = {0};
    full_cube(f, f->root, "down", NULL, &e);
    if (!keep)
        proc_run((char *[]){"rm", "-rf", f->dir, NULL}, "/dev/null", &e);
}
