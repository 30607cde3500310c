/* Owns the in-memory picture of the fleet. Invariant: it is a copy of what Redis holds, at most one poll old,
 * plus this master's own placements in flight; decisions made on it are checked again by the reservation. */
#include "master/fleet.h"

#include "lib/base/log.h"
#include "lib/net/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MS 500

static void (*on_lost)(struct master *m, const char *node);

struct fleet *fleet_new(struct master *m)
{
    struct fleet *f = calloc(1, sizeof *f);
    if (f)
        f->m = m;
    return f;
}

struct node *fleet_find(struct fleet *f, const char *id)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->nodes[i]->id, id) == 0)
            return f->nodes[i];
    return NULL;
}

bool fleet_node_ready(const struct node *n)
{
    return strcmp(n->status, "ready") == 0;
}

struct sched_policy fleet_policy(const struct master *m)
{
    return (struct sched_policy){.ratio_memory = m->cfg.overcommit_memory * 10,
                                 .ratio_cpu = m->cfg.overcommit_cpu * 10,
                                 .weights = m->cfg.weights};
}

static size_t node_add(struct fleet *f, const char *id)
{
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 16;
        f->nodes = realloc(f->nodes, f->cap * sizeof *f->nodes);
        f->sched = realloc(f->sched, f->cap * sizeof *f->sched);
        if (!f->nodes || !f->sched)
            abort();
    }
    struct node *n = calloc(1, sizeof *n);
    if (!n)
        abort();
    snprintf(n->id, sizeof n->id, "%s", id);
    cube__master__v1__capacity__init(&n->capacity);
    f->nodes[f->n] = n;
    f->sched[f->n] = (struct sched_node){0};
    return f->n++;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void templates_set(struct node *n, struct sched_node *s, const char *names)
{
    if (n->template_names && strcmp(n->template_names, names) == 0)
        return;
    free(n->template_names);
    free(n->templates);
    n->template_names = strdup(names);
    size_t count = 0;
    for (const char *p = names; *p; p++)
        count += *p == '\n';
    n->templates = calloc(count + 2, sizeof *n->templates);
    char *copy = strdup(names), *save = NULL;
    if (!n->template_names || !n->templates || !copy)
        abort();
    s->template_count = 0;
    for (char *t = strtok_r(copy, "\n", &save); t; t = strtok_r(NULL, "\n", &save))
        n->templates[s->template_count++] = sched_hash(t);
    free(copy);
    qsort(n->templates, s->template_count, sizeof *n->templates, by_value);
    s->templates = n->templates;
}

static void info_set(struct node *n, struct sched_node *s, const redisReply *v)
{
    Cube__Master__V1__RegisterRequest *info =
        cube__master__v1__register_request__unpack(NULL, v->len, (const uint8_t *)v->str);
    if (!info)
        return;
    if (n->info)
        cube__master__v1__register_request__free_unpacked(n->info, NULL);
    n->info = info;
    s->label_count = 0;
    for (size_t i = 0; i < info->n_labels && s->label_count < SCHED_LABELS; i++) {
        char pair[256];
        snprintf(pair, sizeof pair, "%s=%s", info->labels[i]->key, info->labels[i]->value);
        s->labels[s->label_count++] = sched_hash(pair);
    }
    if (info->class_) {
        char text[256];
        snprintf(text, sizeof text, "%s/%s/%u", info->class_->kvm_kind, info->class_->cpu_features,
                 info->class_->device_layout);
        s->class_hash = sched_hash(text);
    }
    if (strcmp(n->rpc, info->rpc_address) != 0) {
        if (n->client)
            rpc_client_free(n->client);
        n->client = NULL;
        snprintf(n->rpc, sizeof n->rpc, "%s", info->rpc_address);
    }
}

static void node_read(struct node *n, struct sched_node *s, const redisReply *hash)
{
    memset(s->teams, 0, sizeof s->teams);
    n->removed = false;
    Cube__Master__V1__Capacity *c = &n->capacity;
    const struct {
        const char *name;
        int64_t *i64;
        uint64_t *u64;
        uint32_t *u32;
        bool *flag;
    } rows[] = {
        {"cap_mem", &s->cap_memory, &c->memory_mib, NULL, NULL},
        {"cap_cpu", &s->cap_cpu, NULL, &c->cpu_milli, NULL},
        {"cap_count", &s->cap_count, NULL, &c->max_sandboxes, NULL},
        {"cap_disk", NULL, &c->disk_mib, NULL, NULL},
        {"used_mem", NULL, &c->memory_used_mib, NULL, NULL},
        {"used_cpu", NULL, NULL, &c->cpu_used_milli, NULL},
        {"sandboxes", NULL, NULL, &c->sandboxes, NULL},
        {"warm", NULL, NULL, &c->warm, NULL},
        {"r_mem", &s->reserved_memory, NULL, NULL, NULL},
        {"r_nominal", &s->reserved_nominal, NULL, NULL, NULL},
        {"r_cpu", &s->reserved_cpu, NULL, NULL, NULL},
        {"r_count", &s->reserved_count, NULL, NULL, NULL},
        {"report_ms", &n->report_ms, NULL, NULL, NULL},
        {"full_ms", &n->full_ms, NULL, NULL, NULL},
        {"cordoned", NULL, NULL, NULL, &n->cordoned},
        {"draining", NULL, NULL, NULL, &n->draining},
        {"pressure", NULL, NULL, NULL, &n->pressure},
        {"unfit", NULL, NULL, NULL, &n->unfit},
    };
    for (size_t i = 0; i + 1 < hash->elements; i += 2) {
        const redisReply *k = hash->element[i], *v = hash->element[i + 1];
        if (k->type != REDIS_REPLY_STRING || v->type != REDIS_REPLY_STRING)
            continue;
        int64_t number = strtoll(v->str, NULL, 10);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            if (strcmp(k->str, rows[r].name) != 0)
                continue;
            if (rows[r].i64)
                *rows[r].i64 = number;
            if (rows[r].u64)
                *rows[r].u64 = (uint64_t)number;
            if (rows[r].u32)
                *rows[r].u32 = (uint32_t)number;
            if (rows[r].flag)
                *rows[r].flag = number == 1;
        }
        if (strcmp(k->str, "status") == 0)
            snprintf(n->status, sizeof n->status, "%s", v->str);
        else if (strcmp(k->str, "relay") == 0)
            snprintf(n->relay, sizeof n->relay, "%s", v->str);
        else if (strcmp(k->str, "templates") == 0)
            templates_set(n, s, v->str);
        else if (strcmp(k->str, "info") == 0)
            info_set(n, s, v);
        else if (strncmp(k->str, "t:", 2) == 0)
            sched_node_team_set(s, sched_hash(k->str + 2), (uint32_t)number);
    }
    s->healthy = fleet_node_ready(n);
    s->cordoned = n->cordoned;
    s->draining = n->draining;
    s->pressure = n->pressure;
    s->unfit = n->unfit;
    s->warm = c->warm;
}

