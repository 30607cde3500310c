/* Owns a simulated node's line to a master: register, one report stream with a full report first, deltas
 * after; another master when one is gone. */
#include "tests/control/faultnode/sim.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FULL_EVERY_MS 30000
#define BATCH 2000

struct opened {
    struct fiber_event ready, ended;
    struct rpc_out *out;
};

static void on_opened(struct rpc_out *o, void *data)
{
    struct opened *p = data;
    fiber_event_set(&p->ready);
}

static void on_ended(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct opened *p = data;
    (void)reply;
    (void)e;
    p->out = NULL;
    fiber_event_set(&p->ended);
    fiber_event_set(&p->ready);
}

struct registered {
    struct fiber_event done;
    bool ok;
    int64_t report_ms;
};

static void on_registered(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct registered *r = data;
    if (reply) {
        r->ok = true;
        r->report_ms = ((const Cube__Master__V1__RegisterReply *)reply)->report_ms;
    } else {
        log_line(LOG_DEBUG, &(struct log_about){.err = e}, "registering: %s", e->msg);
    }
    fiber_event_set(&r->done);
}

static void capacity(struct sim_node *n, Cube__Master__V1__Capacity *c)
{
    cube__master__v1__capacity__init(c);
    c->memory_mib = n->memory_mib;
    c->cpu_milli = n->cpu_milli;
    c->max_sandboxes = n->max_sandboxes;
    c->disk_mib = 1 << 20;
    c->sandboxes = (uint32_t)n->count;
    c->warm = 4;
}

static bool node_register(struct sim_node *n)
{
    struct sim *s = n->sim;
    Cube__Master__V1__RegisterRequest q = CUBE__MASTER__V1__REGISTER_REQUEST__INIT;
    Cube__Master__V1__NodeClass class = CUBE__MASTER__V1__NODE_CLASS__INIT;
    Cube__Master__V1__Capacity c;
    Cube__V1__Pair label = CUBE__V1__PAIR__INIT, *labels[] = {&label};
    char text[64] = "";
    capacity(n, &c);
    class.kvm_kind = "pvm";
    class.cpu_features = "sim";
    class.device_layout = 1;
    q.node_id = n->id;
    q.rpc_address = n->address;
    q.relay_address = "127.0.0.1:9";
    q.class_ = &class;
    q.capacity = &c;
    q.templates = s->templates;
    q.n_templates = s->template_count;
    q.version = "sim";
    if (s->labels && strchr(s->labels, '=')) {
        snprintf(text, sizeof text, "%s", s->labels);
        char *eq = strchr(text, '=');
        *eq = 0;
        label.key = text;
        label.value = eq + 1;
        q.labels = labels;
        q.n_labels = 1;
    }
    struct registered r = {0};
    rpc_unary(n->master, "/cube.master.v1.NodeLink/Register", &q.base,
              &cube__master__v1__register_reply__descriptor, 5000, NULL, on_registered, &r);
    fiber_event_wait(&r.done, -1);
    if (r.ok)
        s->report_ms = r.report_ms;
    return r.ok;
}

static void send_batch(struct sim_node *n, struct rpc_out *o, Cube__Master__V1__NodeReport *rep, bool full)
{
    Cube__Master__V1__Capacity c;
    capacity(n, &c);
    rep->capacity = &c;
    rep->full = full;
    rep->pressure = n->pressure;
    rep->unfit = n->unfit;
    if (full) {
        rep->templates = n->sim->templates;
        rep->n_templates = n->sim->template_count;
    }
    rpc_out_send(o, &rep->base);
}

static void send_report(struct sim_node *n, struct rpc_out *o, bool full)
{
    Cube__Master__V1__NodeReport rep = CUBE__MASTER__V1__NODE_REPORT__INIT;
    size_t room = full ? n->count + 1 : BATCH;
    Cube__Master__V1__NodeSandbox *all = calloc(room, sizeof *all);
    rep.sandboxes = calloc(room, sizeof *rep.sandboxes);
    if (!all || !rep.sandboxes)
        abort();
    for (size_t b = 0; b < SIM_BUCKETS; b++)
        for (struct sim_sandbox *s = n->buckets[b]; s && rep.n_sandboxes < room; s = s->next) {
            if (!full && !s->changed)
                continue;
            /* What ended is said until the master lets it be forgotten. */
            s->changed = s->state >= CUBE__V1__SANDBOX_STATE__KILLED;
            sim_message(s, &all[rep.n_sandboxes]);
            rep.sandboxes[rep.n_sandboxes] = &all[rep.n_sandboxes];
            rep.n_sandboxes++;
        }
    send_batch(n, o, &rep, full);
    free(rep.sandboxes);
    free(all);
}

static void connect_next(struct sim_node *n)
{
    if (n->master)
        rpc_client_free(n->master);
    n->master = rpc_client_new(n->sim->loop, n->sim->creds,
                               n->sim->masters[n->master_at++ % n->sim->master_count], NULL);
    if (!n->master)
        abort();
    rpc_client_set_node(n->master, n->id);
}

static void report_fiber(void *arg)
{
    struct sim_node *n = arg;
    for (;;) {
        n->registered = false;
        while (n->silent)
            fiber_sleep(50);
        connect_next(n);
        if (!node_register(n)) {
            fiber_sleep(100);
            continue;
        }
        struct opened *p = calloc(1, sizeof *p);
        if (!p)
            abort();
        p->out = rpc_upload(n->master, "/cube.master.v1.NodeLink/Report",
                            &cube__master__v1__empty__descriptor, on_opened, on_ended, p);
        fiber_event_wait(&p->ready, 5000);
        n->registered = true;
        n->next_full_ms = 0;
        while (p->out && !p->ended.set && !n->silent) {
            bool full = clock_realtime_ms() >= n->next_full_ms || n->full_due;
            if (full)
                n->next_full_ms = clock_realtime_ms() + FULL_EVERY_MS;
            n->full_due = false;
            send_report(n, p->out, full);
            if (fiber_event_wait(&p->ended, n->sim->report_ms))
                break;
        }
        if (p->out)
            rpc_out_cancel(p->out);
        free(p);
    }
}

void sim_report_start(struct sim_node *n)
{
    fiber_spawn(report_fiber, n);
}
