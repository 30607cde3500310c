/* `control`: the control plane with nodes that answer at once, so that what is measured is API, master,
 * lifecycle and Redis. */
#include "bench/bench.h"
#include "bench/cluster.h"
#include "bench/decisions.h"
#include "bench/freed.h"
#include "bench/proc.h"
#include "bench/web.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "lib/net/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES 4
#define LISTED 100 /* how many sandboxes the metadata filter leaves */
#define STORM 100
#define DUE 300 /* sandboxes whose deadline is watched */
#define FAR_DEADLINES 1000000
#define FAR_BATCH 1000 /* per script call: Redis must stay answering meanwhile */

enum metric {
    CREATE_ADDED,
    CREATE_RATE,
    LIST,
    GET,
    GET_CPU,
    GET_CPU_MASTER,
    GET_CPU_VS_NGINX,
    DEADLINE_LATE,
    DEADLINES,
    DEADLINES_CPU,
    DECISIONS,
    STORM_ERRORS,
    PAUSE_FREED,
    METRICS
};

struct control {
    const struct bench_options *o;
    struct cluster cluster;
    struct loop *loop;
    struct httpc *one, *many; /* one connection, and 32 */
    struct redis *redis;
    struct series s[METRICS];
    char (*ids)[32];
    size_t n, scale;
    struct err *e;
    int result;
    /* deadlines */
    int64_t ends[DUE];
    size_t due_seen;
    struct fiber_event all_due;
};

/* ---- set-up ---- */

static int admin_post(struct control *c, struct httpc *h, const char *path, const char *body,
                      struct buf *answer)
{
    int status = web_call(h, "POST", path, body, answer, NULL);
    return status / 100 == 2
               ? 0
               : err_set(c->e, ERR_INTERNAL, "POST %s answered %d: %.150s", path, status, buf_cstr(answer));
}

static int bootstrap(struct control *c)
{
    char header[128], keys[64];
    struct buf answer = {0};
    snprintf(header, sizeof header, "X-Admin-Token: %s\r\n", c->cluster.admin_token);
    struct httpc *h = httpc_new(c->loop, c->cluster.api_port, 1, header);
    int r = admin_post(c, h, "/cube/v1/teams", "{\"teamID\":\"bench\",\"name\":\"bench\",\"slug\":\"bench\"}",
                       &answer);
    buf_reset(&answer);
    if (r == 0)
        r = admin_post(c, h, "/cube/v1/keys", "{\"teamID\":\"bench\",\"name\":\"bench\"}", &answer);
    if (r == 0 && !web_string(&answer, "key", c->cluster.api_key, sizeof c->cluster.api_key))
        r = err_set(c->e, ERR_INTERNAL, "making a key: no key in %.100s", buf_cstr(&answer));
    buf_reset(&answer);
    if (r == 0)
        r = admin_post(
            c, h, "/cube/v1/templates",
            "{\"templateID\":\"" CLUSTER_TEMPLATE "\",\"aliases\":[\"base\"],\"public\":true,\"cpuCount\":1,"
            "\"memoryMB\":256,\"diskSizeMB\":1024,\"envdVersion\":\"0.6.13\",\"defaultUser\":\"user\","
            "\"defaultWorkdir\":\"/home/user\"}",
            &answer);
    buf_free(&answer);
    httpc_free(h);
    snprintf(keys, sizeof keys, "X-API-Key: %s\r\n", c->cluster.api_key);
    c->one = httpc_new(c->loop, c->cluster.api_port, 1, keys);
    c->many = httpc_new(c->loop, c->cluster.api_port, 32, keys);
    return r;
}

static int create(struct control *c, const char *body, char id[32], int64_t *us)
{
    _cleanup_buf_ struct buf answer = {0};
    int status = web_call(c->one, "POST", "/v2/sandboxes", body, &answer, us);
    if (status != 201)
        return err_set(c->e, ERR_INTERNAL, "create answered %d: %.150s", status, buf_cstr(&answer));
    return web_string(&answer, "sandboxID", id, 32)
               ? 0
               : err_set(c->e, ERR_INTERNAL, "create: no sandboxID in the answer");
}

