/* cube-api: reads the configuration, starts one worker per thread, and drains them at the end. */
#include "api/cell.h"
#include "api/metrics.h"
#include "api/server.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/crypto.h"
#include "lib/net/daemon.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MAX_THREADS 64

static struct settings {
    struct api api;
    struct cell_config cell;
    char *admin_listen, *key_dir, *ca, *cert, *key, *admin_token_file, *auth_url;
} s;

#define KEY(field) offsetof(struct settings, field)
static const struct config_key keys[] = {
    {"listen", CONFIG_STR, KEY(api.listen), "127.0.0.1:3000", 0, 0, "address of the API"},
    {"admin_listen", CONFIG_STR, KEY(admin_listen), "127.0.0.1:3100", 0, 0,
     "address of /metrics, /healthz, /readyz"},
    {"master", CONFIG_STR, KEY(api.master), "discover", 0, 0,
     "addresses of masters, or \"discover\" to find them in Redis"},
    {"redis", CONFIG_STR, KEY(cell.redis), NULL, 0, 0, "for discovery, and for limits over all instances"},
    {"redis_user", CONFIG_STR, KEY(cell.redis_user), NULL, 0, 0, "ACL user of Redis"},
    {"redis_password_file", CONFIG_STR, KEY(cell.redis_password_file), NULL, 0, 0, "file with its password"},
    {"cell", CONFIG_STR, KEY(cell.cell), NULL, 0, 0, "character of this cell"},
    {"domain", CONFIG_STR, KEY(api.domain), NULL, 0, 0, "domain of the ingress, or nothing"},
    {"key_dir", CONFIG_STR, KEY(key_dir), NULL, 0, 0, "directory of the role keys"},
    {"ca", CONFIG_STR, KEY(ca), NULL, 0, 0, "the cluster's CA; with cert and key, TLS to the masters"},
    {"cert", CONFIG_STR, KEY(cert), NULL, 0, 0, "this program's certificate"},
    {"key", CONFIG_STR, KEY(key), NULL, 0, 0, "and its key"},
    {"admin_token_file", CONFIG_STR, KEY(admin_token_file), "${key_dir}/admin_token", 0, 0,
     "the operator's token"},
    {"cors_origin", CONFIG_STR, KEY(api.cors_origin), "*", 0, 0,
     "origin that browsers may call from, or nothing"},
    {"threads", CONFIG_INT, KEY(api.threads), "1", 1, MAX_THREADS, "event loops"},
    {"max_body", CONFIG_SIZE, KEY(api.max_body), "16M", 1, BODY_MAX, "largest request body"},
    {"max_connections", CONFIG_INT, KEY(api.max_connections), "20000", 1, 1000000,
     "client connections per thread"},
    {"key_ttl", CONFIG_MS, KEY(api.key_ttl_ms), "5s", 1, 3600000, "how long a checked API key is believed"},
    {"incomplete_timeout", CONFIG_MS, KEY(api.incomplete_ms), "30s", 100, 3600000,
     "for a request to become complete"},
    {"master_timeout", CONFIG_MS, KEY(api.master_timeout_ms), "70s", 100, 3600000,
     "for an answer of a master"},
    {"master_wait", CONFIG_MS, KEY(api.master_wait_ms), "5s", 0, 600000,
     "for a master that is being restarted"},
    {"rate_limit", CONFIG_INT, KEY(api.rate_limit), "20000", 0, 1000000000,
     "requests of a team per window, over all instances; 0 = no limit"},
    {"rate_window", CONFIG_MS, KEY(api.rate_window_ms), "30s", 1000, 3600000, "window of the rate limit"},
    {"auth_url", CONFIG_STR, KEY(auth_url), "", 0, 0,
     "http:// address asked about keys that the platform does not know, or nothing"},
    {"auth_timeout", CONFIG_MS, KEY(api.auth_timeout_ms), "3s", 10, 60000, "for its answer"},
    {0},
};

static struct worker workers[MAX_THREADS];

static int load_admin_token(struct err *e)
{
    char text[129] = "";
    _cleanup_fclose_ FILE *f = fopen(s.admin_token_file, "re");
    if (!f) {
        log_warn("no operator's token in %s: %m; only admin API keys may use the operator's routes",
                 s.admin_token_file);
        return 0;
    }
    if (!fgets(text, sizeof text, f))
        text[0] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    if (strlen(text) < 32)
        return err_set(e, ERR_INVALID, "reading %s: shorter than 32 characters", s.admin_token_file);
    sha256(text, strlen(text), s.api.admin_sha256);
    explicit_bzero(text, sizeof text);
    s.api.has_admin_token = true;
    return 0;
}

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
    if (callback_parse(s.auth_url, &s.api.auth_url, e) < 0 || load_admin_token(e) < 0)
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

static void on_drained(struct worker *w)
{
    if (w != &workers[0]) {
        loop_stop(w->loop);
        return;
    }
    for (int64_t i = 1; i < s.api.threads; i++) {
        pthread_join(workers[i].thread, NULL);
        loop_free(workers[i].loop);
    }
    daemon_done();
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
        .keys = keys,
        .config = &s,
        .start = start,
        .drain = drain,
        .drain_ms = 12000,
    };
    return daemon_main(&spec, argc, argv);
}
