/* One request and its answer, from the routing decision to the last byte. Invariant: nothing of a request
 * reaches a service before its tokens were checked against the route in force, and a request is sent again
 * only when no byte of it can have been processed. */
#include "proxy/proxy.h"

#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_timer(struct dp_timer *t);

/* Ended exchanges are used again, so that a warm worker allocates nothing per request. Not under
 * AddressSanitizer, which is to see a use after the end. */
#ifdef __SANITIZE_ADDRESS__
enum { UNUSED_MAX = 0 };
#else
enum { UNUSED_MAX = 512 };
#endif

static void on_bury(struct dp_task *t)
{
    struct exchange *x = (struct exchange *)((char *)t - offsetof(struct exchange, bury));
    struct worker *w = x->worker;
    if (w->unused_count >= UNUSED_MAX) {
        free(x);
        return;
    }
    x->next = w->unused;
    w->unused = x;
    w->unused_count++;
}

static struct exchange *exchange_alloc(struct worker *w)
{
    struct exchange *x = w->unused;
    if (x == NULL)
        return calloc(1, sizeof *x);
    w->unused = x->next;
    w->unused_count--;
    memset(x, 0, sizeof *x);
    return x;
}

struct exchange *exchange_new(struct worker *w, const struct front_ops *front, void *front_data, size_t n)
{
    struct exchange *x = exchange_alloc(w);
    if (x == NULL)
        return NULL;
    x->worker = w;
    x->front = front;
    x->front_data = front_data;
    x->timer.fire = on_timer;
    x->bury.run = on_bury;
    x->up.pipe[0] = x->up.pipe[1] = x->down.pipe[0] = x->down.pipe[1] = -1;
    x->start_us = dp_now_us(w->loop);
    x->head = dp_mem_get(n, &x->head_cap);
    x->head_len = (uint32_t)n;
    if (x->head == NULL) {
        free(x);
        return NULL;
    }
    memory_grown(w);
    return x;
}

static void head_release(struct exchange *x)
{
    dp_mem_put(x->head, x->head_cap);
    x->head = NULL;
    if (x->worker->parsed == x)
        x->worker->parsed = NULL;
}

void exchange_discard(struct exchange *x)
{
    head_release(x);
    free(x);
}

/* W3C trace context: the caller's trace ID, or a new one. */
static void trace_set(struct exchange *x, const struct http_head *m)
{
    struct str t = http_get(m, HDR_TRACEPARENT);
    if (t.n >= 55 && t.p[2] == '-' && t.p[35] == '-') {
        memcpy(x->trace, t.p + 3, 32);
        for (int i = 0; i < 32; i++)
            if (!((x->trace[i] >= '0' && x->trace[i] <= '9') || (x->trace[i] >= 'a' && x->trace[i] <= 'f')))
                x->trace[0] = 0;
        if (strspn(x->trace, "0") == 32)
            x->trace[0] = 0;
    }
}

static void line_set(struct exchange *x, const struct http_head *m)
{
    struct str path = m->target;
    const char *query = memchr(path.p, '?', path.n); /* may hold signatures */
    if (query)
        path.n = (uint32_t)(query - path.p);
    snprintf(x->line, sizeof x->line, "%.*s %.*s", (int)m->method.n, m->method.p, (int)path.n, path.p);
    trace_set(x, m);
    if (x->trace[0] == 0) {
        uint8_t id[16];
        random_bytes(id, sizeof id);
        hex_encode(id, sizeof id, x->trace);
    }
}

int exchange_parse(struct exchange *x)
{
    struct http_head *m = &x->worker->request;
    int rc = http_parse_request(x->head, x->head_len, m);
    if (rc != 0)
        return rc;
    x->worker->parsed = x;
    x->http10 = m->minor == 0;
    x->is_head = str_eq(m->method, STR("HEAD"));
    x->idempotent = x->is_head || str_eq(m->method, STR("GET")) || str_eq(m->method, STR("OPTIONS"));
    x->request_body = m->chunked || m->content_length > 0;
    x->form = answer_form(m);
    x->connect_proto = x->form == FORM_CONNECT && http_get(m, HDR_CONTENT_TYPE).n >= 25 &&
                       memcmp(http_get(m, HDR_CONTENT_TYPE).p + 20, "proto", 5) == 0;
    if (access_log_on())
        line_set(x, m);
    return 0;
}