/* The nodes register by themselves; the first create that works says that they are there. */
static int wait_for_nodes(struct control *c)
{
    char id[32];
    for (int i = 0; create(c, "{\"templateID\":\"base\",\"timeout\":3600}", id, NULL) < 0; i++) {
        if (i > 200)
            return -1;
        fiber_sleep(50);
    }
    *c->e = (struct err){0};
    return 0;
}

/* ---- create, list, get ---- */

static int measure_create(struct control *c)
{
    long rounds = c->o->rounds ? c->o->rounds : 500;
    for (long i = 0; i < rounds + 50; i++) {
        char id[32];
        int64_t us = 0;
        if (create(c, "{\"templateID\":\"base\",\"timeout\":3600,\"metadata\":{\"kind\":\"single\"}}", id,
                   &us) < 0)
            return -1;
        if (i >= 50) /* after the first ones, which warm caches and connections */
            series_add(&c->s[CREATE_ADDED], (double)us / 1000);
    }
    return 0;
}

static void make_fill(size_t i, char path[256], struct buf *body, void *data)
{
    struct control *c = data;
    strcpy(path, "/v2/sandboxes");
    buf_printf(
        body,
        "{\"templateID\":\"base\",\"timeout\":86000,\"metadata\":{\"bucket\":\"b%zu\",\"user\":\"u%zu\"}}",
        i % (c->scale / LISTED), i);
}

static void seen_fill(size_t i, int status, const char *body, size_t n, int64_t us, void *data)
{
    struct control *c = data;
    struct buf b = {.data = (char *)body, .len = n};
    if (status == 201 && web_string(&b, "sandboxID", c->ids[c->n], 32))
        c->n++;
}

static int fill(struct control *c)
{
    int64_t t = clock_mono_us();
    size_t failed = web_many(c->many, c->scale, "POST", make_fill, seen_fill, c);
    double seconds = (double)(clock_mono_us() - t) / 1e6;
    if (failed > 0)
        return err_set(c->e, ERR_INTERNAL, "%zu of %zu creates failed", failed, c->scale);
    series_add(&c->s[CREATE_RATE], (double)c->scale / seconds);
    return 0;
}

static int measure_list(struct control *c)
{
    for (int i = 0; i < 220; i++) {
        char path[128];
        int64_t us;
        _cleanup_buf_ struct buf answer = {0};
        snprintf(path, sizeof path, "/v2/sandboxes?limit=100&metadata=bucket%%3Db%d",
                 i % (int)(c->scale / LISTED));
        int status = web_call(c->one, "GET", path, NULL, &answer, &us);
        size_t found = 0;
        for (const char *p = buf_cstr(&answer); (p = strstr(p, "\"sandboxID\"")); p++)
            found++;
        if (status != 200 || found != LISTED)
            return err_set(c->e, ERR_INTERNAL, "list answered %d with %zu sandboxes instead of %d", status,
                           found, LISTED);
        if (i >= 20)
            series_add(&c->s[LIST], (double)us / 1000);
    }
    return 0;
}

static void make_get(size_t i, char path[256], struct buf *body, void *data)
{
    struct control *c = data;
    snprintf(path, 256, "/sandboxes/%s", c->ids[i % c->n]);
}

static void make_file(size_t i, char path[256], struct buf *body, void *data)
{
    strcpy(path, "/one.json");
}

/* CPU time per request of a process while it answers `n` requests. */
static double cpu_per_request(struct httpc *h, pid_t pid, pid_t other, size_t n, double *of_other,
                              void (*make)(size_t i, char path[256], struct buf *body, void *data),
                              struct control *c, size_t *failed)
{
    *failed = web_many(h, n / 10, "GET", make, NULL, c); /* warm */
    long long t = proc_cpu_us(pid), u = other ? proc_cpu_us(other) : 0;
    *failed += web_many(h, n, "GET", make, NULL, c);
    if (of_other)
        *of_other = (double)(proc_cpu_us(other) - u) / (double)n;
    return (double)(proc_cpu_us(pid) - t) / (double)n;
}

