/* Owns the requests of the master's services: each runs in a fiber on its own copy of the message. Invariant:
 * a caller that went away costs the answer only; what was begun for it is finished or undone all the same. */
#include "lib/net/fiber.h"
#include "lib/base/log.h"
#include "master/master.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_MAX 8192

static void on_request_closed(struct rpc_call *c, void *data)
{
    struct request *r = data;
    r->call = NULL;
}

static void request_fiber(void *arg)
{
    struct request *r = arg;
    r->run(r);
    if (!r->answered)
        request_fail(r, &(struct err){.code = ERR_INTERNAL, .msg = "the request ended without an answer"});
    protobuf_c_message_free_unpacked(r->in, NULL);
    free(r);
}

void request_spawn(struct master *m, struct rpc_call *c, const ProtobufCMessage *in,
                   void (*run)(struct request *r))
{
    /* Each request holds a fiber while it waits: beyond this the caller should try another master. */
    struct request *r = fiber_count() < REQUESTS_MAX ? calloc(1, sizeof *r) : NULL;
    if (!r || !(r->in = message_dup(in))) {
        free(r);
        rpc_fail(
            c, &(struct err){.code = ERR_UNAVAILABLE, .msg = "this master has too many requests in flight"});
        return;
    }
    r->m = m;
    r->call = c;
    r->run = run;
    snprintf(r->trace, sizeof r->trace, "%s", rpc_trace(c));
    rpc_on_closed(c, on_request_closed, r);
    fiber_spawn(request_fiber, r);
}

void request_reply(struct request *r, const ProtobufCMessage *out)
{
    r->answered = true;
    if (r->call)
        rpc_reply(r->call, out);
    r->call = NULL;
}

void request_fail(struct request *r, const struct err *e)
{
    struct err later = {0};
    if (r->m->cell != CELL_READY && (e->code == ERR_NOT_FOUND || e->code == ERR_UNAUTHENTICATED)) {
        /* What is missing now may be there again in a moment: nobody is told that it does not exist. */
        err_set(&later, ERR_UNAVAILABLE, "the control plane is recovering its records after a loss of data");
        err_remedy(&later, "try again in a few seconds");
        e = &later;
    }
    r->answered = true;
    if (e->code == ERR_INTERNAL)
        log_line(LOG_ERROR, &(struct log_about){.err = e, .trace = r->trace}, "a request failed");
    if (r->call)
        rpc_fail(r->call, e);
    r->call = NULL;
}

static struct inflight **inflight_bucket(struct master *m, const char *id)
{
    return &m->inflight[sched_hash(id) & 255];
}

bool inflight_has(struct master *m, const char *id)
{
    for (struct inflight *f = *inflight_bucket(m, id); f; f = f->next)
        if (strcmp(f->id, id) == 0)
            return true;
    return false;
}

void inflight_begin(struct inflight *f, struct master *m, const char *id)
{
    f->m = m;
    f->id = id;
    struct inflight **b = inflight_bucket(m, id);
    f->next = *b;
    *b = f;
}

void inflight_end(struct inflight *f)
{
    if (!f->m)
        return;
    for (struct inflight **at = inflight_bucket(f->m, f->id); *at; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            break;
        }
    f->m = NULL;
}

/* A fiber that waits for news of one sandbox. */
struct waiter {
    const char *id;
    struct fiber_event happened;
    struct waiter *next;
};

void route_event_wait(struct master *m, const char *id, int64_t timeout_ms)
{
    struct waiter w = {.id = id};
    struct waiter **b = &m->waiters[sched_hash(id) & 255];
    w.next = *b;
    *b = &w;
    fiber_event_wait(&w.happened, timeout_ms);
    for (struct waiter **at = b; *at; at = &(*at)->next)
        if (*at == &w) {
            *at = w.next;
            break;
        }
}

void route_event_seen(struct master *m, const char *id)
{
    for (struct waiter *w = m->waiters[sched_hash(id) & 255]; w; w = w->next)
        if (strcmp(w->id, id) == 0)
            fiber_event_set(&w->happened);
}
