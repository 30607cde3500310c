/* Owns a simulated node's link to the masters. Invariant: a new stream begins with a full report, and then
 * carries what changed. */
#include "bench/simnode/simnode.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "proto/master.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MS 200
#define FULL_MS 30000
#define REGISTER_TIMEOUT_MS 5000

static void on_timer(struct loop_timer *t);

static void again(struct sim_node *n, int64_t delay_ms)
{
    n->timer.fire = on_timer;
    loop_timer_start(n->sim->loop, &n->timer, delay_ms);
}

static void fill_capacity(struct sim_node *n, Cube__Master__V1__Capacity *k)
{
    cube__master__v1__capacity__init(k);
    k->cpu_milli = n->sim->cpu_milli;
    k->memory_mib = n->sim->memory_mib;
    k->disk_mib = 1 << 20;
    k->max_sandboxes = n->sim->max_sandboxes;
    k->memory_used_mib = n->memory_taken_mib;
    k->sandboxes = n->count;
}

static void fill_sandbox(const struct sim_node *n, const struct sim_sandbox *s,
                         Cube__Master__V1__NodeSandbox *out)
{
    cube__master__v1__node_sandbox__init(out);
    out->spec = s->spec;
    out->gen = s->gen;
    out->state = s->state;
    out->end_ms = s->end_ms;
    out->started_ms = s->started_ms;
    out->reason = (char *)s->reason;
    out->snapshot_id = (char *)s->snapshot_id;
    out->filesystem_only = s->filesystem_only;
    out->healthy = true;
    out->envd_version = (char *)n->sim->envd_version;
    out->isolation = (char *)n->sim->kvm_kind;
    out->last_answer_ms = clock_realtime_ms();
}

static void report(struct sim_node *n)
{
    int64_t now = loop_now_ms(n->sim->loop);
    bool full = n->full_due || now - n->last_full_ms >= FULL_MS;
    size_t count = 0, room = 0;
    for (struct sim_sandbox *s = full ? n->sandboxes : n->changed; s; s = full ? s->next : s->changed)
        room++;
    Cube__Master__V1__NodeSandbox *list = calloc(room + 1, sizeof *list),
                                  **refs = calloc(room + 1, sizeof *refs);
    if (!list || !refs)
        abort();
    for (struct sim_sandbox *s = full ? n->sandboxes : n->changed; s; s = full ? s->next : s->changed) {
        fill_sandbox(n, s, &list[count]);
        refs[count] = &list[count];
        count++;
    }
    Cube__Master__V1__NodeReport r = CUBE__MASTER__V1__NODE_REPORT__INIT;
    Cube__Master__V1__Capacity capacity;
    fill_capacity(n, &capacity);
    r.capacity = &capacity;
    r.sandboxes = refs;
    r.n_sandboxes = count;
    r.full = full;
    r.templates = n->sim->templates;
    r.n_templates = n->sim->ntemplates;
    rpc_out_send(n->stream, &r.base);
    free(list);
    free(refs);
    for (struct sim_sandbox *s = n->changed; s; s = s->changed)
        s->is_changed = false;
    n->changed = NULL;
    if (full) {
        n->full_due = false;
        n->last_full_ms = now;
    }
}

static void on_opened(struct rpc_out *o, void *data)
{
    struct sim_node *n = data;
    n->full_due = true;
    if (!n->silent)
        report(n);
    again(n, n->sim->report_ms);
}

static void lost(struct sim_node *n, const struct err *e)
{
    n->stream = NULL;
    n->master++;
    log_info("node %s lost its master: %s", n->id, e ? e->msg : "the stream ended");
    again(n, RETRY_MS);
}

static void on_end(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    lost(data, e);
}

static void on_registered(const ProtobufCMessage *m, const struct err *e, void *data)
{
    struct sim_node *n = data;
    if (!m) {
        lost(n, e);
        return;
    }
    const Cube__Master__V1__RegisterReply *r = (const Cube__Master__V1__RegisterReply *)m;
    if (r->report_ms > 0)
        n->sim->report_ms = r->report_ms;
    n->stream = rpc_upload(n->client, "/cube.master.v1.NodeLink/Report", &cube__master__v1__empty__descriptor,
                           on_opened, on_end, n);
}

static void register_node(struct sim_node *n)
{
    struct sim *s = n->sim;
    if (n->client)
        rpc_client_free(n->client);
    n->client = rpc_client_new(s->loop, s->creds, s->masters[n->master % s->nmasters], NULL);
    rpc_client_set_node(n->client, n->id);
    Cube__Master__V1__RegisterRequest q = CUBE__MASTER__V1__REGISTER_REQUEST__INIT;
    Cube__Master__V1__NodeClass class = CUBE__MASTER__V1__NODE_CLASS__INIT;
    Cube__Master__V1__Capacity capacity;
    fill_capacity(n, &capacity);
    class.kvm_kind = (char *)s->kvm_kind;
    class.cpu_features = "sim";
    class.device_layout = 1;
    q.node_id = n->id;
    q.rpc_address = n->address;
    q.relay_address = (char *)s->relay;
    q.class_ = &class;
    q.capacity = &capacity;
    q.templates = s->templates;
    q.n_templates = s->ntemplates;
    q.version = CUBE_VERSION;
    q.envd_version = (char *)s->envd_version;
    rpc_unary(n->client, "/cube.master.v1.NodeLink/Register", &q.base,
              &cube__master__v1__register_reply__descriptor, REGISTER_TIMEOUT_MS, NULL, on_registered, n);
}

static void on_timer(struct loop_timer *t)
{
    struct sim_node *n = H2O_STRUCT_FROM_MEMBER(struct sim_node, timer, t);
    if (!n->stream) {
        register_node(n);
        return;
    }
    if (!n->silent)
        report(n);
    again(n, n->sim->report_ms);
}

void sim_link(struct sim_node *n)
{
    register_node(n);
}

void sim_report_soon(struct sim_node *n)
{
    if (n->stream && !n->silent)
        again(n, 0);
}
