/* Owns the operator's view of nodes and the bulk kill of a team. Invariant: nothing here runs without the
 * operator's token or an admin key. */
#include "api/handlers.h"
#include "api/present.h"
#include "api/server.h"

#include <string.h>

static void cpu_and_memory(struct jsonw *w, const char *key, const Cube__Master__V1__Capacity *k)
{
    jsonw_key(w, key);
    jsonw_obj(w);
    if (k) {
        jsonw_kint(w, "cpuMilli", k->cpu_milli);
        jsonw_kint(w, "memoryMB", (int64_t)k->memory_mib);
        jsonw_kint(w, "diskMB", (int64_t)k->disk_mib);
        jsonw_kint(w, "maxSandboxes", k->max_sandboxes);
        jsonw_kint(w, "sandboxes", k->sandboxes);
        jsonw_kint(w, "warm", k->warm);
        jsonw_kint(w, "memoryUsedMB", (int64_t)k->memory_used_mib);
        jsonw_kint(w, "cpuUsedMilli", k->cpu_used_milli);
    }
    jsonw_obj_end(w);
}

static void cube_node(struct jsonw *w, const Cube__Master__V1__Node *n)
{
    jsonw_obj(w);
    jsonw_kstr(w, "nodeID", n->node_id);
    jsonw_kstr(w, "status", n->status);
    jsonw_kstr(w, "version", n->version);
    jsonw_kstr(w, "rpcAddress", n->rpc_address);
    jsonw_kstr(w, "relayAddress", n->relay_address);
    jsonw_key(w, "class");
    jsonw_obj(w);
    if (n->class_) {
        jsonw_kstr(w, "kvmKind", n->class_->kvm_kind);
        jsonw_kstr(w, "cpuFeatures", n->class_->cpu_features);
        jsonw_kint(w, "deviceLayout", n->class_->device_layout);
    }
    jsonw_obj_end(w);
    cpu_and_memory(w, "capacity", n->capacity);
    cpu_and_memory(w, "reserved", n->reserved);
    jsonw_key(w, "templates");
    jsonw_arr(w);
    for (size_t i = 0; i < n->n_templates; i++)
        jsonw_str(w, n->templates[i]);
    jsonw_arr_end(w);
    jsonw_key(w, "labels");
    jsonw_obj(w);
    for (size_t i = 0; i < n->n_labels; i++)
        jsonw_kstr(w, n->labels[i]->key, n->labels[i]->value);
    jsonw_obj_end(w);
    jsonw_key(w, "lastReportAt");
    jsonw_time_ms(w, n->last_report_ms);
    jsonw_obj_end(w);
}

/* E2B's word for a status of ours. */
static const char *e2b_status(const char *s)
{
    if (strcmp(s, "cordoned") == 0)
        return "standby";
    if (strcmp(s, "ready") == 0 || strcmp(s, "draining") == 0)
        return s;
    return "unhealthy";
}

