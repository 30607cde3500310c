/* A worker's view of the sandboxes it talks to: route copy, pools, and the requests that wait for a look-up
 * or a wake. Invariant: one question per sandbox and worker is out at a time, and the parked go on in the
 * order in which they came. */
#include "proxy/proxy.h"

#include "lib/base/log.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct sandbox **slot_of(struct worker *w, const char *id)
{
    uint32_t h = 2166136261u;
    for (const char *p = id; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    return &w->sandboxes[h % (sizeof w->sandboxes / sizeof w->sandboxes[0])];
}

struct sandbox *sandbox_find(struct worker *w, const char *id)
{
    struct sandbox *s = *slot_of(w, id);
    while (s && strcmp(s->id, id) != 0)
        s = s->next;
    return s;
}

static void on_timer(struct dp_timer *t);

struct sandbox *sandbox_get(struct worker *w, const char *id)
{
    struct sandbox *s = sandbox_find(w, id);
    if (s)
        return s;
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    memcpy(s->id, id, strlen(id) + 1);
    s->share = share_enter(id, strlen(id), UINT32_MAX);
    if (s->share == NULL) {
        free(s);
        return NULL;
    }
    s->worker = w;
    s->parked_end = &s->parked;
    s->timer.fire = on_timer;
    struct sandbox **slot = slot_of(w, id);
    s->next = *slot;
    *slot = s;
    return s;
}

struct sandbox *sandbox_api(struct worker *w)
{
    if (w->api == NULL) {
        w->api = calloc(1, sizeof *w->api);
        if (w->api) {
            w->api->worker = w;
            w->api->is_api = true;
            w->api->parked_end = &w->api->parked;
            w->api->timer.fire = on_timer;
            w->api->route.relay = w->proxy->api;
            w->api->route.relay_len = w->proxy->api_len;
        }
    }
    return w->api;
}

void sandbox_release(struct sandbox *s)
{
    if (s->is_api || s->backs || s->retired || s->exchanges || s->parked || s->waiting != WAIT_NONE)
        return;
    struct sandbox **at = slot_of(s->worker, s->id);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    dp_timer_stop(&s->timer);
    share_leave(s->share);
    free(s);
}

bool sandbox_route(struct sandbox *s)
{
    return route_cache_get(s->worker->routes, s->id, s->route.serial, &s->route) != 0 &&
           s->route.state == ROUTE_RUNNING;
}

/* ---- waiting ---- */

void sandbox_unpark(struct exchange *x)
{
    struct sandbox *s = x->sandbox;
    if (x->link == NULL)
        return;
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    else
        s->parked_end = x->link;
    x->link = NULL;
    s->parked_count--;
}

static void ask(struct sandbox *s, enum wait_kind kind, const char *trace)
{
    s->waiting = kind;
    switch (kind) {
    case WAIT_WAKE:
        control_wake(s->worker, s->id, s->route.gen, trace);
        break;
    case WAIT_RESUME:
        dp_timer_start(s->worker->loop, &s->timer, 100);
        break;
    default:
        control_lookup(s->worker, s->id);
        break;
    }
}

void sandbox_park(struct sandbox *s, struct exchange *x, enum wait_kind kind)
{
    /* A look-up takes a millisecond, and a burst to a sandbox that this proxy has not seen yet is no fault.
     */
    bool lookup = s->waiting == WAIT_NONE ? kind == WAIT_LOOKUP : s->waiting == WAIT_LOOKUP;
    if (s->parked_count >= (lookup ? LOOKUP_PARKED_MAX : PARKED_MAX)) {
        exchange_fail(x, lookup ? ANSWER_UNREACHABLE : ANSWER_TRANSITION, NULL);
        return;
    }
    x->state = X_PARKED;
    x->round = s->round;
    x->next = NULL;
    x->link = s->parked_end;
    *s->parked_end = x;
    s->parked_end = &x->next;
    s->parked_count++;
    if (s->waiting == WAIT_NONE) {
        s->wait_since_ms = dp_now_ms(s->worker->loop);
        ask(s, kind, x->trace);
    }
}

static void on_timer(struct dp_timer *t)
{
    struct sandbox *s = (struct sandbox *)((char *)t - offsetof(struct sandbox, timer));
    if (s->waiting == WAIT_RESUME)
        ask(s, WAIT_LOOKUP, "");
}

/* All that are parked now go on, each as `step` says; those that park again belong to the next round. */
static void parked_go(struct sandbox *s, void (*step)(struct exchange *x, const void *arg), const void *arg)
{
    uint32_t round = s->round++;
    s->exchanges++; /* holds the sandbox */
    while (s->parked && s->parked->round == round) {
        struct exchange *x = s->parked;
        sandbox_unpark(x);
        step(x, arg);
    }
    s->exchanges--;
    sandbox_release(s);
}

struct failure {
    enum answer_kind kind;
    const char *detail;
};

static void step_fail(struct exchange *x, const void *arg)
{
    const struct failure *f = arg;
    exchange_fail(x, f->kind, f->detail);
}

static void step_routed(struct exchange *x, const void *arg)
{
    exchange_routed(x);
}

/* The event of a new generation may have been missed. */
static void route_take(struct sandbox *s, const struct route *r)
{
    if (r->gen > s->route.gen)
        pool_retire_older(s, r->gen);
    s->route = *r;
}

void sandbox_looked_up(struct worker *w, const struct route *r, const struct err *e)
{
    struct sandbox *s = sandbox_find(w, r->sandbox);
    if (s == NULL || s->waiting != WAIT_LOOKUP)
        return;
    s->waiting = WAIT_NONE;
    if (e) {
        parked_go(s, step_fail,
                  &(struct failure){ANSWER_UNREACHABLE, "The route of the sandbox cannot be read right now"});
        return;
    }
    route_take(s, r);
    if (r->state == ROUTE_RESUMING && s->parked &&
        dp_now_ms(w->loop) - s->wait_since_ms < w->proxy->cfg.wake_timeout_ms) {
        ask(s, WAIT_RESUME, "");
        return;
    }
    if (r->state == ROUTE_RESUMING) {
        parked_go(s, step_fail, &(struct failure){ANSWER_TRANSITION, NULL});
        return;
    }
    parked_go(s, step_routed, NULL);
}

static void step_woken(struct exchange *x, const void *arg)
{
    x->woke = true;
    x->wake_ms = *(const int64_t *)arg;
    exchange_routed(x);
}

void sandbox_woken(struct worker *w, const struct route *r, const struct err *e, int64_t took_ms)
{
    struct sandbox *s = sandbox_find(w, r->sandbox);
    if (s == NULL || s->waiting != WAIT_WAKE)
        return;
    s->waiting = WAIT_NONE;
    if (e == NULL) {
        route_take(s, r);
        parked_go(s, step_woken, &took_ms);
        return;
    }
    struct failure f = {ANSWER_RESUME_FAILED, e->msg[0] ? e->msg : NULL};
    if (e->code == ERR_RATE_LIMITED)
        f.kind = ANSWER_TEAM_LIMIT;
    else if (e->code == ERR_NOT_FOUND)
        f = (struct failure){ANSWER_NOT_FOUND, NULL};
    else if (e->code == ERR_CONFLICT || e->code == ERR_DEADLINE)
        f.kind = ANSWER_TRANSITION;
    else if (e->code == ERR_FORBIDDEN)
        f.kind = ANSWER_RESUME_DENIED;
    parked_go(s, step_fail, &f);
}

void sandbox_changed(struct worker *w, const char *id, uint64_t gen, enum route_state state)
{
    struct sandbox *s = sandbox_find(w, id);
    if (s == NULL)
        return;
    s->exchanges++;
    /* Events may come late: connections of a newer generation than the event's are none of its business.
     * While it is pausing the VM may still come back (pause refused): its streams end by themselves if it
     * does not. */
    bool alive = state == ROUTE_RUNNING || state == ROUTE_RESUMING || state == ROUTE_PAUSING;
    pool_retire_older(s, alive ? gen : gen + 1);
    if (s->waiting == WAIT_RESUME) {
        dp_timer_stop(&s->timer);
        ask(s, WAIT_LOOKUP, "");
    }
    s->exchanges--;
    sandbox_release(s);
}
