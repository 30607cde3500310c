/* Owns the process's connection to Redis. Invariants: what it says is news, never a condition: without Redis
 * the masters that are known stay in use and each process counts by itself; the workers' lists of masters are
 * changed on their own threads only. */
#include "api/cell.h"

#include "api/limit.h"
#include "api/masters.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/redis.h"
#include "proto/redis_scripts.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISCOVER_MS 500
#define DISCOVER_FIRST_MS 50 /* while none is known */
#define SHARE_MS 100         /* how old the others' counts may be */

enum sharing { SHARING_IDLE, SHARING_SOON, SHARING_NOW };

static struct {
    struct api *api;
    struct worker *workers;
    struct loop *loop;
    struct redis *redis;
    char prefix[8];
    char masters[MASTERS_MAX * MASTER_ADDRESS_MAX];
    struct loop_timer discover, share;
    _Atomic bool no_master;
    _Atomic int sharing; /* enum sharing: what is on its way */
} cell;

/* ---- masters ---- */

struct news {
    struct worker *w;
    char masters[];
};

static void on_news(void *data)
{
    _cleanup_free_ struct news *n = data;
    struct err e = {0};
    if (masters_set(n->w->masters, n->masters, &e) < 0)
        log_warn("masters found in Redis: %s", e.msg);
}

static void tell_workers(void)
{
    size_t len = strlen(cell.masters) + 1;
    for (int64_t i = 0; i < cell.api->threads; i++) {
        struct news *n = malloc(sizeof *n + len);
        if (!n)
            return; /* told again when the list changes */
        n->w = &cell.workers[i];
        memcpy(n->masters, cell.masters, len);
        loop_post(n->w->loop, on_news, n);
    }
}

/* Members are "<instance> <address>"; sorted here, so that the same masters are the same text. */
static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void take_members(const redisReply *reply)
{
    char *found[MASTERS_MAX], list[sizeof cell.masters] = "";
    size_t n = 0, len = 0;
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements && n < MASTERS_MAX; i++) {
        char *space = reply->element[i]->str ? strchr(reply->element[i]->str, ' ') : NULL;
        if (space && strlen(space + 1) < MASTER_ADDRESS_MAX)
            found[n++] = space + 1;
    }
    if (n == 0)
        return; /* the last ones known stay: they may only have lost Redis */
    qsort(found, n, sizeof found[0], by_text);
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? "," : "", found[i]);
    if (strcmp(list, cell.masters) == 0)
        return;
    memcpy(cell.masters, list, len + 1);
    log_info("masters: %s", cell.masters);
    tell_workers();
    atomic_store(&cell.no_master, false);
}

static void on_members(const redisReply *reply, const struct err *e, void *data)
{
    (void)e; /* the connection logs its own troubles */
    (void)data;
    if (!cell.redis)
        return;
    if (reply)
        take_members(reply);
    loop_timer_start(cell.loop, &cell.discover, cell_without_master() ? DISCOVER_FIRST_MS : DISCOVER_MS);
}

static void on_discover(struct loop_timer *t)
{
    (void)t;
    redis_command(cell.redis, on_members, NULL, "ZRANGEBYSCORE %s:svc:master %lld +inf", cell.prefix,
                  (long long)clock_realtime_ms());
}

bool cell_without_master(void)
{
    return atomic_load_explicit(&cell.no_master, memory_order_relaxed);
}

/* ---- counts of requests ---- */

static void on_total(const redisReply *reply, const struct err *e, void *data)
{
    _cleanup_free_ struct limit_delta *d = data;
    (void)e; /* what a lost exchange told may or may not have arrived; it is not told twice */
    if (reply && reply->type == REDIS_REPLY_INTEGER)
        limit_learn(d, reply->integer);
}

