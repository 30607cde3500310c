/* `line`: what a newcomer sees: the cluster comes up, a sandbox is created, a command runs. A cluster of its
 * own, in its own directories and on free ports, so that a running one is not disturbed. */
#include "bench/bench.h"
#include "bench/full.h"
#include "bench/proc.h"
#include "bench/web.h"
#include "lib/base/clock.h"
#include "lib/net/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum metric { UP_COLD, UP_FIRST, UP_WARM, CREATE, RUN, SHELL, METRICS };

struct line {
    const struct bench_options *o;
    struct loop *loop;
    struct series s[METRICS];
    struct full full;
    struct err *e;
    int result;
};

static int up(struct line *l, enum metric m)
{
    double seconds;
    if (full_cube(&l->full, l->o->root, "up", &seconds, l->e) < 0)
        return -1;
    series_add(&l->s[m], seconds);
    return 0;
}

/* From a fresh clone with an empty cache: kernel, base image, programs. */
static int up_cold(struct line *l)
{
    char clone[128], cache[64];
    double seconds;
    snprintf(clone, sizeof clone, "%s/clone", l->full.dir);
    snprintf(cache, sizeof cache, "%s/cache", l->full.dir);
    if (proc_run((char *[]){"git", "clone", "-q", (char *)l->o->root, clone, NULL}, l->full.log, l->e) != 0)
        return err_set(l->e, ERR_INTERNAL, "line: cloning %s failed", l->o->root);
    char *kept = strdup(getenv("CUBE_CACHE") ? getenv("CUBE_CACHE") : ""), *build = strdup(l->o->build);
    setenv("CUBE_CACHE", cache, 1);
    unsetenv("CUBE_BUILD_DIR");
    int r = full_cube(&l->full, clone, "up", &seconds, l->e);
    if (r == 0)
        series_add(&l->s[UP_COLD], seconds);
    if (r == 0)
        r = full_cube(&l->full, clone, "down", NULL, l->e);
    if (*kept)
        setenv("CUBE_CACHE", kept, 1);
    else
        unsetenv("CUBE_CACHE");
    setenv("CUBE_BUILD_DIR", build, 1);
    free(kept);
    free(build);
    proc_run((char *[]){"rm", "-rf", l->full.state, l->full.run, clone, cache, NULL}, l->full.log, l->e);
    return r;
}

static int create(struct line *l, struct httpc *api, char id[32], char token[80], int64_t *us)
{
    _cleanup_buf_ struct buf answer = {0};
    int status = web_call(api, "POST", "/v2/sandboxes",
                          "{\"templateID\":\"base\",\"timeout\":600,\"secure\":true}", &answer, us);
    if (status != 201 || !web_string(&answer, "sandboxID", id, 32) ||
        !web_string(&answer, "envdAccessToken", token, 80))
        return err_set(l->e, ERR_INTERNAL, "create answered %d: %.150s", status, buf_cstr(&answer));
    return 0;
}

static int kill_sandbox(struct line *l, struct httpc *api, const char *id)
{
    char path[64];
    snprintf(path, sizeof path, "/sandboxes/%s", id);
    int status = web_call(api, "DELETE", path, NULL, NULL, NULL);
    return status == 204 ? 0 : err_set(l->e, ERR_INTERNAL, "DELETE %s answered %d", path, status);
}

/* The same shell inside the guest, without us: a small program there starts it again and again and prints the
 * times. */
static int measure_shell(struct line *l, struct httpc *envd, long rounds)
{
    char command[600];
    _cleanup_buf_ struct buf out = {0};
    snprintf(command, sizeof command,
             "exec python3 -c \"\nimport os, time\nfor i in range(%ld):\n t = time.perf_counter()\n"
             " p = os.posix_spawn('/bin/bash', ['bash', '-l', '-c', 'echo hi'], os.environ,"
             " file_actions=[(os.POSIX_SPAWN_OPEN, 1, '/dev/null', os.O_WRONLY, 0)])\n os.waitpid(p, 0)\n"
             " print((time.perf_counter() - t) * 1000)\n\"",
             rounds);
    if (web_run(envd, command, &out, NULL, l->e) != 0)
        return l->e->code ? -1
                          : err_set(l->e, ERR_INTERNAL, "the measuring program failed in the guest: %.100s",
                                    buf_cstr(&out));
    char *save = NULL;
    for (char *p = strtok_r((char *)buf_cstr(&out), "\n", &save); p; p = strtok_r(NULL, "\n", &save))
        series_add(&l->s[SHELL], strtod(p, NULL));
    return 0;
}