/* nginx with one worker that serves the same bytes from a file. */
static pid_t start_nginx(struct control *c, const struct buf *bytes, int port, pid_t *worker)
{
    char path[128], text[1024], log[128];
    snprintf(path, sizeof path, "%s/one.json", c->cluster.dir);
    FILE *f = fopen(path, "we");
    if (!f)
        return -1;
    fwrite(bytes->data, 1, bytes->len, f);
    fclose(f);
    snprintf(path, sizeof path, "%s/nginx.conf", c->cluster.dir);
    f = fopen(path, "we");
    if (!f)
        return -1;
    snprintf(text, sizeof text,
             "daemon off; master_process off; pid %s/nginx.pid; error_log %s/nginx.log; events { "
             "worker_connections 512; }\n"
             "http { access_log off; keepalive_requests 1000000; open_file_cache max=10; types { "
             "application/json json; }\n"
             "client_body_temp_path %s; proxy_temp_path %s; fastcgi_temp_path %s; uwsgi_temp_path %s; "
             "scgi_temp_path %s;\n"
             "server { listen 127.0.0.1:%d; root %s; } }\n",
             c->cluster.dir, c->cluster.dir, c->cluster.dir, c->cluster.dir, c->cluster.dir, c->cluster.dir,
             c->cluster.dir, port, c->cluster.dir);
    fputs(text, f);
    fclose(f);
    snprintf(log, sizeof log, "%s/nginx.out", c->cluster.dir);
    struct err e = {0};
    pid_t pid = proc_start((char *[]){"nginx", "-c", path, NULL}, log, NULL, &e);
    if (pid > 0 && proc_wait_port(pid, port, 5000, "nginx", &e) < 0) {
        proc_stop(pid);
        return -1;
    }
    *worker = pid; /* without a master process it is the worker itself */
    return pid;
}

static int measure_get(struct control *c)
{
    size_t n = 20000, failed;
    char path[256];
    double master_cpu = 0;
    _cleanup_buf_ struct buf answer = {0};
    for (size_t i = 0; i < 1100; i++) {
        int64_t us;
        buf_reset(&answer);
        make_get(i, path, NULL, c);
        if (web_call(c->one, "GET", path, NULL, &answer, &us) != 200)
            return err_set(c->e, ERR_INTERNAL, "GET %s failed", path);
        if (i >= 100)
            series_add(&c->s[GET], (double)us / 1000);
    }
    double api =
        cpu_per_request(c->many, c->cluster.api, c->cluster.master, n, &master_cpu, make_get, c, &failed);
    if (failed > 0)
        return err_set(c->e, ERR_INTERNAL, "%zu of %zu GETs failed", failed, n);
    series_add(&c->s[GET_CPU], api);
    series_add(&c->s[GET_CPU_MASTER], master_cpu);
    pid_t worker = 0;
    int port = proc_free_port();
    pid_t nginx = start_nginx(c, &answer, port, &worker);
    if (nginx < 0) {
        fprintf(stderr, "control: nginx does not start; get-cpu-vs-nginx is left out\n");
        return 0;
    }
    struct httpc *h = httpc_new(c->loop, port, 32, "");
    double served = cpu_per_request(h, worker, 0, n, NULL, make_file, c, &failed);
    httpc_free(h);
    proc_stop(nginx);
    if (failed == 0 && served > 0)
        series_add(&c->s[GET_CPU_VS_NGINX], api / served);
    return 0;
}

/* ---- deadlines ---- */

struct reply {
    struct fiber_event done;
    long long integer;
    bool ok;
};

static void on_reply(const redisReply *reply, const struct err *e, void *data)
{
    struct reply *r = data;
    r->ok = !e;
    r->integer = reply && reply->type == REDIS_REPLY_STRING ? strtoll(reply->str, NULL, 10)
                 : reply                                    ? reply->integer
                                                            : 0;
    fiber_event_set(&r->done);
}

/* Deadlines that lie days ahead, as those of a million running sandboxes would: 36 sets, by the last
 * character of the ID. */
