/* A command line to one cube-node, for tests: says what a master would say, prints what comes back. */
#include "bench/node/client.h"

#include "lib/base/log.h"
#include "lib/net/fiber.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct command {
    struct node_client client;
    const char *address, *key_dir, *snapshot_id, *user;
    bool auto_pause, restore, reboot, fs_only;
    int argc;
    char **argv;
    int status;
};

static int fail(const struct err *e)
{
    printf("error %s: %s\n", err_code_name(e->code), e->msg);
    return 1;
}

static int start(struct command *c, const char *id, uint64_t gen)
{
    struct err e = {0};
    struct node_start s = {.id = id,
                           .gen = gen,
                           .snapshot_id = c->snapshot_id,
                           .restore = c->restore,
                           .reboot = c->reboot,
                           .auto_pause = c->auto_pause};
    Cube__Node__V1__Receipt r = CUBE__NODE__V1__RECEIPT__INIT;
    if (node_start(&c->client, &s, &r, &e) < 0)
        return fail(&e);
    printf("started total_us=%lld vmm_us=%lld init_us=%lld from_pool=%d clock=%d random=%d identity=%d "
           "network=%d tokens=%d generation=%llu\n",
           (long long)r.total_us, (long long)r.vmm_us, (long long)r.init_us, r.from_pool, r.clock_set,
           r.random_reseeded, r.identity_set, r.network_set, r.tokens_set,
           (unsigned long long)r.generation_file);
    return 0;
}