const struct http_head *exchange_request(struct exchange *x)
{
    if (x->worker->parsed != x) {
        http_parse_request(x->head, x->head_len, &x->worker->request); /* it was accepted before */
        x->worker->parsed = x;
    }
    return &x->worker->request;
}

/* ---- ending ---- */

static void exchange_end(struct exchange *x)
{
    struct sandbox *s = x->sandbox;
    x->state = X_DONE;
    dp_timer_stop(&x->timer);
    head_release(x);
    bulk_stop(x);
    x->front = NULL;
    if (s) {
        if (x->counted) {
            s->exchanges--;
            if (s->share)
                atomic_fetch_sub_explicit(&s->share->in_flight, 1, memory_order_relaxed);
        }
        x->sandbox = NULL;
        sandbox_release(s);
    }
    dp_bury(x->worker->loop, &x->bury);
}

void exchange_done(struct exchange *x)
{
    stats_exchange(x);
    access_log(x);
    exchange_end(x);
}

/* Detaches from whatever it waits for. */
static void exchange_detach(struct exchange *x)
{
    switch (x->state) {
    case X_PARKED:
        sandbox_unpark(x);
        break;
    case X_CONNECT:
        pool_forget(x);
        break;
    case X_BACKOFF:
        dp_timer_stop(&x->timer);
        break;
    case X_SENT:
    case X_ANSWERING:
        if (x->back)
            x->back->cancel(x);
        break;
    default:
        break;
    }
    bulk_stop(x);
    x->back = NULL;
    x->conn = NULL;
}

void exchange_cancel(struct exchange *x)
{
    if (x->state == X_DONE)
        return;
    exchange_detach(x);
    if (x->status == 0)
        x->status = 499;
    exchange_done(x);
}

/* ---- the proxy's own answers ---- */

static void header_add(struct http_head *m, const char *name, const char *value, size_t n)
{
    m->h[m->count++] = (struct http_header){{name, (uint32_t)strlen(name)}, {value, (uint32_t)n}, HDR_OTHER};
}

static void extra_headers(struct http_head *m, const struct buf *extra)
{
    const char *p = extra->data, *end = extra->len ? p + extra->len : p;
    while (p < end && m->count < HTTP_HEADERS_MAX) {
        const char *colon = memchr(p, ':', (size_t)(end - p)), *eol = memchr(p, '\r', (size_t)(end - p));
        m->h[m->count++] = (struct http_header){
            {p, (uint32_t)(colon - p)}, {colon + 2, (uint32_t)(eol - colon - 2)}, HDR_OTHER};
        p = eol + 2;
    }
}