static int measure_sandbox(struct line *l)
{
    char header[512], id[32], token[80];
    long rounds = l->o->rounds ? l->o->rounds : 200;
    snprintf(header, sizeof header, "X-API-Key: %s\r\n", l->full.api_key);
    struct httpc *api = httpc_new(l->loop, l->full.port, 1, header);
    int r = 0;
    int64_t us;
    for (int i = 0; i < 20 && r == 0; i++) {
        r = create(l, api, id, token, &us);
        if (r == 0) {
            series_add(&l->s[CREATE], (double)us / 1000);
            r = kill_sandbox(l, api, id);
        }
    }
    if (r == 0)
        r = create(l, api, id, token, &us);
    if (r == 0) {
        snprintf(header, sizeof header,
                 "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: %s\r\nAuthorization: "
                 "Basic dXNlcjo=\r\n"
                 "Connect-Protocol-Version: 1\r\n",
                 id, token);
        struct httpc *envd = httpc_new(l->loop, l->full.port + 20, 1, header);
        for (long i = 0; i < rounds + 10 && r == 0; i++) {
            _cleanup_buf_ struct buf out = {0};
            int code = web_run(envd, "echo hi", &out, &us, l->e);
            if (code != 0 || strcmp(buf_cstr(&out), "hi\n") != 0)
                r = l->e->code
                        ? -1
                        : err_set(l->e, ERR_INTERNAL, "`echo hi` ended with %d: %.60s", code, buf_cstr(&out));
            else if (i >= 10)
                series_add(&l->s[RUN], (double)us / 1000);
        }
        if (r == 0)
            r = measure_shell(l, envd, rounds);
        httpc_free(envd);
        struct err ignored = {0}, *kept = l->e;
        l->e = r < 0 ? &ignored : kept;
        if (kill_sandbox(l, api, id) < 0)
            r = -1;
        l->e = kept;
    }
    httpc_free(api);
    return r;
}

static void run(void *arg)
{
    struct line *l = arg;
    fiber_sleep(0); /* until the loop runs: a stop before that would be lost */
    l->result = measure_sandbox(l);
    loop_stop(l->loop);
}

static int measure(struct line *l)
{
    if (l->o->cold && up_cold(l) < 0)
        return -1;
    if (up(l, UP_FIRST) < 0 || full_cube(&l->full, l->o->root, "down", NULL, l->e) < 0 ||
        up(l, UP_WARM) < 0 || full_describe(&l->full, l->e) < 0)
        return -1;
    fiber_spawn(run, l);
    loop_run(l->loop);
    return l->result;
}

int bench_line(const struct bench_options *o, struct err *e)
{
    struct line l = {.o = o, .e = e};
    static const struct series names[METRICS] = {
        [UP_COLD] = {"up-cold", "s"}, [UP_FIRST] = {"up-first", "s"}, [UP_WARM] = {"up-warm", "s"},
        [CREATE] = {"create", "ms"},  [RUN] = {"run", "ms"},          [SHELL] = {"shell-in-guest", "ms"}};
    memcpy(l.s, names, sizeof names);
    l.loop = loop_new();
    if (!l.loop || fiber_start(l.loop, 1, e) < 0)
        return err_set(e, ERR_INTERNAL, "line: out of memory");
    int r = full_prepare(&l.full, o->root, e);
    if (r == 0)
        r = measure(&l);
    full_end(&l.full, r < 0); /* after a failure the log and the state stay for a look */
    if (r == 0)
        report_print("line", l.s, METRICS, o->json);
    return r;
}
