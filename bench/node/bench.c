/* `node-create`, `create-burst`, `density` and `node-pause`: what a master sees of one cube-node, through its
 * gRPC service (contracts/internal.md §12). bench/node/run.sh starts the node and calls this. */
#include "bench/node/client.h"
#include "bench/node/split.h"
#include "bench/report.h"

#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#define BURST 50
#define SNAPSHOTS 10 /* of each kind */

static struct bench {
    struct node_client client, ready;
    const char *name, *address, *ready_address, *key_dir, *run_dir, *template_id;
    int n, status, settle_s;
    bool json;
} b = {.address = "127.0.0.1:3040", .settle_s = 90};

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

static double ms_since(int64_t us)
{
    return (double)(clock_mono_us() - us) / 1000.0;
}

static void create(struct node_client *c, const char *id, Cube__Node__V1__Receipt *r)
{
    struct err e = {0};
    struct node_start s = {.id = id, .gen = 1};
    if (node_start(c, &s, r, &e) < 0)
        die("create", &e);
}

static void kill_one(struct node_client *c, const char *id)
{
    struct err e = {0};
    if (node_kill(c, id, 1, NULL, &e) < 0)
        die("kill", &e);
}

/* One after the other; `gap_ms` lets the pool refill, as it does between the creates of a quiet node. */
static void create_series(struct node_client *c, int n, int64_t gap_ms, struct series *total,
                          struct series *vmm, struct series *init, struct series *missed)
{
    double misses = 0;
    for (int i = 0; i < n; i++) {
        char id[SANDBOX_ID_LEN + 1];
        Cube__Node__V1__Receipt r = CUBE__NODE__V1__RECEIPT__INIT;
        id_sandbox(id, '0');
        int64_t began = clock_mono_us();
        create(c, id, &r);
        series_add(total, ms_since(began));
        if (vmm)
            series_add(vmm, (double)r.vmm_us / 1000.0);
        if (init)
            series_add(init, (double)r.init_us / 1000.0);
        misses += !r.was_ready;
        kill_one(c, id);
        fiber_sleep(gap_ms);
    }
    if (missed)
        series_add(missed, misses);
}

static void node_create(void)
{
    struct series s[] = {{.metric = "create", .unit = "ms"},
                         {.metric = "vmm", .unit = "ms"},
                         {.metric = "init", .unit = "ms"},
                         {.metric = "create-ready", .unit = "ms"},
                         {.metric = "ready-missed", .unit = "count"}};
    struct series warm = {.metric = "warm", .unit = "ms"};
    create_series(&b.client, 5, 100, &warm, NULL, NULL, NULL);
    create_series(&b.client, b.n, 60, &s[0], &s[1], &s[2], NULL);
    size_t count = 3;
    if (b.ready_address) {
        create_series(&b.ready, 5, 300, &warm, NULL, NULL, NULL);
        create_series(&b.ready, b.n, 80, &s[3], NULL, NULL, &s[4]);
        count = 5;
    }
    report_print("node-create", s, count, b.json);
}

struct one {
    char id[SANDBOX_ID_LEN + 1];
    int64_t began;
    double took;
    bool failed, pooled;
    unsigned *left;
    struct fiber_event *all;
};

static void burst_one(void *arg)
{
    struct one *o = arg;
    struct err e = {0};
    struct node_start s = {.id = o->id, .gen = 1};
    Cube__Node__V1__Receipt r = CUBE__NODE__V1__RECEIPT__INIT;
    o->failed = node_start(&b.client, &s, &r, &e) < 0;
    o->pooled = r.from_pool;
    if (o->failed)
        fprintf(stderr, "create: %s\n", e.msg);
    o->took = ms_since(o->began);
    if (--*o->left == 0)
        fiber_event_set(o->all);
}

