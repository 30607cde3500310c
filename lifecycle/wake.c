/* Owns the Wake service: a request for a paused sandbox waits here until the sandbox runs. Invariant: one
 * resume per sandbox is asked for by this instance, however many requests wait for it (across instances the
 * committer sees to it); the number in flight is bounded and pauses give way. */
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lifecycle/lifecycle.h"
#include "proto/lifecycle.pb-c.h"
#include "proto/master.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024
#define WAITERS_MAX 4096 /* of one sandbox */
#define RESUME_TIMEOUT_MS 65000

struct metric metric_wakes = {.name = "cube_lifecycle_wake_us",
                              .help = "time from a wake's request to the running sandbox",
                              .kind = METRIC_HISTOGRAM};
struct metric metric_wake_failed = {.name = "cube_lifecycle_wakes_failed_total",
                                    .help = "wakes that ended in an error"};
struct metric metric_wake_shared = {.name = "cube_lifecycle_wakes_shared_total",
                                    .help = "requests that waited for a wake in flight"};

void lifecycle_metrics_register(void)
{
    struct metric *all[] = {&metric_due_late, &metric_due_done,    &metric_due_failed,
                            &metric_wakes,    &metric_wake_failed, &metric_wake_shared};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        metric_register(all[i]);
}

struct waiting {
    struct rpc_call *call; /* NULL once its caller went away */
    struct waiting *next;
};

struct wake {
    struct lifecycle *l;
    char id[SANDBOX_ID_LEN + 1], trace[64];
    uint64_t gen_seen;
    int64_t begun_ms;
    struct waiting *waiting;
    size_t count;
    bool started;
    struct wake *next, *queued;
};

static struct wake *buckets[BUCKETS];
static struct wake *queue_first, **queue_last = &queue_first;

static struct wake **bucket(const char *id)
{
    uint32_t h = 2166136261u;
    for (; *id; id++)
        h = (h ^ (uint8_t)*id) * 16777619u;
    return &buckets[h % BUCKETS];
}

static void wake_start_next(struct lifecycle *l);

static void wake_answer(struct wake *w, const Cube__Lifecycle__V1__WakeReply *reply, const struct err *e)
{
    for (struct wake **at = bucket(w->id); *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    for (struct waiting *x = w->waiting, *next; x; x = next) {
        next = x->next;
        if (x->call && reply)
            rpc_reply(x->call, &reply->base);
        else if (x->call)
            rpc_fail(x->call, e);
        free(x);
    }
    free(w);
}

static void wake_fiber(void *arg)
{
    struct wake *w = arg;
    struct lifecycle *l = w->l;
    Cube__Master__V1__ResumeRequest q = CUBE__MASTER__V1__RESUME_REQUEST__INIT;
    struct err e = {0};
    ProtobufCMessage *msg = NULL;
    q.sandbox_id = w->id;
    q.gen_seen = w->gen_seen;
    q.reason = "traffic";
    q.wake = true;
    q.extend_only = true;
    l->wakes++;
    int rc = master_call(l, "/cube.master.v1.Sandboxes/Resume", &q.base,
                         &cube__master__v1__resume_reply__descriptor, RESUME_TIMEOUT_MS, w->trace, &msg, &e);
    l->wakes--;
    Cube__Master__V1__ResumeReply *got = (Cube__Master__V1__ResumeReply *)msg;
    if (rc == 0 && got->sandbox) {
        Cube__Lifecycle__V1__WakeReply reply = CUBE__LIFECYCLE__V1__WAKE_REPLY__INIT;
        reply.gen = got->sandbox->gen;
        reply.node_id = got->sandbox->node_id;
        reply.relay_address = got->relay_address;
        reply.ticket = got->ticket;
        reply.took_ms = clock_boot_ms() - w->begun_ms;
        metric_observe_us(&metric_wakes, reply.took_ms * 1000);
        log_line(LOG_INFO, &(struct log_about){.sandbox = w->id, .gen = reply.gen, .trace = w->trace},
                 "woken for %zu request%s in %" PRId64 " ms", w->count, w->count == 1 ? "" : "s",
                 reply.took_ms);
        wake_answer(w, &reply, NULL);
    } else {
        metric_add(&metric_wake_failed, 1);
        wake_answer(w, NULL, &e);
    }
    if (msg)
        protobuf_c_message_free_unpacked(msg, NULL);
    wake_start_next(l);
}

static void wake_start_next(struct lifecycle *l)
{
    while (queue_first && l->wakes < (unsigned)l->cfg.wakes_at_once) {
        struct wake *w = queue_first;
        queue_first = w->queued;
        if (!queue_first)
            queue_last = &queue_first;
        w->started = true;
        fiber_spawn(wake_fiber, w);
        if (fiber_inside())
            break; /* it runs after this fiber; it starts the next when it ends */
    }
}

static void on_waiter_gone(struct rpc_call *c, void *data)
{
    (void)c;
    ((struct waiting *)data)->call = NULL;
}

static void start_wake(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    const Cube__Lifecycle__V1__WakeRequest *q = (const Cube__Lifecycle__V1__WakeRequest *)in;
    struct lifecycle *l = service;
    struct err e = {0};
    if (!id_sandbox_valid(q->sandbox_id, strlen(q->sandbox_id))) {
        err_set(&e, ERR_INVALID, "Invalid sandbox ID");
        rpc_fail(c, &e);
        return;
    }
    struct wake *w = *bucket(q->sandbox_id);
    while (w && strcmp(w->id, q->sandbox_id) != 0)
        w = w->next;
    struct waiting *x = calloc(1, sizeof *x);
    if (x && w)
        metric_add(&metric_wake_shared, 1);
    if (x && !w && (w = calloc(1, sizeof *w))) {
        w->l = l;
        w->gen_seen = q->gen_seen;
        w->begun_ms = clock_boot_ms();
        snprintf(w->id, sizeof w->id, "%s", q->sandbox_id);
        snprintf(w->trace, sizeof w->trace, "%s", *q->trace ? q->trace : rpc_trace(c));
        w->next = *bucket(w->id);
        *bucket(w->id) = w;
        *queue_last = w;
        queue_last = &w->queued;
    }
    if (!x || !w || w->count >= WAITERS_MAX) {
        free(x);
        err_set(&e, ERR_RATE_LIMITED, "too many requests wait for sandbox %s to wake", q->sandbox_id);
        rpc_fail(c, &e);
        return;
    }
    x->call = c;
    x->next = w->waiting;
    w->waiting = x;
    w->count++;
    rpc_on_closed(c, on_waiter_gone, x);
    wake_start_next(l);
}

const struct rpc_method wake_methods[] = {
    {.path = "/cube.lifecycle.v1.Wake/Wake",
     .in = &cube__lifecycle__v1__wake_request__descriptor,
     .out = &cube__lifecycle__v1__wake_reply__descriptor,
     .roles = RPC_ROLE_PROXY | RPC_ROLE_ADMIN,
     .start = start_wake},
    {0},
};