static int list(struct command *c)
{
    struct err e = {0};
    Cube__Node__V1__ListRequest req = CUBE__NODE__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *m =
        node_call(&c->client, "List", &req.base, &cube__node__v1__list_reply__descriptor, &e);
    if (!m)
        return fail(&e);
    const Cube__Node__V1__ListReply *r = (Cube__Node__V1__ListReply *)m;
    for (size_t i = 0; i < r->n_sandboxes; i++) {
        const Cube__Master__V1__NodeSandbox *s = r->sandboxes[i];
        printf("%s gen=%llu %s healthy=%d snapshot=%s reason=%s\n", s->spec->sandbox_id,
               (unsigned long long)s->gen,
               protobuf_c_enum_descriptor_get_value(&cube__v1__sandbox_state__descriptor, s->state)->name,
               s->healthy, s->snapshot_id, s->reason);
    }
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static int logs(struct command *c, const char *id)
{
    struct err e = {0};
    Cube__Master__V1__ReadLogRequest req = CUBE__MASTER__V1__READ_LOG_REQUEST__INIT;
    req.sandbox_id = (char *)id;
    ProtobufCMessage *m =
        node_call(&c->client, "ReadLog", &req.base, &cube__master__v1__read_log_reply__descriptor, &e);
    if (!m)
        return fail(&e);
    const Cube__Master__V1__ReadLogReply *r = (Cube__Master__V1__ReadLogReply *)m;
    for (size_t i = 0; i < r->n_entries; i++)
        printf("%lld %s %s\n", (long long)r->entries[i]->ts_ms, r->entries[i]->level, r->entries[i]->message);
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static int metrics(struct command *c, const char *id)
{
    struct err e = {0};
    char *ids[] = {(char *)id};
    Cube__Master__V1__MetricsRequest req = CUBE__MASTER__V1__METRICS_REQUEST__INIT;
    req.n_sandbox_ids = 1;
    req.sandbox_ids = ids;
    ProtobufCMessage *m =
        node_call(&c->client, "Metrics", &req.base, &cube__master__v1__metrics_reply__descriptor, &e);
    if (!m)
        return fail(&e);
    const Cube__Master__V1__MetricsReply *r = (Cube__Master__V1__MetricsReply *)m;
    for (size_t i = 0; i < r->n_points; i++)
        printf("%lld cpus=%u cpu=%.1f mem=%llu/%llu disk=%llu/%llu\n", (long long)r->points[i]->ts_ms,
               r->points[i]->cpu_count, r->points[i]->cpu_used_pct,
               (unsigned long long)r->points[i]->mem_used, (unsigned long long)r->points[i]->mem_total,
               (unsigned long long)r->points[i]->disk_used, (unsigned long long)r->points[i]->disk_total);
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static int network(struct command *c, const char *id)
{
    struct err e = {0};
    Cube__Master__V1__NetworkRequest req = CUBE__MASTER__V1__NETWORK_REQUEST__INIT;
    req.sandbox_id = (char *)id;
    ProtobufCMessage *m =
        node_call(&c->client, "Network", &req.base, &cube__master__v1__network_reply__descriptor, &e);
    if (!m)
        return fail(&e);
    printf("network away=%s\n", ((Cube__Master__V1__NetworkReply *)m)->away);
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static int update(struct command *c, const char *id, uint64_t gen)
{
    struct err e = {0};
    Cube__Node__V1__UpdateRequest req = CUBE__NODE__V1__UPDATE_REQUEST__INIT;
    req.sandbox_id = (char *)id;
    req.gen = gen;
    req.remaining_ms = c->client.remaining_ms;
    ProtobufCMessage *m =
        node_call(&c->client, "Update", &req.base, &cube__node__v1__update_reply__descriptor, &e);
    if (!m)
        return fail(&e);
    printf("updated\n");
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static int delete_snapshot(struct command *c, const char *id)
{
    struct err e = {0};
    Cube__Node__V1__DeleteSnapshotRequest req = CUBE__NODE__V1__DELETE_SNAPSHOT_REQUEST__INIT;
    req.snapshot_id = (char *)id;
    ProtobufCMessage *m =
        node_call(&c->client, "DeleteSnapshot", &req.base, &cube__node__v1__kill_reply__descriptor, &e);
    if (!m)
        return fail(&e);
    printf("deleted existed=%d\n", ((Cube__Node__V1__KillReply *)m)->existed);
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

/* Commands on their way together: each is sent before the one before it was answered. */
struct race {
    struct command *c;
    const char *what, *id;
    uint64_t gen;
    int64_t after_ms;
    struct fiber_event done;
    struct err e;
};

static void run_race(void *arg)
{
    struct race *r = arg;
    struct node_client *client = &r->c->client;
    if (r->after_ms)
        fiber_sleep(r->after_ms);
    if (strcmp(r->what, "snapshot") == 0) {
        int64_t frozen;
        node_snapshot(client, r->id, r->gen, "", &frozen, &r->e);
    } else if (strcmp(r->what, "kill") == 0) {
        bool existed;
        node_kill(client, r->id, r->gen, &existed, &r->e);
    } else {
        struct node_start s = {
            .id = r->id, .gen = r->gen, .snapshot_id = r->c->snapshot_id, .restore = r->c->restore};
        Cube__Node__V1__Receipt receipt = CUBE__NODE__V1__RECEIPT__INIT;
        node_start(client, &s, &receipt, &r->e);
    }
    fiber_event_set(&r->done);
}

/* race ID COMMAND:GEN[:AFTER_MS]… prints a line per command. */
static int race(struct command *c)
{
    struct race r[8] = {0};
    int n = c->argc - 2;
    for (int i = 0; i < n && n <= 8; i++) {
        char *what = c->argv[i + 2], *gen = strchr(what, ':');
        if (!gen)
            return 2;
        *gen++ = 0;
        char *after = strchr(gen, ':');
        r[i] = (struct race){.c = c,
                             .what = what,
                             .id = c->argv[1],
                             .gen = strtoull(gen, NULL, 10),
                             .after_ms = after ? atoll(after + 1) : 0};
        fiber_spawn(run_race, &r[i]);
    }
    for (int i = 0; i < n && n <= 8; i++) {
        fiber_event_wait(&r[i].done, -1);
        printf("%s %s\n", r[i].what, r[i].e.code ? err_code_name(r[i].e.code) : "done");
    }
    return 0;
}

static int run(struct command *c)
{
    struct err e = {0};
    const char *what = c->argv[0], *id = c->argc > 1 ? c->argv[1] : "";
    uint64_t gen = c->argc > 2 ? strtoull(c->argv[2], NULL, 10) : 0;
    if (strcmp(what, "list") == 0)
        return list(c);
    if (strcmp(what, "logs") == 0)
        return logs(c, id);
    if (strcmp(what, "metrics") == 0)
        return metrics(c, id);
    if (strcmp(what, "network") == 0)
        return network(c, id);
    if (strcmp(what, "start") == 0)
        return start(c, id, gen);
    if (strcmp(what, "race") == 0)
        return race(c);
    if (strcmp(what, "update") == 0)
        return update(c, id, gen);
    if (strcmp(what, "rm-snapshot") == 0)
        return delete_snapshot(c, id);
    if (strcmp(what, "kill") == 0) {
        bool existed = false;
        if (node_kill(&c->client, id, gen, &existed, &e) < 0)
            return fail(&e);
        printf("killed existed=%d\n", existed);
        return 0;
    }
    if (strcmp(what, "pause") == 0) {
        int64_t frozen, durable;
        char snapshot[64];
        if (node_pause(&c->client, id, gen, c->fs_only, &frozen, &durable, snapshot, &e) < 0)
            return fail(&e);
        printf("paused snapshot=%s frozen_us=%lld durable_us=%lld\n", snapshot, (long long)frozen,
               (long long)durable);
        return 0;
    }
    if (strcmp(what, "snapshot") == 0) {
        int64_t frozen;
        if (node_snapshot(&c->client, id, gen, c->argc > 3 ? c->argv[3] : "", &frozen, &e) < 0)
            return fail(&e);
        printf("snapshot frozen_us=%lld\n", (long long)frozen);
        return 0;
    }
    if (strcmp(what, "exec") == 0 && c->argc > 3) {
        static char out[1 << 20];
        int code = guest_exec(c->client.run_dir, id, gen, c->argv + 3, c->user, out, sizeof out, &e);
        if (code < 0)
            return fail(&e);
        fputs(out, stdout);
        return code;
    }
    printf("unknown command %s\n", what);
    return 2;
}

static void run_fiber(void *arg)
{
    struct command *c = arg;
    struct err e = {0};
    fiber_sleep(0); /* until the loop runs: a stop before that would be lost */
    c->status =
        node_client_open(&c->client, c->client.loop, c->address, c->key_dir, &e) < 0 ? fail(&e) : run(c);
    loop_stop(c->client.loop);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"address", required_argument, NULL, 'a'},   {"keys", required_argument, NULL, 'k'},
        {"template", required_argument, NULL, 't'},  {"run", required_argument, NULL, 'd'},
        {"remaining", required_argument, NULL, 'r'}, {"snapshot", required_argument, NULL, 's'},
        {"user", required_argument, NULL, 'u'},      {"auto-pause", no_argument, NULL, 'p'},
        {"restore", no_argument, NULL, 'R'},         {"reboot", no_argument, NULL, 'b'},
        {"filesystem-only", no_argument, NULL, 'f'}, {0}};
    static struct command c = {.address = "127.0.0.1:3040", .user = "root"};
    c.client.template_id = "";
    for (int o; (o = getopt_long(argc, argv, "+", options, NULL)) != -1;) {
        switch (o) {
        case 'a':
            c.address = optarg;
            break;
        case 'k':
            c.key_dir = optarg;
            break;
        case 't':
            c.client.template_id = optarg;
            break;
        case 'd':
            c.client.run_dir = optarg;
            break;
        case 'r':
            c.client.remaining_ms = atoll(optarg);
            break;
        case 's':
            c.snapshot_id = optarg;
            break;
        case 'u':
            c.user = optarg;
            break;
        case 'p':
            c.auto_pause = true;
            break;
        case 'R':
            c.restore = true;
            break;
        case 'b':
            c.reboot = true;
            break;
        case 'f':
            c.fs_only = true;
            break;
        default:
            return 2;
        }
    }
    if (optind >= argc)
        return 2;
    c.argc = argc - optind;
    c.argv = argv + optind;
    log_init("nodectl", LOG_ERROR);
    struct err e = {0};
    c.client.loop = loop_new();
    if (fiber_start(c.client.loop, 1, &e) < 0)
        return fail(&e);
    fiber_spawn(run_fiber, &c);
    loop_run(c.client.loop);
    return c.status;
}
