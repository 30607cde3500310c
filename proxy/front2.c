/* The HTTP/2 side towards a client (nghttp2): each stream is an exchange of its own. A request head is turned
 * into HTTP/1.1 text and goes through the same strict parser and router. Invariant: a stream's window is
 * opened only for bytes that the service has taken. */
#include "proxy/front2.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 8, LINGER_MS = 1000, LEAVE_MS = 500 };

static void on_read(struct dp_io *io);

/* ---- connection ---- */

static void on_bury(struct dp_task *t)
{
    struct front2 *c = (struct front2 *)((char *)t - offsetof(struct front2, bury));
    if (c->send.queued) {
        dp_bury(c->worker->loop, t);
        return;
    }
    nghttp2_session_del(
        c->session); /* here, because callbacks of the session may be running when the connection is closed */
    free(c);
}

void front2_stream_free(struct stream2 *s)
{
    struct exchange *x = s->x;
    s->x = NULL;
    if (x)
        exchange_cancel(x);
    buf_free(&s->fields);
    buf_free(&s->cookie);
    buf_free(&s->method);
    buf_free(&s->path);
    buf_free(&s->authority);
    buf_free(&s->host);
    front2_count(s->c, s->in.cap + s->out.bytes.cap, 0);
    buf_free(&s->in);
    h2_out_free(&s->out);
    free(s);
}

void front2_count(struct front2 *c, size_t before, size_t after)
{
    c->held += after - before;
    dp_mem_count(before, after);
    if (after > before)
        memory_grown(c->worker);
}

static void front_close(struct front2 *c, bool reset)
{
    if (c->closed)
        return;
    c->closed = true;
    for (struct stream2 *s = c->all, *next; s; s = next) {
        next = s->next;
        nghttp2_session_set_stream_user_data(c->session, s->id, NULL);
        front2_stream_free(s);
    }
    c->all = NULL;
    dp_timer_stop(&c->timer);
    front_link_remove(c->worker, &c->link);
    share_leave(c->client);
    dp_io_close(&c->io, reset);
    dp_bury(c->worker->loop, &c->bury);
}

void front2_send_soon(struct front2 *c)
{
    if (!c->closed)
        dp_defer(c->worker->loop, &c->send);
}

static void on_send(struct dp_task *t)
{
    struct front2 *c = (struct front2 *)((char *)t - offsetof(struct front2, send));
    if (c->closed)
        return;
    if (!h2_flush(c->session, &c->io)) {
        front_close(c, true);
        return;
    }
    if (c->read_again) {
        c->read_again = false;
        on_read(&c->io);
        if (c->closed)
            return;
    }
    bool over = !nghttp2_session_want_read(c->session) && !nghttp2_session_want_write(c->session);
    if (over && !c->client_left && !c->leaving && !c->draining)
        front2_broken(c, 400); /* nghttp2 has ended it */
    if (!(over || (c->draining && c->streams == 0)) || dp_io_blocked(&c->io))
        return;
    if (!c->client_left || c->draining)
        front_close(c, false);
    else if (c->timer.link == NULL || c->timer.at_ms > dp_now_ms(c->worker->loop) + LINGER_MS)
        /* What it sent behind its GOAWAY may be on its way, and closing before that would be a reset. */
        dp_timer_start(c->worker->loop, &c->timer, LINGER_MS);
}

static void on_drain(struct dp_io *io)
{
    front2_send_soon((struct front2 *)io);
}

/* ---- reading ---- */

static bool bytes_take(struct front2 *c, const char *p, size_t n)
{
    ssize_t used = nghttp2_session_mem_recv(c->session, (const uint8_t *)p, n);
    if (c->closed)
        return false;
    if (used < 0) {
        stats_add("h2_flood");
        front2_broken(c, 400);
        h2_flush(c->session, &c->io); /* the GOAWAY, if there is one */
        front_close(c, false);
        return false;
    }
    front2_send_soon(c);
    return true;
}

static void on_read(struct dp_io *io)
{
    struct front2 *c = (struct front2 *)io;
    for (int i = 0; i < ROUNDS && !c->closed; i++) {
        ssize_t n = dp_io_read(io, c->worker->scratch2, sizeof c->worker->scratch2);
        if (n == DP_IO_AGAIN)
            return;
        if (n <= 0) {
            front_close(c, n == DP_IO_FAILED);
            return;
        }
        if (!bytes_take(c, c->worker->scratch2, (size_t)n))
            return;
    }
    if (!c->closed && io->readable) {
        c->read_again = true;
        front2_send_soon(c);
    }
}

