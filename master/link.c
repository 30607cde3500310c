/* Owns the nodes' end of the control plane: registration and the report streams. Invariant: a node speaks for
 * itself alone (its proven ID names it, not the message), reports of one stream are handled in order, and
 * what a node claims is bounded before it reaches Redis. */
#include "lib/base/buf.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/cell.h"
#include "master/reconcile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_MAX 16
#define TEMPLATES_MAX 4096
#define MEMORY_MIB_MAX (64u << 20) /* 64 TiB: more is a lie */
#define CPU_MILLI_MAX 4096000u

struct link {
    struct master *m;
    struct rpc_call *call; /* NULL when the stream is gone */
    char node[NODE_ID_MAX + 1];
    ProtobufCMessage *queue[QUEUE_MAX];
    size_t queued;
    bool working, end;
    struct link *next, **prev;
};

static struct link *links;

static bool node_name_ok(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n <= NODE_ID_MAX &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}

static uint64_t at_most(uint64_t v, uint64_t max)
{
    return v < max ? v : max;
}

static void capacity_args(struct db_args *a, const Cube__Master__V1__Capacity *c)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"cap_mem", at_most(c->memory_mib, MEMORY_MIB_MAX)},
        {"cap_cpu", at_most(c->cpu_milli, CPU_MILLI_MAX)},
        {"cap_count", at_most(c->max_sandboxes, 100000)},
        {"cap_disk", at_most(c->disk_mib, UINT64_C(1) << 32)},
        {"used_mem", at_most(c->memory_used_mib, MEMORY_MIB_MAX)},
        {"used_cpu", at_most(c->cpu_used_milli, CPU_MILLI_MAX)},
        {"sandboxes", at_most(c->sandboxes, 1000000)},
        {"warm", at_most(c->warm, 100000)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        db_arg(a, rows[i].name);
        db_arg_int(a, (int64_t)rows[i].value);
    }
}

static void templates_arg(struct db_args *a, char **names, size_t n)
{
    struct buf text = {0};
    for (size_t i = 0; i < n && i < TEMPLATES_MAX; i++) {
        if (strlen(names[i]) > TEMPLATE_ID_MAX || strchr(names[i], '\n'))
            continue;
        buf_puts(&text, names[i]);
        buf_putc(&text, '\n');
    }
    db_arg(a, buf_cstr(&text));
    buf_free(&text);
}

static int register_check(const Cube__Master__V1__RegisterRequest *q, const char *proven, struct err *e)
{
    if (!node_name_ok(q->node_id))
        return err_set(e, ERR_INVALID, "a node ID is 1 to %d of [A-Za-z0-9._-]", NODE_ID_MAX);
    if (strcmp(proven, q->node_id) != 0)
        return err_set(e, ERR_FORBIDDEN, "node \"%.63s\" cannot register as \"%.63s\"", proven, q->node_id);
    struct sockaddr_storage ss;
    socklen_t len;
    if (strlen(q->rpc_address) > 120 || loop_address_parse(q->rpc_address, &ss, &len, e) < 0)
        return err_set(e, ERR_INVALID, "node %s has no usable rpc address", q->node_id);
    if (strlen(q->relay_address) > 120 ||
        (*q->relay_address && loop_address_parse(q->relay_address, &ss, &len, e) < 0))
        return err_set(e, ERR_INVALID, "node %s has no usable relay address", q->node_id);
    if (!q->capacity || !q->capacity->memory_mib || !q->capacity->cpu_milli)
        return err_set(e, ERR_INVALID, "node %s reports no capacity", q->node_id);
    if (cube__master__v1__register_request__get_packed_size(q) > SPEC_BYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "the registration of node %s is too large", q->node_id);
    return 0;
}

static void serve_register(struct request *r)
{
    Cube__Master__V1__RegisterRequest *q = (Cube__Master__V1__RegisterRequest *)r->in;
    struct err e = {0};
    if (register_check(q, r->call ? rpc_peer_node(r->call) : "", &e) < 0) {
        request_fail(r, &e);
        return;
    }
    size_t n = cube__master__v1__register_request__get_packed_size(q);
    uint8_t *packed = malloc(n + 1);
    if (!packed)
        abort();
    cube__master__v1__register_request__pack(q, packed);
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, r->m);
    db_arg(&a, q->node_id);
    db_arg_int(&a, r->m->now_ms());
    db_arg(&a, r->m->instance);
    db_arg_bytes(&a, packed, n);
    capacity_args(&a, q->capacity);
    db_arg(&a, "relay");
    db_arg(&a, q->relay_address);
    db_arg(&a, "templates");
    templates_arg(&a, q->templates, q->n_templates);
    int rc = db_eval(r->m, &script_node_register, &a, NULL, NULL, &e);
    free(packed);
    if (rc < 0) {
        request_fail(r, &e);
        return;
    }
    struct node *before = fleet_find(r->m->fleet, q->node_id);
    journal_node(r->m, q->node_id, before && strcmp(before->status, "lost") == 0);
    fleet_refresh(r->m->fleet);
    log_info("node %s registered (%s, %" PRIu64 " MiB, %u milli-CPU)", q->node_id, q->rpc_address,
             q->capacity->memory_mib, q->capacity->cpu_milli);
    Cube__Master__V1__RegisterReply reply = CUBE__MASTER__V1__REGISTER_REPLY__INIT;
    reply.report_ms = r->m->cfg.report_ms;
    reply.cell = r->m->cfg.cell;
    request_reply(r, &reply.base);
}

