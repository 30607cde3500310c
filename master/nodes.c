/* Owns the Nodes service: what the operator sees of the fleet and says about it. */
#include "lib/base/log.h"
#include "master/cell.h"
#include "master/reconcile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *status_of(const struct node *n)
{
    if (!fleet_node_ready(n))
        return n->status;
    return n->draining   ? "draining"
           : n->cordoned ? "cordoned"
           : n->unfit    ? "unfit"
           : n->pressure ? "pressure"
                         : "ready";
}

static void node_fill(struct node *n, const struct sched_node *s, Cube__Master__V1__Node *out,
                      Cube__Master__V1__Capacity *reserved, char **names)
{
    cube__master__v1__node__init(out);
    cube__master__v1__capacity__init(reserved);
    reserved->memory_mib = (uint64_t)s->reserved_memory;
    reserved->cpu_milli = (uint32_t)s->reserved_cpu;
    reserved->sandboxes = (uint32_t)s->reserved_count;
    reserved->memory_used_mib = (uint64_t)s->reserved_nominal;
    out->node_id = n->id;
    out->rpc_address = n->rpc;
    out->relay_address = n->relay;
    out->capacity = &n->capacity;
    out->reserved = reserved;
    out->status = (char *)status_of(n);
    out->last_report_ms = n->report_ms;
    if (n->info) {
        out->class_ = n->info->class_;
        out->version = n->info->version;
        out->labels = n->info->labels;
        out->n_labels = n->info->n_labels;
    }
    char *save = NULL;
    for (char *t = strtok_r(names[0], "\n", &save); t; t = strtok_r(NULL, "\n", &save))
        names[++out->n_templates] = t;
    out->templates = names + 1;
}

static int by_id(const void *a, const void *b)
{
    return strcmp((*(Cube__Master__V1__Node *const *)a)->node_id,
                  (*(Cube__Master__V1__Node *const *)b)->node_id);
}

static void serve_nodes(struct request *r)
{
    struct fleet *f = r->m->fleet;
    fleet_refresh(f);
    size_t n = f->n;
    Cube__Master__V1__ListNodesReply reply = CUBE__MASTER__V1__LIST_NODES_REPLY__INIT;
    Cube__Master__V1__Node *nodes = calloc(n + 1, sizeof *nodes), **ptrs = calloc(n + 1, sizeof *ptrs);
    Cube__Master__V1__Capacity *reserved = calloc(n + 1, sizeof *reserved);
    char ***names = calloc(n + 1, sizeof *names);
    if (!nodes || !ptrs || !reserved || !names)
        abort();
    size_t shown = 0;
    for (size_t i = 0; i < n; i++) {
        if (f->nodes[i]->removed)
            continue;
        names[i] = calloc(f->sched[i].template_count + 2, sizeof **names);
        if (!names[i] ||
            !(names[i][0] = strdup(f->nodes[i]->template_names ? f->nodes[i]->template_names : "")))
            abort();
        char *text = names[i][0];
        node_fill(f->nodes[i], &f->sched[i], &nodes[i], &reserved[i], names[i]);
        names[i][0] = text;
        ptrs[shown++] = &nodes[i];
    }
    qsort(ptrs, shown, sizeof *ptrs, by_id);
    reply.nodes = ptrs;
    reply.n_nodes = shown;
    request_reply(r, &reply.base);
    for (size_t i = 0; i < n; i++) {
        if (names[i])
            free(names[i][0]);
        free(names[i]);
    }
    free(names);
    free(reserved);
    free(ptrs);
    free(nodes);
}

static int flag_parse(const redisReply *r, void *out, struct err *e)
{
    if (r->type != REDIS_REPLY_INTEGER || r->integer != 1)
        return err_set(e, ERR_NOT_FOUND, "no such node");
    return 0;
}

static bool node_flag(struct request *r, bool cordoned, bool draining)
{
    Cube__Master__V1__NodeRequest *q = (Cube__Master__V1__NodeRequest *)r->in;
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    db_arg(&a, q->node_id);
    db_arg(&a, cordoned ? "1" : "0");
    db_arg(&a, draining ? "1" : "0");
    if (db_eval(r->m, &script_node_flag, &a, flag_parse, NULL, &e) < 0) {
        request_fail(r, &e);
        return false;
    }
    fleet_refresh(r->m->fleet);
    Cube__Master__V1__Empty reply = CUBE__MASTER__V1__EMPTY__INIT;
    request_reply(r, &reply.base);
    return true;
}

static void serve_cordon(struct request *r)
{
    node_flag(r, true, false);
}