void exchange_fail(struct exchange *x, enum answer_kind kind, const char *detail)
{
    if (x->state == X_DONE)
        return;
    bool started = x->state == X_ANSWERING;
    _cleanup_buf_ struct buf reason = {0};
    if (detail) /* may lie in memory that the detaching frees */
        detail = (buf_puts(&reason, detail), buf_cstr(&reason));
    struct str path = x->head && kind == ANSWER_INTERNAL_PATH ? exchange_request(x)->target : STR("");
    exchange_detach(x);
    if (started) {
        x->front->abort(x);
        return;
    }
    struct answer a = {.kind = kind,
                       .form = x->form,
                       .sandbox = x->id,
                       .port = x->port,
                       .detail = detail,
                       .path = path,
                       .limit = x->worker->proxy->cfg.max_per_sandbox};
    for (uint32_t i = 0; i < a.path.n; i++)
        if (a.path.p[i] == '?')
            a.path.n = i;
    _cleanup_buf_ struct buf body = {0}, extra = {0};
    const char *type;
    char length[24];
    answer_write(&a, &body, &type, &extra);
    if (x->connect_proto)
        type = "application/connect+proto";
    struct http_head *m = &x->worker->response;
    *m = (struct http_head){.status = answer_status(&a), .minor = 1, .content_length = (int64_t)body.len};
    memset(m->known, 0xff, sizeof m->known);
    const char *text = http_reason(m->status);
    m->reason = (struct str){text, (uint32_t)strlen(text)};
    header_add(m, "content-type", type, strlen(type));
    header_add(m, "content-length", length, (size_t)snprintf(length, sizeof length, "%zu", body.len));
    header_add(m, "cache-control", "no-store", 8);
    if (kind == ANSWER_TEAM_LIMIT || kind == ANSWER_TOO_MANY_CONNECTIONS || kind == ANSWER_UNREACHABLE ||
        kind == ANSWER_RESUME_FAILED)
        header_add(m, "retry-after", "1", 1);
    extra_headers(m, &extra);
    x->answer_body = body.len ? BODY_LENGTH : BODY_NONE;
    x->answer_length = (int64_t)body.len;
    x->state = X_ANSWERING;
    x->status = m->status;
    x->front->head(x, m);
    if (x->state == X_ANSWERING && body.len && !x->is_head)
        x->front->data(x, body.data, body.len);
    if (x->state == X_ANSWERING)
        x->front->finish(x, NULL);
}

/* ---- tokens ---- */

static bool token_matches(struct str token, const uint8_t digest[32])
{
    uint8_t mine[32];
    sha256(token.p, token.n, mine);
    return secret_equal(mine, digest, sizeof mine);
}

/* false: it was answered. */
static bool authorise(struct exchange *x)
{
    const struct route *r = &x->sandbox->route;
    if (!r->private || x->port == ENVD_PORT)
        return true;
    struct str token = http_get(exchange_request(x), HDR_TRAFFIC_TOKEN);
    if (token.n == 0) {
        exchange_fail(x, ANSWER_TOKEN_MISSING, NULL);
        return false;
    }
    if (!r->has_traffic_token || !token_matches(token, r->traffic_sha256)) {
        exchange_fail(x, ANSWER_TOKEN_INVALID, NULL);
        return false;
    }
    return true;
}

/* Waking costs the team: a secured envd port needs its access token, a private port was checked above. */
static bool may_wake(struct exchange *x)
{
    const struct route *r = &x->sandbox->route;
    if (x->port == ENVD_PORT && r->has_envd_token) {
        struct str token = http_get(exchange_request(x), HDR_ACCESS_TOKEN);
        return token.n && token_matches(token, r->envd_sha256);
    }
    return true;
}

/* ---- routing ---- */

void exchange_start(struct exchange *x)
{
    const struct http_head *m = exchange_request(x);
    struct target t;
    target_resolve(m, x->worker->proxy->cfg.domain, &t);
    x->port = t.port;
    x->by_path = t.by_path;
    memcpy(x->id, t.sandbox, sizeof x->id);
    if (str_eq(m->method, STR("CONNECT"))) {
        exchange_fail(x, ANSWER_METHOD, NULL);
        return;
    }
    if (t.kind == TARGET_BAD) {
        exchange_fail(x, ANSWER_BAD_REQUEST, t.wrong);
        return;
    }
    if (t.kind == TARGET_API) {
        x->grpc = false; /* the API speaks HTTP/1.1 */
        x->sandbox = sandbox_api(x->worker);
        x->routed_us = x->start_us;
        if (x->sandbox == NULL) {
            exchange_fail(x, ANSWER_API_DOWN, NULL);
            return;
        }
        x->sandbox->exchanges++;
        x->counted = true;
        x->state = X_CONNECT;
        pool_connect(x);
        return;
    }
    if (t.internal) {
        exchange_fail(x, ANSWER_INTERNAL_PATH, NULL);
        return;
    }
    if (!id_sandbox_valid(t.sandbox, strlen(t.sandbox)) ||
        (x->sandbox = sandbox_get(x->worker, t.sandbox)) == NULL) {
        exchange_fail(x, ANSWER_NOT_FOUND, NULL);
        return;
    }
    if (sandbox_route(x->sandbox) && x->sandbox->parked == NULL) {
        exchange_routed(x);
        return;
    }
    x->late = x->sandbox->waiting != WAIT_NONE;
    sandbox_park(x->sandbox, x, WAIT_LOOKUP);
}