/* The second half of a drain: what the client sends from now on it sends elsewhere. */
static void front_leave(struct front2 *c)
{
    c->leaving = false;
    c->draining = true;
    nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->session),
                          NGHTTP2_NO_ERROR, NULL, 0);
    dp_timer_start(c->worker->loop, &c->timer, c->worker->proxy->cfg.head_timeout_ms);
    front2_send_soon(c);
}

static void on_timer(struct dp_timer *t)
{
    struct front2 *c = (struct front2 *)((char *)t - offsetof(struct front2, timer));
    const struct proxy_config *cfg = &c->worker->proxy->cfg;
    if (c->leaving) {
        front_leave(c);
        return;
    }
    if (c->client_left && c->streams == 0) {
        front_close(c, false);
        return;
    }
    bool due = front2_bodies_look(c);
    int64_t limit = c->head_ms   ? cfg->head_timeout_ms
                    : c->streams ? cfg->idle_timeout_ms
                                 : cfg->keepalive_timeout_ms,
            quiet = dp_now_ms(c->worker->loop) - (c->head_ms ? c->head_ms : c->active_ms);
    if (quiet < limit) {
        int64_t step = exchange_body_step(c->worker);
        dp_timer_start(c->worker->loop, t, due && step < limit - quiet ? step : limit - quiet);
        return;
    }
    if (c->head_ms)
        front2_broken(c, 408);
    nghttp2_session_terminate_session(c->session, c->head_ms ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_NO_ERROR);
    h2_flush(c->session, &c->io);
    front_close(c, false);
}

static void on_link_drain(struct front_link *l)
{
    struct front2 *c = (struct front2 *)((char *)l - offsetof(struct front2, link));
    /* A request that is on its way now would be lost behind a GOAWAY that does not name it: many clients do
     * not send it again. */
    if (c->leaving || c->draining)
        return;
    c->leaving = true;
    nghttp2_submit_shutdown_notice(c->session);
    dp_timer_start(c->worker->loop, &c->timer, LEAVE_MS);
    front2_send_soon(c);
}

static size_t on_link_held(const struct front_link *l)
{
    const struct front2 *c = (const struct front2 *)((const char *)l - offsetof(struct front2, link));
    size_t n = c->held + c->io.out_cap;
    for (const struct stream2 *s = c->all; s; s = s->next)
        n += s->x ? memory_of(s->x) : 0;
    return n;
}

static void on_link_drop(struct front_link *l)
{
    front_close((struct front2 *)((char *)l - offsetof(struct front2, link)), true);
}

static int session_make(struct front2 *c)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *opt;
    if (nghttp2_session_callbacks_new(&cb) != 0)
        return -1;
    front2_request_callbacks(cb);
    int rc = nghttp2_option_new(&opt);
    if (rc == 0) {
        nghttp2_option_set_no_auto_window_update(opt, 1);
        nghttp2_option_set_max_settings(opt, 32);
        rc = nghttp2_session_server_new2(&c->session, cb, c, opt);
        nghttp2_option_del(opt);
    }
    nghttp2_session_callbacks_del(cb);
    if (rc != 0)
        return -1;
    nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, H2_STREAMS},
                                         {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_WINDOW},
                                         {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX}};
    nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, sizeof settings / sizeof settings[0]);
    return nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, H2_CONNECTION_WINDOW);
}

void front2_adopt(struct worker *w, struct dp_io *io, struct share *client, const char *address, bool tls,
                  const char *first, size_t n)
{
    struct front2 *c = calloc(1, sizeof *c);
    if (c == NULL) {
        share_leave(client);
        return; /* the caller closes the stream */
    }
    *c = (struct front2){.io = {.on_read = on_read, .on_drain = on_drain},
                         .worker = w,
                         .client = client,
                         .tls = tls,
                         .timer = {.fire = on_timer},
                         .send = {.run = on_send},
                         .bury = {.run = on_bury},
                         .link = {.drain = on_link_drain, .held = on_link_held, .drop = on_link_drop},
                         .active_ms = dp_now_ms(w->loop)};
    snprintf(c->address, sizeof c->address, "%s", address);
    front_link_add(w, &c->link);
    dp_io_move(&c->io, io);
    if (session_make(c) != 0) {
        front_close(c, true);
        return;
    }
    c->head_ms = dp_now_ms(w->loop); /* of the preface */
    dp_timer_start(w->loop, &c->timer, w->proxy->cfg.head_timeout_ms);
    front2_send_soon(c);
    if (n == 0 || bytes_take(c, first, n))
        if (!c->closed && c->io.readable)
            on_read(&c->io);
}