struct verdicts {
    struct {
        char id[SANDBOX_ID_LEN + 1], what[12];
    } * v;
    size_t n;
};

static int verdicts_parse(const redisReply *r, void *out, struct err *e)
{
    struct verdicts *v = out;
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "reading the verdict on a report: unexpected answer");
    v->v = calloc(r->elements / 2 + 1, sizeof *v->v);
    if (!v->v)
        abort();
    for (size_t i = 0; i + 1 < r->elements; i += 2) {
        snprintf(v->v[v->n].id, sizeof v->v->id, "%s", r->element[i]->str);
        snprintf(v->v[v->n].what, sizeof v->v->what, "%s", r->element[i + 1]->str);
        v->n++;
    }
    return 0;
}

static const char *class_of(Cube__V1__SandboxState s)
{
    switch (s) {
    case CUBE__V1__SANDBOX_STATE__RUNNING:
    case CUBE__V1__SANDBOX_STATE__PAUSING:
        return "running";
    case CUBE__V1__SANDBOX_STATE__PAUSED:
        return "paused";
    case CUBE__V1__SANDBOX_STATE__KILLED:
    case CUBE__V1__SANDBOX_STATE__FAILED:
    case CUBE__V1__SANDBOX_STATE__LOST:
        return "ended";
    default:
        return NULL; /* creating, resuming: nothing to say yet */
    }
}

static void sandbox_args(struct db_args *a, const Cube__Master__V1__NodeSandbox *s, int64_t now)
{
    static const char *const reasons[] = {"stream", "exec", "egress", "cpu", "lease"};
    const char *awake = "";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strcmp(s->awake, reasons[i]) == 0)
            awake = reasons[i];
    int64_t last =
        s->last_activity_ms < now ? s->last_activity_ms : now; /* no credit from a clock that runs ahead */
    db_arg(a, s->spec->sandbox_id);
    db_arg(a, class_of(s->state));
    db_arg_int(a, (int64_t)s->gen);
    db_arg_int(a, (int64_t)at_most(s->memory_rss_mib, MEMORY_MIB_MAX));
    db_arg_int(a, last > 0 ? last : 0);
    db_arg(a, awake);
    db_arg_int(a, s->open_streams);
    db_arg_int(a, s->cpu_milli);
    db_arg_int(a, s->last_answer_ms > 0 ? s->last_answer_ms : 0);
    db_arg_int(a, s->healthy);
    db_arg_int(a, (int64_t)at_most(s->guest_oom_kills, 1000000000));
}

static bool sandbox_ok(const Cube__Master__V1__NodeSandbox *s)
{
    return s->spec && id_sandbox_valid(s->spec->sandbox_id, strlen(s->spec->sandbox_id)) && s->gen > 0 &&
           s->gen < (UINT64_C(1) << 53) && class_of(s->state) && strlen(s->envd_version) <= REPLY_WORD_MAX &&
           strlen(s->isolation) <= REPLY_WORD_MAX;
}

struct repair {
    struct master *m;
    char node[NODE_ID_MAX + 1];
    struct verdicts v;
    ProtobufCMessage *report;
};

static const Cube__Master__V1__NodeSandbox *in_report(const Cube__Master__V1__NodeReport *rep, const char *id)
{
    for (size_t i = 0; i < rep->n_sandboxes; i++)
        if (rep->sandboxes[i]->spec && strcmp(rep->sandboxes[i]->spec->sandbox_id, id) == 0)
            return rep->sandboxes[i];
    return NULL;
}

/* Repairs wait for nodes: they run beside the stream, so that the next report is not held up. */
static void repair_fiber(void *arg)
{
    struct repair *p = arg;
    for (size_t i = 0; i < p->v.n; i++)
        reconcile_report(p->m, p->node, p->v.v[i].id, p->v.v[i].what,
                         in_report((Cube__Master__V1__NodeReport *)p->report, p->v.v[i].id));
    if (((Cube__Master__V1__NodeReport *)p->report)->full)
        cell_node_reported(p->m, p->node);
    protobuf_c_message_free_unpacked(p->report, NULL);
    free(p->v.v);
    free(p);
}