static void create_burst(void)
{
    struct series s[] = {{.metric = "create", .unit = "ms"},
                         {.metric = "last", .unit = "ms"},
                         {.metric = "errors", .unit = "count"},
                         {.metric = "pool-missed", .unit = "count"}};
    int rounds = b.n / BURST > 0 ? b.n / BURST : 1;
    for (int round = 0; round < rounds; round++) {
        static struct one one[BURST];
        unsigned left = BURST;
        struct fiber_event all = {0};
        int64_t began = clock_mono_us();
        for (int i = 0; i < BURST; i++) {
            one[i] = (struct one){.began = began, .left = &left, .all = &all};
            id_sandbox(one[i].id, '0');
            fiber_spawn(burst_one, &one[i]);
        }
        fiber_event_wait(&all, -1);
        double last = 0, errors = 0, missed = 0;
        for (int i = 0; i < BURST; i++) {
            series_add(&s[0], one[i].took);
            last = one[i].took > last ? one[i].took : last;
            errors += one[i].failed;
            missed += !one[i].pooled;
        }
        series_add(&s[1], last);
        series_add(&s[2], errors);
        series_add(&s[3], missed);
        for (int i = 0; i < BURST; i++)
            if (!one[i].failed)
                kill_one(&b.client, one[i].id);
        fiber_sleep(2000);
    }
    report_print("create-burst", s, 4, b.json);
}

static double available_mib(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (double)kib / 1024.0;
}

/* What all use in `seconds`, by kind. */
static void watch(int seconds, struct split_rates *out)
{
    struct split from, to;
    split_read(&from, true);
    fiber_sleep(seconds * 1000);
    split_read(&to, false);
    split_rates(&from, &to, out);
}

static void density(void)
{
    enum { OWN = 7, ALL = OWN + SPLIT_KINDS + 1 };
    struct series s[ALL] = {
        {.metric = "sandboxes", .unit = "count"},        {.metric = "idle-cores", .unit = "cores"},
        {.metric = "machine-before", .unit = "cores"},   {.metric = "machine", .unit = "cores"},
        {.metric = "mem-available-drop", .unit = "MiB"}, {.metric = "create", .unit = "ms"},
        {.metric = "vcpu-wakes", .unit = "1/s"}};
    struct split_rates before, now;
    char(*id)[SANDBOX_ID_LEN + 1] = calloc((size_t)b.n, sizeof *id);
    watch(10, &before);
    series_add(&s[2], before.busy);
    double mem = available_mib();
    int made = 0;
    for (; made < b.n; made++) {
        struct err e = {0};
        id_sandbox(id[made], '0');
        struct node_start start = {.id = id[made], .gen = 1};
        int64_t began = clock_mono_us();
        if (node_start(&b.client, &start, NULL, &e) < 0) {
            fprintf(stderr, "sandbox %d: %s\n", made + 1, e.msg);
            break;
        }
        series_add(&s[5], ms_since(began));
    }
    series_add(&s[0], made);
    fiber_sleep(b.settle_s * 1000); /* young ones are sampled more often; this is about idle ones */
    series_add(&s[4], made ? (mem - available_mib()) / made : 0);
    watch(30, &now);
    series_add(&s[3], now.busy);
    series_add(&s[1], split_report(&before, &now, &s[OWN]));
    series_add(&s[6], made ? now.vcpu_wakes / made : 0);
    for (int i = 0; i < made; i++)
        kill_one(&b.client, id[i]);
    report_print("density", s, ALL, b.json);
    free(id);
}

/* A plain write and fdatasync of the same bytes, in the same run. */
static double plain_write(size_t bytes)
{
    char path[] = "/var/tmp/N-bench-XXXXXX";
    int fd = mkstemp(path);
    char *data = malloc(bytes);
    memset(data, 0x5a, bytes);
    int64_t began = clock_mono_us();
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || fdatasync(fd) < 0)
        exit(1);
    double took = ms_since(began);
    close(fd);
    unlink(path);
    free(data);
    return took;
}

static void dirty(const char *id, const char *script)
{
    char out[256];
    struct err e = {0};
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL};
    if (guest_exec(b.run_dir, id, 1, argv, "root", out, sizeof out, &e) != 0)
        die(out, &e);
}

/* How long a guest stands still for a snapshot: its disk is copied meanwhile, where the file system cannot
 * share it. */
static void snapshot_bench(struct series *small, struct series *large)
{
    char id[SANDBOX_ID_LEN + 1], name[32];
    struct err e = {0};
    int64_t frozen;
    id_sandbox(id, '0');
    create(&b.client, id, NULL);
    for (int i = 0; i < 2 * SNAPSHOTS; i++) {
        if (i == SNAPSHOTS)
            dirty(id, "dd if=/dev/urandom of=/root/disk bs=1M count=64 oflag=direct 2> /dev/null; sync");
        snprintf(name, sizeof name, "bench-%d-%d", i, (int)getpid());
        if (node_snapshot(&b.client, id, 1, name, &frozen, &e) < 0)
            die("snapshot", &e);
        series_add(i < SNAPSHOTS ? small : large, (double)frozen / 1000.0);
    }
    if (node_kill(&b.client, id, 1, NULL, &e) < 0)
        die("kill", &e);
}