struct poll_result {
    struct fleet *f;
    char lost[512];
};

static void node_remove(struct node *n, struct sched_node *s)
{
    n->removed = true;
    n->rpc[0] = 0;
    n->full_ms = n->report_ms = 0;
    snprintf(n->status, sizeof n->status, "removed");
    s->healthy = false;
    if (n->client)
        rpc_client_free(n->client);
    n->client = NULL;
}

static bool listed(const char *names, const char *id)
{
    size_t n = strlen(id);
    for (const char *p = names; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strncmp(p, id, n) == 0 && (p[n] == ' ' || !p[n]))
            return true;
    return false;
}

static int nodes_parse(const redisReply *r, void *out, struct err *e)
{
    struct poll_result *p = out;
    struct fleet *f = p->f;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3)
        return err_set(e, ERR_INTERNAL, "reading the nodes: unexpected answer");
    f->version = strtoll(r->element[0]->str, NULL, 10);
    snprintf(p->lost, sizeof p->lost, "%s", r->element[2]->str);
    for (size_t i = 0; i < f->n; i++)
        if (!f->nodes[i]->removed && !listed(r->element[1]->str, f->nodes[i]->id))
            node_remove(f->nodes[i], &f->sched[i]);
    for (size_t i = 3; i + 1 < r->elements; i += 2) {
        const char *id = r->element[i]->str;
        struct node *known = fleet_find(f, id);
        size_t at = 0;
        while (known && f->nodes[at] != known)
            at++;
        if (!known)
            at = node_add(f, id);
        node_read(f->nodes[at], &f->sched[at], r->element[i + 1]);
    }
    return 0;
}

void fleet_refresh(struct fleet *f)
{
    struct poll_result p = {.f = f};
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, f->m);
    db_arg_int(&a, f->version);
    db_arg_int(&a, f->m->now_ms());
    db_arg_int(&a, f->m->cfg.node_stale_ms);
    db_arg_int(&a, f->m->cfg.node_lost_ms);
    if (db_eval(f->m, &script_nodes, &a, nodes_parse, &p, &e) < 0)
        return;
    char *save = NULL;
    for (char *id = strtok_r(p.lost, " ", &save); id; id = strtok_r(NULL, " ", &save)) {
        log_warn("node %s stopped reporting: its sandboxes are lost until it returns", id);
        if (on_lost)
            on_lost(f->m, id);
    }
}

static void poll_fiber(void *data)
{
    struct fleet *f = data;
    if (f->m->cell != CELL_REDIS_AWAY)
        fleet_refresh(f);
    loop_timer_start(f->m->loop, &f->poll, POLL_MS);
}

static void on_poll(struct loop_timer *t)
{
    fiber_spawn(poll_fiber, (char *)t - offsetof(struct fleet, poll));
}

void fleet_start(struct fleet *f, void (*lost)(struct master *m, const char *node))
{
    on_lost = lost;
    f->poll.fire = on_poll;
    loop_timer_start(f->m->loop, &f->poll, 0);
}

void fleet_reset(struct fleet *f)
{
    f->version = 0;
    for (size_t i = 0; i < f->n; i++) {
        f->sched[i].healthy = false;
        snprintf(f->nodes[i]->status, sizeof f->nodes[i]->status, "unhealthy");
    }
}

int node_call(struct master *m, const char *node, const char *path, const ProtobufCMessage *in,
              const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
              ProtobufCMessage **reply, struct err *e)
{
    struct node *n = fleet_find(m->fleet, node);
    if (!n || !n->rpc[0])
        return err_set(e, ERR_UNAVAILABLE, "the sandbox's node %s is not known here", node);
    if (!n->client)
        n->client = rpc_client_new(m->loop, m->creds, n->rpc, n->id);
    if (!n->client)
        return err_set(e, ERR_UNAVAILABLE, "opening a connection to node %s: out of memory", node);
    if (call_wait(n->client, path, in, out, timeout_ms, trace, reply, e) < 0)
        return err_wrap(e, "node %s", node);
    return 0;
}