static void e2b_node(struct jsonw *w, const Cube__Master__V1__Node *n)
{
    const Cube__Master__V1__Capacity none = CUBE__MASTER__V1__CAPACITY__INIT;
    const Cube__Master__V1__Capacity *has = n->capacity ? n->capacity : &none,
                                     *taken = n->reserved ? n->reserved : &none;
    jsonw_obj(w);
    jsonw_kstr(w, "id", n->node_id);
    jsonw_kstr(w, "nodeID", n->node_id);
    jsonw_kstr(w, "clusterID", "");
    jsonw_kstr(w, "serviceInstanceID", n->node_id);
    jsonw_kstr(w, "status", e2b_status(n->status));
    jsonw_kstr(w, "version", n->version);
    jsonw_kstr(w, "commit", "");
    jsonw_kint(w, "sandboxCount", has->sandboxes);
    jsonw_kint(w, "sandboxStartingCount", 0);
    jsonw_kint(w, "createSuccesses", 0);
    jsonw_kint(w, "createFails", 0);
    jsonw_key(w, "machineInfo");
    jsonw_obj(w);
    jsonw_kstr(w, "cpuArchitecture", "x86_64");
    jsonw_kstr(w, "cpuFamily", "");
    jsonw_kstr(w, "cpuModel", "");
    jsonw_kstr(w, "cpuModelName", n->class_ ? n->class_->kvm_kind : "");
    jsonw_obj_end(w);
    jsonw_key(w, "metrics");
    jsonw_obj(w);
    jsonw_kint(w, "allocatedCPU", taken->cpu_milli / 1000);
    jsonw_kint(w, "cpuPercent", has->cpu_milli ? 100 * (int64_t)has->cpu_used_milli / has->cpu_milli : 0);
    jsonw_kint(w, "cpuCount", has->cpu_milli / 1000);
    jsonw_kint(w, "allocatedMemoryBytes", (int64_t)taken->memory_mib << 20);
    jsonw_kint(w, "memoryUsedBytes", (int64_t)has->memory_used_mib << 20);
    jsonw_kint(w, "memoryTotalBytes", (int64_t)has->memory_mib << 20);
    jsonw_key(w, "disks");
    jsonw_arr(w);
    jsonw_arr_end(w);
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

static void on_nodes(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListNodesReply *r = (const Cube__Master__V1__ListNodesReply *)m;
    bool ours = c->match.id == ROUTE_ID_cube_node_list;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_nodes; i++)
        (ours ? cube_node : e2b_node)(&w, r->nodes[i]);
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

static void on_nodes_find(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListNodesReply *r = (const Cube__Master__V1__ListNodesReply *)m;
    for (size_t i = 0; i < r->n_nodes; i++)
        if (strcmp(r->nodes[i]->node_id, c->match.args[0]) == 0) {
            struct jsonw w = call_json(c);
            e2b_node(&w, r->nodes[i]);
            call_send_json(c, 200);
            return;
        }
    call_error(c, ERR_NOT_FOUND, "node '%.64s' not found", c->match.args[0]);
}

static void list_nodes(struct call *c, call_reply_cb *reply)
{
    Cube__Master__V1__Empty in = CUBE__MASTER__V1__EMPTY__INIT;
    call_master(c, MASTER_NODES "List", &in.base, &cube__master__v1__list_nodes_reply__descriptor,
                UPSTREAM_READ, reply, NULL);
}

void handle_node_list(struct call *c)
{
    list_nodes(c, on_nodes);
}

void handle_cube_node_list(struct call *c)
{
    list_nodes(c, on_nodes);
}

void handle_node_get(struct call *c)
{
    list_nodes(c, on_nodes_find);
}

static void change(struct call *c, const char *method)
{
    Cube__Master__V1__NodeRequest in = CUBE__MASTER__V1__NODE_REQUEST__INIT;
    in.node_id = (char *)c->match.args[0];
    call_master(c, method, &in.base, &cube__master__v1__empty__descriptor, 0, reply_empty, NULL);
}

void handle_cube_node_cordon(struct call *c)
{
    change(c, MASTER_NODES "Cordon");
}

void handle_cube_node_uncordon(struct call *c)
{
    change(c, MASTER_NODES "Uncordon");
}

void handle_cube_node_drain(struct call *c)
{
    change(c, MASTER_NODES "Drain");
}

static void on_removed(struct call *c, const ProtobufCMessage *m)
{
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_kint(&w, "lost", ((const Cube__Master__V1__RemoveNodeReply *)m)->lost);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_cube_node_remove(struct call *c)
{
    const char *force = query_get(&c->query, "force");
    Cube__Master__V1__RemoveNodeRequest in = CUBE__MASTER__V1__REMOVE_NODE_REQUEST__INIT;
    if (force && *force && strcmp(force, "true") != 0 && strcmp(force, "false") != 0) {
        call_error(c, ERR_INVALID, "validation error: 'force' must be true or false");
        return;
    }
    in.node_id = (char *)c->match.args[0];
    in.force = force && strcmp(force, "true") == 0;
    call_master(c, MASTER_NODES "Remove", &in.base, &cube__master__v1__remove_node_reply__descriptor, 0,
                on_removed, NULL);
}

void handle_node_status(struct call *c)
{
    static const char *const known[] = {"status", "clusterID", NULL};
    struct err e = {0};
    const char *status = "";
    if (body_str(c->body, "", "status", 64, &status, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    if (strcmp(status, "ready") == 0)
        change(c, MASTER_NODES "Uncordon");
    else if (strcmp(status, "draining") == 0)
        change(c, MASTER_NODES "Drain");
    else if (strcmp(status, "standby") == 0)
        change(c, MASTER_NODES "Cordon");
    else if (strcmp(status, "connecting") == 0 || strcmp(status, "unhealthy") == 0)
        call_error(c, ERR_INVALID, "a node becomes '%s' by itself; settable are ready, draining and standby",
                   status);
    else
        call_error(c, ERR_INVALID, "validation error: 'status' must be ready, draining or standby");
}

/* ---- delete all sandboxes of a team: page by page, one after the other ---- */

struct killing {
    char (*ids)[24];
    size_t n, at;
    int64_t killed, failed;
};

static void list_page(struct call *c);

static void kill_next(struct call *c);

static void on_one_killed(struct call *c, const ProtobufCMessage *m)
{
    struct killing *k = c->state;
    k->killed += ((const Cube__Master__V1__KillReply *)m)->killed;
    kill_next(c);
}

static void on_one_failed(struct call *c, const struct err *e)
{
    struct killing *k = c->state;
    k->failed += e->code != ERR_NOT_FOUND;
    kill_next(c);
}

static void kill_all_end(struct call *c)
{
    const struct killing *k = c->state;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_kint(&w, "killedCount", k->killed);
    jsonw_kint(&w, "failedCount", k->failed);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

static void kill_next(struct call *c)
{
    struct killing *k = c->state;
    if (k->at == k->n) {
        /* What failed is listed again; going on would never end. */
        if (k->failed)
            kill_all_end(c);
        else
            list_page(c);
        return;
    }
    Cube__Master__V1__KillRequest in = CUBE__MASTER__V1__KILL_REQUEST__INIT;
    in.sandbox_id = k->ids[k->at++];
    in.team_id = (char *)c->match.args[0];
    in.reason = "all sandboxes of the team were deleted by the operator";
    call_master(c, MASTER_SANDBOXES "Kill", &in.base, &cube__master__v1__kill_reply__descriptor, 0,
                on_one_killed, on_one_failed);
}

static void on_page(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListReply *r = (const Cube__Master__V1__ListReply *)m;
    struct killing *k = c->state;
    if (r->n_sandboxes == 0) {
        kill_all_end(c);
        return;
    }
    k->n = r->n_sandboxes > 100 ? 100 : r->n_sandboxes;
    k->at = 0;
    for (size_t i = 0; i < k->n; i++) {
        strncpy(k->ids[i], r->sandboxes[i]->spec->sandbox_id, sizeof k->ids[i] - 1);
        k->ids[i][sizeof k->ids[i] - 1] = '\0';
    }
    kill_next(c);
}

static void list_page(struct call *c)
{
    Cube__Master__V1__ListRequest in = CUBE__MASTER__V1__LIST_REQUEST__INIT;
    in.team_id = (char *)c->match.args[0];
    in.running = in.paused = true;
    in.limit = 100;
    call_master(c, MASTER_SANDBOXES "List", &in.base, &cube__master__v1__list_reply__descriptor,
                UPSTREAM_READ, on_page, NULL);
}

void handle_admin_kill_all(struct call *c)
{
    struct killing *k = c->state = call_alloc(c, sizeof *k);
    *k = (struct killing){.ids = call_alloc(c, 100 * sizeof *k->ids)};
    list_page(c);
}