static int handle(struct link *l, ProtobufCMessage *msg, struct err *e)
{
    Cube__Master__V1__NodeReport *rep = (Cube__Master__V1__NodeReport *)msg;
    struct master *m = l->m;
    int64_t now = m->now_ms();
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, l->node);
    db_arg_int(&a, now);
    db_arg(&a, m->instance);
    db_arg_int(&a, rep->full);
    int fields = (rep->capacity ? 8 : 0) + (rep->n_templates || rep->full ? 1 : 0) + 2;
    db_arg_int(&a, fields);
    if (rep->capacity)
        capacity_args(&a, rep->capacity);
    if (rep->n_templates || rep->full) {
        db_arg(&a, "templates");
        templates_arg(&a, rep->templates, rep->n_templates);
    }
    db_arg(&a, "pressure");
    db_arg_int(&a, rep->pressure);
    db_arg(&a, "unfit");
    db_arg_int(&a, rep->unfit);
    for (size_t i = 0; i < rep->n_sandboxes; i++)
        if (sandbox_ok(rep->sandboxes[i]))
            sandbox_args(&a, rep->sandboxes[i], now);
    struct repair *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    int rc = db_eval(m, &script_node_report, &a, verdicts_parse, &p->v, e);
    if (rc == 0 && rep->pressure)
        reconcile_pressure_later(m, l->node);
    if (rc < 0 || p->v.n == 0) {
        if (rc == 0 && rep->full)
            cell_node_reported(m, l->node);
        free(p->v.v);
        free(p);
        protobuf_c_message_free_unpacked(msg, NULL);
        return rc;
    }
    p->m = m;
    p->report = msg;
    snprintf(p->node, sizeof p->node, "%s", l->node);
    fiber_spawn(repair_fiber, p);
    return 0;
}

static void link_free(struct link *l)
{
    for (size_t i = 0; i < l->queued; i++)
        protobuf_c_message_free_unpacked(l->queue[i], NULL);
    if (l->next)
        l->next->prev = l->prev;
    *l->prev = l->next;
    free(l);
}

static void link_end(struct link *l, const struct err *e)
{
    struct rpc_call *c = l->call;
    l->call = NULL;
    if (!c)
        return;
    if (e) {
        rpc_fail(c, e);
    } else {
        Cube__Master__V1__Empty done = CUBE__MASTER__V1__EMPTY__INIT;
        rpc_reply(c, &done.base);
    }
}

static void link_fiber(void *arg)
{
    struct link *l = arg;
    while (l->queued && l->call) {
        ProtobufCMessage *msg = l->queue[0];
        memmove(l->queue, l->queue + 1, --l->queued * sizeof *l->queue);
        struct err e = {0};
        if (handle(l, msg, &e) < 0) {
            log_line(LOG_WARN, &(struct log_about){.err = &e}, "a report of node %s was not taken: %s",
                     l->node, e.msg);
            link_end(l, &e); /* the node comes back with a full report */
        }
    }
    if (l->end)
        link_end(l, NULL);
    l->working = false;
    if (!l->call)
        link_free(l);
}

static void on_report(struct rpc_call *c, const ProtobufCMessage *in, void *data)
{
    struct link *l = data;
    ProtobufCMessage *copy = l->queued < QUEUE_MAX ? message_dup(in) : NULL;
    if (!copy) {
        link_end(
            l, &(struct err){.code = ERR_RATE_LIMITED, .msg = "reports come faster than they can be taken"});
        if (!l->working)
            link_free(l);
        return;
    }
    l->queue[l->queued++] = copy;
    if (!l->working) {
        l->working = true;
        fiber_spawn(link_fiber, l);
    }
}

static void on_report_end(struct rpc_call *c, void *data)
{
    struct link *l = data;
    l->end = true;
    if (l->working)
        return;
    link_end(l, NULL);
    link_free(l);
}

static void on_link_closed(struct rpc_call *c, void *data)
{
    struct link *l = data;
    l->call = NULL;
    if (!l->working)
        link_free(l);
}

static void start_report(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    struct master *m = service;
    const char *node = rpc_peer_node(c);
    if (!node_name_ok(node) || !fleet_find(m->fleet, node)) {
        rpc_fail(c, &(struct err){.code = ERR_CONFLICT, .msg = "the node must register first"});
        return;
    }
    struct link *l = calloc(1, sizeof *l);
    if (!l) {
        rpc_fail(c, &(struct err){.code = ERR_UNAVAILABLE, .msg = "out of memory"});
        return;
    }
    l->m = m;
    l->call = c;
    snprintf(l->node, sizeof l->node, "%s", node);
    l->next = links;
    l->prev = &links;
    if (links)
        links->prev = &l->next;
    links = l;
    rpc_on_closed(c, on_link_closed, l);
    rpc_on_message(c, on_report, on_report_end, l);
}

void links_reset(const char *why)
{
    struct err e = {0};
    err_set(&e, ERR_UNAVAILABLE, "%s: register and report again", why);
    for (struct link *l = links, *next; l; l = next) {
        next = l->next;
        link_end(l, &e);
        if (!l->working)
            link_free(l);
    }
}

REQUEST_START(serve_register)

const struct rpc_method link_methods[] = {
    {.path = "/cube.master.v1.NodeLink/Register",
     .in = &cube__master__v1__register_request__descriptor,
     .out = &cube__master__v1__register_reply__descriptor,
     .roles = RPC_ROLE_NODE,
     .start = start_serve_register},
    {.path = "/cube.master.v1.NodeLink/Report",
     .in = &cube__master__v1__node_report__descriptor,
     .out = &cube__master__v1__empty__descriptor,
     .roles = RPC_ROLE_NODE,
     .client_stream = true,
     .start = start_report},
    {0},
};
