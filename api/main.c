/* cube-api: reads the configuration, starts one worker per thread, and drains them at the end. */
#include "api/config.h"
#include "api/metrics.h"
#include "lib/base/crash.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/daemon.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CUT_S 1 /* the most that a second signal waits for other threads */

static struct settings s;
static struct worker workers[MAX_THREADS];

static bool ready(char why[128], void *data)
{
    bool draining = atomic_load(&s.api.draining);
    if (!draining && !cell_without_master())
        return true;
    snprintf(why, 128, draining ? "shutting down" : "no master is known yet");
    return false;
}

static void *run_worker(void *data)
{
    loop_run(((struct worker *)data)->loop);
    return NULL;
}

/* Signals are for the first thread's loop; the others must not take them. */
static int start_threads(struct err *e)
{
    sigset_t all, old;
    sigfillset(&all);
    crash_unblock(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int bad = 0;
    for (int64_t i = 1; i < s.api.threads && !bad; i++)
        bad = pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return bad ? err_set(e, ERR_INTERNAL, "starting a thread: %s", strerror(bad)) : 0;
}

static int start(struct loop *l, struct err *e)
{
    struct rpc_auth auth = {.role = RPC_ROLE_API, .key_dir = s.key_dir};
    if (*s.cert)
        auth = (struct rpc_auth){.role = RPC_ROLE_API, .ca = s.ca, .cert = s.cert, .key = s.key};
    if (callback_parse(s.auth_url, &s.api.auth_url, e) < 0 || api_config_token(&s, e) < 0)
        return -1;
    s.api.creds = rpc_creds_load(&auth, e);
    if (!s.api.creds)
        return -1;
    api_metrics_init();
    server_setup(&s.api);
    for (int64_t i = 0; i < s.api.threads; i++) {
        struct loop *loop = i == 0 ? l : loop_new();
        if (!loop)
            return err_set(e, ERR_INTERNAL, "out of memory");
        if (worker_start(&workers[i], &s.api, loop, e) < 0)
            return -1;
    }
    if (cell_start(&s.cell, &s.api, workers, l, e) < 0 ||
        admin_listen(l, s.admin_listen, ready, NULL, e) < 0 || start_threads(e) < 0)
        return -1;
    log_info("listening on %s with %lld threads", s.api.listen, (long long)s.api.threads);
    return 0;
}

/* On the first thread, whose loop stays free for a second signal until all have drained. */
static void one_drained(void *data)
{
    static int64_t drained;
    if (++drained < s.api.threads)
        return;
    for (int64_t i = 1; i < s.api.threads; i++) {
        pthread_join(workers[i].thread, NULL);
        loop_free(workers[i].loop);
        workers[i].loop = NULL;
    }
    daemon_done();
}

static void on_drained(struct worker *w)
{
    loop_post(workers[0].loop, one_drained, NULL);
    if (w != &workers[0])
        loop_stop(w->loop);
}

static void stop_loop(void *data)
{
    loop_stop(data);
}

static void cut(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += CUT_S;
    for (int64_t i = 1; i < s.api.threads; i++)
        if (workers[i].loop)
            loop_post(workers[i].loop, stop_loop, workers[i].loop);
    for (int64_t i = 1; i < s.api.threads; i++)
        if (workers[i].loop)
            pthread_timedjoin_np(workers[i].thread, NULL, &end);
}

static void drain_worker(void *data)
{
    worker_drain(data, on_drained);
}

static void drain(void)
{
    atomic_store(&s.api.draining, true);
    cell_stop(); /* before the workers get their last message */
    for (int64_t i = 0; i < s.api.threads; i++)
        loop_post(workers[i].loop, drain_worker, &workers[i]);
}

int main(int argc, char **argv)
{
    static const struct daemon_spec spec = {
        .name = "cube-api",
        .section = "api",
        .summary = "the E2B-compatible REST API of the sandbox platform",
        .description = "It serves HTTP/1.1, keeps no state, and talks to the masters. On SIGTERM requests in "
                       "flight end first.",
        .keys = api_keys,
        .config = &s,
        .start = start,
        .drain = drain,
        .cut = cut,
        .drain_ms = 12000,
    };
    return daemon_main(&spec, argc, argv);
}