void exchange_routed(struct exchange *x)
{
    struct sandbox *s = x->sandbox;
    const struct route *r = &s->route;
    if (x->late && r->state != ROUTE_RUNNING) {
        /* The answer may be older than this request: a sandbox that was started in between would be denied.
         */
        x->late = false;
        sandbox_park(s, x, WAIT_LOOKUP);
        return;
    }
    if (r->state == ROUTE_NONE || r->state == ROUTE_RESUMING) {
        exchange_fail(x, r->state == ROUTE_NONE ? ANSWER_NOT_FOUND : ANSWER_TRANSITION, NULL);
        return;
    }
    if (x->post_mortem) {
        enum answer_kind kind = x->port == ENVD_PORT ? ANSWER_UNREACHABLE : ANSWER_BAD_GATEWAY;
        exchange_fail(x, r->state == ROUTE_RUNNING ? kind : ANSWER_NOT_FOUND, NULL);
        return;
    }
    if (r->state != ROUTE_RUNNING && !r->auto_resume) {
        exchange_fail(x, ANSWER_NOT_FOUND, NULL);
        return;
    }
    if (!authorise(x))
        return;
    if (r->state != ROUTE_RUNNING) {
        if (!may_wake(x))
            exchange_fail(x, ANSWER_RESUME_DENIED, NULL);
        else if (x->woke) /* it went to sleep again: do not chase it for ever */
            exchange_fail(x, ANSWER_TRANSITION, NULL);
        else
            sandbox_park(s, x, WAIT_WAKE);
        return;
    }
    if (!x->counted) {
        if (atomic_fetch_add_explicit(&s->share->in_flight, 1, memory_order_relaxed) >=
            x->worker->proxy->cfg.max_per_sandbox) {
            atomic_fetch_sub_explicit(&s->share->in_flight, 1, memory_order_relaxed);
            exchange_fail(x, ANSWER_TOO_MANY_CONNECTIONS, NULL);
            return;
        }
        s->exchanges++;
        x->counted = true;
    }
    if (x->routed_us == 0)
        x->routed_us = x->state == X_ROUTE ? x->start_us : dp_now_us(x->worker->loop);
    x->state = X_CONNECT;
    pool_connect(x);
}

/* ---- connecting ---- */

void exchange_connected(struct exchange *x, struct back *b)
{
    bool waited = x->state == X_CONNECT && x->connected_us == 0 && !b->reused;
    x->connected_us = waited ? dp_now_us(x->worker->loop) : x->routed_us;
    x->conn = b;
    x->state = X_SENT;
    if (x->grpc)
        back2_send(x, b);
    else
        back1_send(x, b);
}

static void look_again(struct exchange *x)
{
    x->routed_us = 0;
    sandbox_park(x->sandbox, x, WAIT_LOOKUP);
}

/* By the route in force, which may be another one than before. */
static void try_again(struct exchange *x)
{
    if (x->sandbox->is_api) {
        x->state = X_CONNECT;
        pool_connect(x);
    } else if (sandbox_route(x->sandbox)) {
        exchange_routed(x);
    } else {
        look_again(x);
    }
}

static void on_timer(struct dp_timer *t)
{
    struct exchange *x = (struct exchange *)((char *)t - offsetof(struct exchange, timer));
    if (x->state == X_BACKOFF)
        try_again(x);
}