static int add_far_deadlines(struct control *c)
{
    static const char script[] =
        "local last = '0123456789abcdefghijklmnopqrstuvwxyz' "
        "for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do local k = i % 36 + 1 local ch = last:sub(k, k) "
        "redis.call('ZADD', '{c0}:dl:' .. ch, ARGV[3] + i, string.format('i0far%015d', i) .. ch) end return "
        "1";
    char from[16], to[16], base[24];
    snprintf(base, sizeof base, "%lld", (long long)clock_realtime_ms() + 3 * 86400000ll);
    for (long i = 0; i < FAR_DEADLINES; i += FAR_BATCH) {
        struct reply r = {0};
        snprintf(from, sizeof from, "%ld", i);
        snprintf(to, sizeof to, "%ld", i + FAR_BATCH - 1);
        redis_command(c->redis, on_reply, &r, "EVAL %s 0 %s %s %s", script, from, to, base);
        fiber_event_wait(&r.done, -1);
        if (!r.ok)
            return err_set(c->e, ERR_INTERNAL, "adding deadlines to Redis failed");
    }
    return 0;
}

static void on_event(const char *id, const redisReply *fields, void *data)
{
    struct control *c = data;
    const char *sandbox = NULL, *state = NULL;
    for (size_t i = 0; i + 1 < fields->elements; i += 2) {
        if (strcmp(fields->element[i]->str, "id") == 0)
            sandbox = fields->element[i + 1]->str;
        else if (strcmp(fields->element[i]->str, "state") == 0)
            state = fields->element[i + 1]->str;
    }
    if (!sandbox || !state || strcmp(state, "killing") != 0)
        return;
    for (size_t i = 0; i < DUE; i++) {
        if (strcmp(c->ids[c->n - DUE + i], sandbox) != 0 || c->ends[i] == 0)
            continue;
        series_add(&c->s[DEADLINE_LATE], (double)(clock_realtime_ms() - c->ends[i]));
        c->ends[i] = 0;
        if (++c->due_seen == DUE)
            fiber_event_set(&c->all_due);
        return;
    }
}

static void on_gap(void *data)
{
}

static int measure_deadlines(struct control *c)
{
    if (add_far_deadlines(c) < 0)
        return -1;
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", c->cluster.redis_port);
    struct redis_stream *events = redis_stream_follow(c->loop, &(struct redis_config){.address = address},
                                                      "{c0}:ev", "$", on_event, on_gap, c);
    for (size_t i = 0; i < DUE; i++) {
        char body[128], *id = c->ids[c->n];
        snprintf(body, sizeof body, "{\"templateID\":\"base\",\"timeout\":%zu}", 4 + i % 5);
        if (create(c, body, id, NULL) < 0)
            return -1;
        c->n++;
        struct reply r = {0};
        redis_command(c->redis, on_reply, &r, "HGET {c0}:sb:%s end", id);
        fiber_event_wait(&r.done, -1);
        c->ends[i] = r.integer;
        if (!r.ok || r.integer == 0)
            return err_set(c->e, ERR_INTERNAL, "the record of %s has no end", id);
    }
    long long used = proc_cpu_us(c->cluster.lifecycle) + proc_cpu_us(c->cluster.redis), t = clock_mono_us();
    bool all = fiber_event_wait(&c->all_due, 30000);
    double seconds = (double)(clock_mono_us() - t) / 1e6;
    used = proc_cpu_us(c->cluster.lifecycle) + proc_cpu_us(c->cluster.redis) - used;
    double cores = (double)used / 1e6 / seconds;
    redis_stream_free(events);
    c->n -= DUE;
    if (!all)
        return err_set(c->e, ERR_INTERNAL, "only %zu of %d deadlines were acted on within 30 s", c->due_seen,
                       DUE);
    series_add(&c->s[DEADLINES], FAR_DEADLINES + DUE);
    series_add(&c->s[DEADLINES_CPU], cores);
    return 0;
}

/* ---- storms ---- */

static void make_pause(size_t i, char path[256], struct buf *body, void *data)
{
    struct control *c = data;
    snprintf(path, 256, "/sandboxes/%s/pause", c->ids[i]);
}