static void serve_uncordon(struct request *r)
{
    node_flag(r, false, false);
}

static void serve_drain(struct request *r)
{
    if (node_flag(r, true, true))
        reconcile_drain_later(r->m, ((Cube__Master__V1__NodeRequest *)r->in)->node_id);
}

/* "missing", "alive" or a number. */
static int removal_parse(const redisReply *r, void *out, struct err *e)
{
    if (r->type != REDIS_REPLY_STRING || strcmp(r->str, "missing") == 0)
        return err_set(e, ERR_NOT_FOUND, "no such node");
    if (strcmp(r->str, "alive") == 0) {
        err_set(e, ERR_CONFLICT, "the node still reports");
        return err_remedy(e, "stop cube-node on it first, or drain it");
    }
    *(uint32_t *)out = (uint32_t)strtoul(r->str, NULL, 10);
    return 0;
}

static int removal_call(struct master *m, const char *node, const char *op, uint32_t *held, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, node);
    db_arg_int(&a, m->now_ms());
    db_arg_int(&a, m->cfg.node_stale_ms);
    db_arg(&a, op);
    return db_eval(m, &script_node_remove, &a, removal_parse, held, e);
}

static void serve_remove(struct request *r)
{
    Cube__Master__V1__RemoveNodeRequest *q = (Cube__Master__V1__RemoveNodeRequest *)r->in;
    Cube__Master__V1__RemoveNodeReply reply = CUBE__MASTER__V1__REMOVE_NODE_REPLY__INIT;
    struct err e = {0};
    uint32_t held = 0;
    int rc = removal_call(r->m, q->node_id, "remove", &held, &e);
    if (rc == 0 && held && q->force) {
        reply.lost = reconcile_node_gone(r->m, q->node_id, "its node was removed from the cluster");
        rc = removal_call(r->m, q->node_id, "remove", &held, &e);
    }
    if (rc == 0 && held) {
        rc = err_set(&e, ERR_CONFLICT, "the node holds %u sandboxes", held);
        err_remedy(&e, q->force ? "try again when those being created or killed have ended"
                                : "kill or move them, wait until the node counts as lost, or use force");
    }
    if (rc < 0) {
        request_fail(r, &e);
        return;
    }
    log_info("node %s was removed; %u sandboxes are lost with it", q->node_id, reply.lost);
    journal_node_lost(r->m, q->node_id);
    fleet_refresh(r->m->fleet);
    request_reply(r, &reply.base);
}

static void serve_status(struct request *r)
{
    static const char *const names[] = {
        [CELL_REDIS_AWAY] = "redis_away", [CELL_RECOVERING] = "recovering", [CELL_READY] = "ready"};
    static const char *const reasons[] = {
        [CELL_REDIS_AWAY] = "Redis does not answer",
        [CELL_RECOVERING] = "Redis lost its data; waiting for the known nodes to report",
        [CELL_READY] = "",
    };
    struct master *m = r->m;
    Cube__Master__V1__StatusReply reply = CUBE__MASTER__V1__STATUS_REPLY__INIT;
    reply.cell = m->cfg.cell;
    reply.state = (char *)names[m->cell];
    reply.reason = (char *)reasons[m->cell];
    reply.masters = m->masters_alive;
    for (size_t i = 0; i < m->fleet->n; i++) {
        reply.nodes += !m->fleet->nodes[i]->removed;
        reply.nodes_ready += fleet_node_ready(m->fleet->nodes[i]);
    }
    request_reply(r, &reply.base);
}

REQUEST_START(serve_nodes)
REQUEST_START(serve_cordon)
REQUEST_START(serve_uncordon)
REQUEST_START(serve_drain)
REQUEST_START(serve_status)
REQUEST_START(serve_remove)

#define METHOD(name, in_type, out_type, fn)                                                                  \
    {                                                                                                        \
        .path = "/cube.master.v1.Nodes/" name, .in = &cube__master__v1__##in_type##__descriptor,             \
        .out = &cube__master__v1__##out_type##__descriptor, .roles = RPC_ROLE_API | RPC_ROLE_ADMIN,          \
        .start = start_##fn                                                                                  \
    }

const struct rpc_method nodes_methods[] = {
    METHOD("List", empty, list_nodes_reply, serve_nodes),
    METHOD("Status", empty, status_reply, serve_status),
    METHOD("Cordon", node_request, empty, serve_cordon),
    METHOD("Uncordon", node_request, empty, serve_uncordon),
    METHOD("Drain", node_request, empty, serve_drain),
    METHOD("Remove", remove_node_request, remove_node_reply, serve_remove),
    {0},
};