void exchange_not_connected(struct exchange *x, enum connect_result why)
{
    static const enum answer_kind last_word[] = {
        [CONNECT_UNREACHABLE] = ANSWER_UNREACHABLE,   [CONNECT_STALE] = ANSWER_TRANSITION,
        [CONNECT_UNKNOWN] = ANSWER_NOT_FOUND,         [CONNECT_PORT_CLOSED] = ANSWER_PORT_CLOSED,
        [CONNECT_NOT_READY] = ANSWER_UNREACHABLE,     [CONNECT_DENIED] = ANSWER_UNREACHABLE,
        [CONNECT_LIMIT] = ANSWER_TOO_MANY_CONNECTIONS};
    x->conn = NULL;
    if (x->sandbox->is_api) {
        exchange_fail(x, ANSWER_API_DOWN, NULL);
        return;
    }
    if (why == CONNECT_LIMIT) {
        exchange_fail(x, last_word[why], NULL);
        return;
    }
    if (why == CONNECT_STALE && x->reroutes < 8) {
        x->reroutes++;
        x->tries = 0;
        look_again(x);
        return;
    }
    if (++x->tries >= CONNECT_TRIES) {
        exchange_fail(x, last_word[why], NULL);
        return;
    }
    /* After "unknown" or a dead node the route decides anew; a closed port may belong to a service that is
     * just starting. */
    if (x->tries == 1 && (why == CONNECT_UNKNOWN || why == CONNECT_DENIED || why == CONNECT_UNREACHABLE)) {
        look_again(x);
        return;
    }
    x->state = X_BACKOFF;
    dp_timer_start(x->worker->loop, &x->timer, 100 * x->tries);
}

void exchange_broken(struct exchange *x, bool reused)
{
    bulk_stop(x);
    x->back = NULL;
    x->conn = NULL;
    if (reused && x->idempotent && !x->request_body && x->head && x->tries < CONNECT_TRIES) {
        /* A kept connection was closed as we used it (RFC 9112 §9.3.1). */
        x->tries++;
        try_again(x);
        return;
    }
    if (x->sandbox->is_api) {
        exchange_fail(x, ANSWER_API_DOWN, NULL);
        return;
    }
    x->post_mortem = true;
    look_again(x);
}

void exchange_answered(struct exchange *x, int status)
{
    x->status = status;
    x->first_us = dp_now_us(x->worker->loop);
    x->state = X_ANSWERING;
    head_release(x);
}

int64_t exchange_body_step(const struct worker *w)
{
    enum { OFTEN = 8, LONGEST_MS = 10000 };
    int64_t all = w->proxy->cfg.body_timeout_ms, step = all / OFTEN + 1;
    return all && step < LONGEST_MS ? step : LONGEST_MS;
}

bool exchange_body_due(const struct exchange *x)
{
    return x->state == X_SENT && x->request_body && !x->request_done && !x->may_upgrade &&
           x->form != FORM_CONNECT && x->form != FORM_GRPC && x->worker->proxy->cfg.body_timeout_ms;
}

void exchange_body_waited(struct exchange *x)
{
    const struct proxy_config *cfg = &x->worker->proxy->cfg;
    x->waited_ms += exchange_body_step(x->worker);
    if (x->waited_ms <= cfg->body_timeout_ms ||
        (uint64_t)(x->waited_ms - cfg->body_timeout_ms) <= x->bytes_in * 1000 / (uint64_t)cfg->body_min_rate)
        return;
    stats_add("slow_bodies");
    exchange_fail(x, ANSWER_REQUEST_TIMEOUT, NULL);
}

/* Interim answers are not body bytes: no window and no full buffer of the client's holds them back, so what
 * waits of them is bounded by their number. */
bool exchange_interim(struct exchange *x, size_t n)
{
    enum { INTERIM_MAX = 65536, INTERIM_COST = 128 };
    x->interim += (uint32_t)n + INTERIM_COST;
    return x->interim <= INTERIM_MAX;
}
