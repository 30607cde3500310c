/* Owns the measuring of memory given back by a pause, in a whole cluster. What counts is the memory of VM
 * processes: what they share counts once (PSS), and the pool of ready processes is subtracted. */
#include "bench/freed.h"

#include "bench/full.h"
#include "bench/web.h"
#include "lib/net/fiber.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS 5
#define DIRTY_MIB 64
#define SETTLE_MS 3000 /* the pool of ready VM processes fills up again */

struct freed {
    const struct bench_options *o;
    struct loop *loop;
    struct full full;
    struct series *s;
    struct err *e;
    int result;
};

/* Proportional set size of one process in KiB; 0 when it has ended meanwhile. */
static long pss_of(long pid)
{
    char path[64], line[128];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "Pss: %ld", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return kib;
}

/* Sum over the VM processes that the cluster's jailer holds, in KiB: it keeps a record of each below
 * <run>/jailer/vm, "<version> <pid> …". */
static long pss_of_vms(const struct full *f)
{
    char path[400];
    long sum = 0, pid;
    snprintf(path, sizeof path, "%s/jailer/vm", f->run);
    DIR *d = opendir(path);
    for (struct dirent *p; d && (p = readdir(d));) {
        if (p->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/jailer/vm/%s/record", f->run, p->d_name);
        FILE *record = fopen(path, "re");
        if (record && fscanf(record, "%*s %ld", &pid) == 1)
            sum += pss_of(pid);
        if (record)
            fclose(record);
    }
    if (d)
        closedir(d);
    return sum;
}

static int one_round(struct freed *m, struct httpc *api)
{
    char id[32], token[80], path[64], header[512];
    _cleanup_buf_ struct buf answer = {0}, out = {0};
    fiber_sleep(SETTLE_MS);
    long before = pss_of_vms(&m->full);
    int status = web_call(api, "POST", "/v2/sandboxes",
                          "{\"templateID\":\"base\",\"timeout\":600,\"secure\":true}", &answer, NULL);
    if (status != 201 || !web_string(&answer, "sandboxID", id, 32) ||
        !web_string(&answer, "envdAccessToken", token, 80))
        return err_set(m->e, ERR_INTERNAL, "create answered %d: %.150s", status, buf_cstr(&answer));
    snprintf(header, sizeof header,
             "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: %s\r\nAuthorization: Basic "
             "dXNlcjo=\r\n"
             "Connect-Protocol-Version: 1\r\n",
             id, token);
    struct httpc *envd = httpc_new(m->loop, m->full.port + 20, 1, header);
    char command[160];
    snprintf(command, sizeof command, "head -c %dM /dev/urandom > /dev/shm/dirty && echo done", DIRTY_MIB);
    int code = web_run(envd, command, &out, NULL, m->e);
    httpc_free(envd);
    if (code != 0)
        return m->e->code ? -1
                          : err_set(m->e, ERR_INTERNAL, "writing memory in the sandbox ended with %d", code);
    fiber_sleep(SETTLE_MS);
    long with = pss_of_vms(&m->full);
    snprintf(path, sizeof path, "/sandboxes/%s/pause", id);
    status = web_call(api, "POST", path, NULL, NULL, NULL);
    if (status / 100 != 2)
        return err_set(m->e, ERR_INTERNAL, "pause answered %d", status);
    fiber_sleep(SETTLE_MS);
    long after = pss_of_vms(&m->full);
    snprintf(path, sizeof path, "/sandboxes/%s", id);
    web_call(api, "DELETE", path, NULL, NULL, NULL);
    if (with - before < DIRTY_MIB * 1024 / 2)
        return err_set(m->e, ERR_INTERNAL,
                       "the sandbox's memory is not seen: %ld KiB before, %ld KiB with it", before, with);
    series_add(m->s, 100.0 * (double)(with - after) / (double)(with - before));
    return 0;
}

static void run(void *arg)
{
    struct freed *m = arg;
    char header[128];
    fiber_sleep(0); /* until the loop runs: a stop before that would be lost */
    snprintf(header, sizeof header, "X-API-Key: %s\r\n", m->full.api_key);
    struct httpc *api = httpc_new(m->loop, m->full.port, 1, header);
    for (int i = 0; i < ROUNDS && m->result == 0; i++)
        m->result = one_round(m, api);
    httpc_free(api);
    loop_stop(m->loop);
}

int bench_pause_freed(const struct bench_options *o, struct series *s, struct loop *loop, struct err *e)
{
    struct freed m = {.o = o, .s = s, .e = e, .loop = loop};
    if (full_prepare(&m.full, o->root, e) < 0)
        return -1;
    m.result = full_cube(&m.full, o->root, "up", NULL, e);
    if (m.result == 0)
        m.result = full_describe(&m.full, e);
    if (m.result == 0) {
        fiber_spawn(run, &m);
        loop_run(loop);
    }
    full_end(&m.full, m.result < 0);
    return m.result;
}