static void node_pause_bench(void)
{
    struct series s[] = {{.metric = "frozen-and-written", .unit = "ms"},
                         {.metric = "durable", .unit = "ms"},
                         {.metric = "resume", .unit = "ms"},
                         {.metric = "durable-vs-dd", .unit = "x"},
                         {.metric = "snapshot-frozen", .unit = "ms"},
                         {.metric = "snapshot-frozen-64-mib-more-disk", .unit = "ms"}};
    for (int i = 0; i < b.n; i++) {
        char id[SANDBOX_ID_LEN + 1], snapshot[64];
        struct err e = {0};
        id_sandbox(id, '0');
        create(&b.client, id, NULL);
        dirty(id, "head -c 10485760 /dev/urandom > /dev/shm/dirty");
        int64_t frozen, durable;
        if (node_pause(&b.client, id, 1, false, &frozen, &durable, snapshot, &e) < 0)
            die("pause", &e);
        double plain = plain_write(10 << 20);
        struct node_start resume = {.id = id, .gen = 2, .restore = true};
        int64_t began = clock_mono_us();
        if (node_start(&b.client, &resume, NULL, &e) < 0)
            die("resume", &e);
        series_add(&s[2], ms_since(began));
        series_add(&s[0], (double)frozen / 1000.0);
        series_add(&s[1], (double)durable / 1000.0);
        series_add(&s[3], (double)durable / 1000.0 / plain);
        if (node_kill(&b.client, id, 2, NULL, &e) < 0)
            die("kill", &e);
        fiber_sleep(60);
    }
    snapshot_bench(&s[4], &s[5]);
    report_print("node-pause", s, 6, b.json);
}

static void run(void *arg)
{
    struct err e = {0};
    fiber_sleep(0); /* until the loop runs: a stop before that would be lost */
    if (node_client_open(&b.client, b.client.loop, b.address, b.key_dir, &e) < 0 ||
        (b.ready_address && node_client_open(&b.ready, b.client.loop, b.ready_address, b.key_dir, &e) < 0))
        die("connecting", &e);
    b.client.template_id = b.ready.template_id = b.template_id;
    b.client.remaining_ms = b.ready.remaining_ms = 3600000;
    if (strcmp(b.name, "node-create") == 0)
        node_create();
    else if (strcmp(b.name, "create-burst") == 0)
        create_burst();
    else if (strcmp(b.name, "density") == 0)
        density();
    else if (strcmp(b.name, "node-pause") == 0)
        node_pause_bench();
    else
        b.status = 2;
    loop_stop(b.client.loop);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"address", required_argument, NULL, 'a'},
                                            {"ready-address", required_argument, NULL, 'r'},
                                            {"keys", required_argument, NULL, 'k'},
                                            {"run", required_argument, NULL, 'd'},
                                            {"template", required_argument, NULL, 't'},
                                            {"n", required_argument, NULL, 'n'},
                                            {"settle", required_argument, NULL, 's'},
                                            {"json", no_argument, NULL, 'j'},
                                            {0}};
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'a':
            b.address = optarg;
            break;
        case 'r':
            b.ready_address = optarg;
            break;
        case 'k':
            b.key_dir = optarg;
            break;
        case 'd':
            b.run_dir = optarg;
            break;
        case 't':
            b.template_id = optarg;
            break;
        case 'n':
            b.n = atoi(optarg);
            break;
        case 's':
            b.settle_s = atoi(optarg);
            break;
        case 'j':
            b.json = true;
            break;
        default:
            return 2;
        }
    }
    if (optind != argc - 1 || !b.template_id || b.n < 0) {
        fprintf(stderr, "usage: cube-bench-node node-create|create-burst|density|node-pause --template ID "
                        "--keys DIR --run DIR [--address A]\n"
                        "       [--ready-address A] [--n 200; density 500] [--settle SECONDS] [--json]\n");
        return 2;
    }
    b.name = argv[optind];
    if (!b.n)
        b.n = strcmp(b.name, "density") == 0 ? 500 : 200;
    log_init("bench", LOG_ERROR);
    report_start();
    struct err e = {0};
    b.client.loop = loop_new();
    if (fiber_start(b.client.loop, 1, &e) < 0)
        die("starting", &e);
    fiber_spawn(run, NULL);
    loop_run(b.client.loop);
    return b.status;
}