static void send_delta(const struct limit_delta *delta, void *data)
{
    (void)data;
    char team[24], window[16], more[16], ttl[24];
    struct limit_delta *d = malloc(sizeof *d);
    if (!d)
        return;
    *d = *delta;
    snprintf(team, sizeof team, "%016llx", (unsigned long long)d->team);
    snprintf(window, sizeof window, "%u", d->window);
    snprintf(more, sizeof more, "%u", d->more);
    snprintf(ttl, sizeof ttl, "%lld", (long long)(2 * cell.api->rate_window_ms));
    const char *args[] = {cell.prefix, team, window, more, ttl};
    redis_eval(cell.redis, &script_rate, on_total, d, 0, NULL, 5, args, NULL);
}

static void share(void)
{
    if (!cell.redis)
        return;
    loop_timer_stop(cell.loop, &cell.share);
    if (!redis_connected(cell.redis)) { /* nothing is lost: it is told when Redis is back */
        loop_timer_start(cell.loop, &cell.share, SHARE_MS);
        return;
    }
    atomic_store(&cell.sharing, SHARING_IDLE);
    limit_deltas(send_delta, NULL);
}

static void on_share(struct loop_timer *t)
{
    (void)t;
    share();
}

static void share_now(void *data)
{
    (void)data;
    share();
}

static void share_soon(void *data)
{
    (void)data;
    if (cell.redis && cell.share.slot == 0)
        loop_timer_start(cell.loop, &cell.share, SHARE_MS);
}

void cell_share_counts(bool urgent)
{
    int want = urgent ? SHARING_NOW : SHARING_SOON;
    int now = atomic_load_explicit(&cell.sharing, memory_order_relaxed);
    do {
        if (now >= want)
            return;
    } while (!atomic_compare_exchange_weak(&cell.sharing, &now, want));
    loop_post(cell.loop, urgent ? share_now : share_soon, NULL);
}

/* ---- start and end ---- */

static int connect_redis(const struct cell_config *cfg, struct err *e)
{
    char password[256] = "";
    if (*cfg->redis_password_file) {
        _cleanup_fclose_ FILE *f = fopen(cfg->redis_password_file, "re");
        if (!f || !fgets(password, sizeof password, f))
            return err_sys(e, ERR_INVALID, "reading the Redis password file %s", cfg->redis_password_file);
        password[strcspn(password, "\r\n")] = '\0';
    }
    cell.redis = redis_new(cell.loop, &(struct redis_config){
                                          .address = cfg->redis,
                                          .user = *cfg->redis_user ? cfg->redis_user : NULL,
                                          .password = *password ? password : NULL,
                                      });
    explicit_bzero(password, sizeof password);
    return cell.redis ? 0
                      : err_set(e, ERR_INVALID,
                                "connecting to Redis at \"%s\": the address is not understood", cfg->redis);
}

int cell_start(const struct cell_config *cfg, struct api *api, struct worker *workers, struct loop *l,
               struct err *e)
{
    cell.api = api;
    cell.workers = workers;
    cell.loop = l;
    bool discover = strcmp(api->master, "discover") == 0;
    if (strlen(cfg->cell) != 1)
        return err_set(e, ERR_INVALID, "api.cell: \"%s\" is not one character", cfg->cell);
    snprintf(cell.prefix, sizeof cell.prefix, "{c%s}", cfg->cell);
    if (!discover && api->rate_limit == 0 && api->wrong_keys == 0)
        return 0;
    if (connect_redis(cfg, e) < 0)
        return -1;
    cell.share.fire = on_share;
    if (!discover)
        return 0;
    atomic_store(&cell.no_master, true);
    cell.discover.fire = on_discover;
    loop_timer_start(l, &cell.discover, 0);
    return 0;
}

void cell_stop(void)
{
    struct redis *redis = cell.redis;
    if (!redis)
        return;
    cell.redis = NULL;
    loop_timer_stop(cell.loop, &cell.discover);
    loop_timer_stop(cell.loop, &cell.share);
    redis_free(redis);
}
