/* cube-api: reads the configuration, starts one worker per thread, and drains them on SIGTERM. */
#include "api/metrics.h"
#include "api/server.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/admin.h"
#include "lib/net/config.h"
#include "lib/net/crypto.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MAX_THREADS 64

struct settings {
    struct api api;
    char *listen, *admin_listen, *master, *domain, *cors_origin, *key_dir, *admin_token_file, *log_level;
};

#define KEY(name, type, field, fallback, min, max, help)                                                     \
    {                                                                                                        \
        name, type, offsetof(struct settings, field), fallback, min, max, help                               \
    }
static const struct config_key keys[] = {
    KEY("listen", CONFIG_STR, listen, "127.0.0.1:3000", 0, 0, "address of the API"),
    KEY("admin_listen", CONFIG_STR, admin_listen, "127.0.0.1:3100", 0, 0,
        "address of /metrics, /healthz, /readyz"),
    KEY("master", CONFIG_STR, master, "127.0.0.1:3010", 0, 0, "addresses of masters, by comma"),
    KEY("domain", CONFIG_STR, domain, "", 0, 0, "domain of the ingress, or nothing"),
    KEY("key_dir", CONFIG_STR, key_dir, "/var/lib/cube/keys", 0, 0, "directory of the role keys"),
    KEY("admin_token_file", CONFIG_STR, admin_token_file, "", 0, 0,
        "the operator's token; default <key_dir>/admin_token"),
    KEY("cors_origin", CONFIG_STR, cors_origin, "*", 0, 0, "origin that browsers may call from, or nothing"),
    KEY("threads", CONFIG_INT, api.threads, "1", 1, MAX_THREADS, "event loops"),
    KEY("max_body", CONFIG_SIZE, api.max_body, "16M", 1, BODY_MAX, "largest request body"),
    KEY("max_connections", CONFIG_INT, api.max_connections, "20000", 1, 1000000,
        "client connections per thread"),
    KEY("key_ttl", CONFIG_MS, api.key_ttl_ms, "5s", 1, 3600000, "how long a checked API key is believed"),
    KEY("incomplete_timeout", CONFIG_MS, api.incomplete_ms, "30s", 100, 3600000,
        "for a request to become complete"),
    KEY("master_timeout", CONFIG_MS, api.master_timeout_ms, "70s", 100, 3600000, "for an answer of a master"),
    KEY("rate_limit", CONFIG_INT, api.rate_limit, "20000", 0, 1000000000,
        "requests of a team per window; 0 = no limit"),
    KEY("rate_window", CONFIG_MS, api.rate_window_ms, "30s", 1000, 3600000, "window of the rate limit"),
    KEY("log_level", CONFIG_STR, log_level, "info", 0, 0, "debug, info, warn or error"),
    {0},
};

static struct worker workers[MAX_THREADS];

static void usage(void)
{
    printf("cube-api - the E2B-compatible REST API of the sandbox platform\n\n"
           "usage: cube-api [--config FILE] [--help] [--version]\n\n"
           "It serves HTTP/1.1, keeps no state, and talks to the masters. Stop it with SIGTERM: requests in "
           "flight end first.\n\n"
           "Keys of the section \"api\" (and \"common\"):\n");
    config_usage("api", keys);
}

static int load_admin_token(struct api *api, const char *path, struct err *e)
{
    char text[129] = "";
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f) {
        log_warn("no operator's token in %s: %m; only admin API keys may use the operator's routes", path);
        return 0;
    }
    if (!fgets(text, sizeof text, f) || (text[strcspn(text, "\r\n")] = '\0', strlen(text) < 32))
        return err_set(e, ERR_INVALID, "reading %s: shorter than 32 characters", path);
    sha256(text, strlen(text), api->admin_sha256);
    explicit_bzero(text, sizeof text);
    api->has_admin_token = true;
    return 0;
}

static bool ready(char why[128], void *data)
{
    struct api *api = data;
    if (!atomic_load(&api->draining))
        return true;
    snprintf(why, 128, "shutting down");
    return false;
}

static void drain_worker(void *data)
{
    worker_drain(data);
}

static void on_signal(int signo, void *data)
{
    struct api *api = data;
    if (atomic_exchange(&api->draining, true))
        exit(0); /* the second signal */
    log_info("signal %d: draining", signo);
    for (int64_t i = 0; i < api->threads; i++)
        loop_post(workers[i].loop, drain_worker, &workers[i]);
}

static void *run_worker(void *data)
{
    loop_run(((struct worker *)data)->loop);
    return NULL;
}

static int start(struct settings *s, struct err *e)
{
    struct api *api = &s->api;
    struct rpc_auth auth = {.role = RPC_ROLE_API, .key_dir = s->key_dir};
    _cleanup_free_ char *token_path = NULL;
    if (asprintf(&token_path, "%s/admin_token", s->key_dir) < 0)
        return err_set(e, ERR_INTERNAL, "out of memory");
    api->listen = s->listen;
    api->master = s->master;
    api->domain = s->domain;
    api->cors_origin = s->cors_origin;
    if (load_admin_token(api, *s->admin_token_file ? s->admin_token_file : token_path, e) < 0)
        return -1;
    api->creds = rpc_creds_load(&auth, e);
    if (!api->creds)
        return -1;
    api_metrics_init();
    server_setup(api);
    for (int64_t i = 0; i < api->threads; i++) {
        struct loop *loop = loop_new();
        if (!loop)
            return err_set(e, ERR_INTERNAL, "out of memory");
        if (worker_start(&workers[i], api, loop, e) < 0)
            return -1;
    }
    if (admin_listen(workers[0].loop, s->admin_listen, ready, api, e) < 0)
        return -1;
    return loop_on_signal(workers[0].loop, SIGTERM, on_signal, api, e) < 0
               ? -1
               : loop_on_signal(workers[0].loop, SIGINT, on_signal, api, e);
}

static void raise_descriptor_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

int main(int argc, char **argv)
{
    static struct settings s;
    const char *config = NULL;
    struct err e = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return usage(), 0;
        if (strcmp(argv[i], "--version") == 0)
            return puts("cube-api " CUBE_VERSION), 0;
        if (strcmp(argv[i], "--config") != 0 || ++i == argc) {
            fprintf(stderr, "cube-api: unknown argument %s; see --help\n", argv[i < argc ? i : argc - 1]);
            return 2;
        }
        config = argv[i];
    }
    log_init("cube-api", LOG_INFO);
    raise_descriptor_limit();
    enum log_level level;
    if (config_load(config, "api", keys, &s, &e) < 0 || start(&s, &e) < 0) {
        log_fail(&e, "starting");
        return 1;
    }
    if (log_level_parse(s.log_level, &level))
        log_init("cube-api", level);
    for (int64_t i = 1; i < s.api.threads; i++)
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0) {
            log_error("starting thread %lld: %m", (long long)i);
            return 1;
        }
    log_info("listening on %s with %lld threads", s.listen, (long long)s.api.threads);
    loop_run(workers[0].loop);
    for (int64_t i = 1; i < s.api.threads; i++)
        pthread_join(workers[i].thread, NULL);
    return 0;
}