static void make_wake(size_t i, char path[256], struct buf *body, void *data)
{
    struct control *c = data;
    snprintf(path, 256, "/sandboxes/%s/connect", c->ids[i]);
    buf_puts(body, "{\"timeout\":3600}");
}

static void measure_storms(struct control *c)
{
    struct httpc *h = httpc_new(c->loop, c->cluster.api_port, STORM, "");
    char keys[64];
    httpc_free(h);
    snprintf(keys, sizeof keys, "X-API-Key: %s\r\n", c->cluster.api_key);
    h = httpc_new(c->loop, c->cluster.api_port, STORM, keys);
    size_t errors = web_many(h, STORM, "POST", make_pause, NULL, c);
    errors += web_many(h, STORM, "POST", make_wake, NULL, c);
    httpc_free(h);
    series_add(&c->s[STORM_ERRORS], (double)errors);
}

/* ---- all ---- */

static void on_state(bool connected, void *data)
{
    if (connected)
        fiber_event_set(data);
}

static int measure(struct control *c)
{
    char address[32];
    struct fiber_event connected = {0};
    snprintf(address, sizeof address, "127.0.0.1:%d", c->cluster.redis_port);
    c->redis = redis_new(c->loop, &(struct redis_config){.address = address, .timeout_ms = 10000});
    redis_on_state(c->redis, on_state, &connected);
    fiber_event_wait(&connected, 5000);
    if (bootstrap(c) < 0 || wait_for_nodes(c) < 0 || measure_create(c) < 0 || fill(c) < 0 ||
        measure_list(c) < 0 || measure_get(c) < 0)
        return -1;
    measure_storms(c);
    return measure_deadlines(c);
}

static void run(void *arg)
{
    struct control *c = arg;
    fiber_sleep(0); /* until the loop runs: a stop before that would be lost */
    c->result = measure(c);
    loop_stop(c->loop);
}

int bench_control(const struct bench_options *o, struct err *e)
{
    struct control c = {
        .o = o, .e = e, .scale = o->scale >= LISTED ? (size_t)o->scale / LISTED * LISTED : 20000};
    static const struct series names[METRICS] = {[CREATE_ADDED] = {"create-added", "ms"},
                                                 [CREATE_RATE] = {"create-rate", "per second"},
                                                 [LIST] = {"list", "ms"},
                                                 [GET] = {"get", "ms"},
                                                 [GET_CPU] = {"get-cpu", "µs"},
                                                 [GET_CPU_MASTER] = {"get-cpu-master", "µs"},
                                                 [GET_CPU_VS_NGINX] = {"get-cpu-vs-nginx", "x"},
                                                 [DEADLINE_LATE] = {"deadline-late", "ms"},
                                                 [DEADLINES] = {"deadlines", "count"},
                                                 [DEADLINES_CPU] = {"deadlines-cpu", "cores"},
                                                 [DECISIONS] = {"decisions", "per second"},
                                                 [STORM_ERRORS] = {"storm-errors", "count"},
                                                 [PAUSE_FREED] = {"pause-freed", "%"}};
    memcpy(c.s, names, sizeof names);
    c.ids = calloc(c.scale + DUE + 1, sizeof *c.ids);
    c.loop = loop_new();
    if (!c.ids || !c.loop || fiber_start(c.loop, 1, e) < 0)
        return err_set(e, ERR_INTERNAL, "control: out of memory");
    bench_decisions(&c.s[DECISIONS]);
    if (cluster_start(&c.cluster, o->build, NODES, e) < 0)
        return -1;
    fiber_spawn(run, &c);
    loop_run(c.loop);
    redis_free(c.redis);
    httpc_free(c.one);
    httpc_free(c.many);
    if (c.result == 0 || !getenv("CUBE_KEEP"))
        cluster_stop(&c.cluster);
    if (c.result < 0)
        return -1;
    struct err why = {0};
    if (!o->quick && bench_pause_freed(o, &c.s[PAUSE_FREED], c.loop, &why) < 0)
        fprintf(stderr, "control: pause-freed is left out: %s\n", why.msg);
    report_print("control", c.s, METRICS, o->json);
    return 0;
}
