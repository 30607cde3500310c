/* The HTTP/2 side towards a client (nghttp2): each stream is an exchange of its own. A request head is turned
 * into HTTP/1.1 text and goes through the same strict parser and router. Invariant: a stream's window is
 * opened only for bytes that the service has taken. */
#include "proxy/h2.h"

#include "lib/base/log.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8 };

struct front2 {
    struct dp_io io; /* first */
    struct front_link link;
    struct worker *worker;
    struct client *client;
    nghttp2_session *session;
    struct stream2 *all;
    bool closed, tls, draining, read_again;
    uint32_t streams;
    int64_t active_ms;
    struct dp_timer timer;
    struct dp_task send, bury;
    char address[46];
};

struct stream2 {
    struct front2 *c;
    struct stream2 *next, **link;
    int32_t id;
    struct exchange *x;
    struct buf fields, cookie, method, path, authority, host;
    uint32_t field_bytes, field_count;
    bool head_done, request_ended, too_large;
    struct buf in;     /* body bytes that the back does not take yet */
    size_t unconsumed; /* received and not yet given back to flow control */
    struct h2_out out;
    bool has_body; /* a data provider was submitted */
};

static const struct front_ops front2_ops;
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

static void stream_free(struct stream2 *s)
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
    buf_free(&s->in);
    h2_out_free(&s->out);
    free(s);
}

static void front_close(struct front2 *c, bool reset)
{
    if (c->closed)
        return;
    c->closed = true;
    for (struct stream2 *s = c->all, *next; s; s = next) {
        next = s->next;
        nghttp2_session_set_stream_user_data(c->session, s->id, NULL);
        stream_free(s);
    }
    c->all = NULL;
    dp_timer_stop(&c->timer);
    front_link_remove(c->worker, &c->link);
    client_leave(c->worker, c->client);
    dp_io_close(&c->io, reset);
    dp_bury(c->worker->loop, &c->bury);
}

static void send_soon(struct front2 *c)
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
    if ((over || (c->draining && c->streams == 0)) && !dp_io_blocked(&c->io))
        front_close(c, false);
}

static void on_drain(struct dp_io *io)
{
    send_soon((struct front2 *)io);
}

/* ---- request body ---- */

static void consume(struct stream2 *s)
{
    if (s->unconsumed == 0)
        return;
    nghttp2_session_consume(s->c->session, s->id, s->unconsumed);
    s->unconsumed = 0;
    send_soon(s->c);
}

static void request_finish(struct stream2 *s)
{
    struct exchange *x = s->x;
    if (!s->request_ended || s->in.len || x == NULL || x->back == NULL || x->request_done)
        return;
    struct http_head trailers, *t = NULL;
    if (s->fields.len > 2 && s->head_done &&
        http_parse_trailers(s->fields.data, s->fields.len, &trailers) == 0)
        t = &trailers;
    x->request_done = true;
    x->back->finish(x, t);
}

/* Hands over what the back takes now. */
static void request_feed(struct stream2 *s)
{
    struct exchange *x = s->x;
    if (x == NULL || x->back == NULL || x->back->blocked(x))
        return;
    if (s->in.len) {
        struct buf bytes = s->in;
        s->in = (struct buf){0};
        x->back->data(x, bytes.data, bytes.len);
        buf_free(&bytes);
        if (s->x != x || x->back == NULL)
            return;
    }
    if (!x->back->blocked(x))
        consume(s);
    request_finish(s);
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                   void *user)
{
    struct stream2 *s = nghttp2_session_get_stream_user_data(session, id);
    struct front2 *c = user;
    if (s == NULL || s->x == NULL) { /* answered already: what still comes is dropped */
        nghttp2_session_consume(session, id, n);
        send_soon(c);
        return 0;
    }
    s->unconsumed += n;
    struct exchange *x = s->x;
    if (x->back && s->in.len == 0 && !x->back->blocked(x)) {
        x->back->data(x, (const char *)p, n);
        if (s->x == x && x->back && !x->back->blocked(x))
            consume(s);
        return 0;
    }
    buf_append(&s->in, p, n);
    return s->in.failed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* ---- request head ---- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    struct front2 *c = user;
    if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct stream2 *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    s->c = c;
    s->id = f->hd.stream_id;
    s->next = c->all;
    s->link = &c->all;
    if (s->next)
        s->next->link = &s->next;
    c->all = s;
    c->streams++;
    nghttp2_session_set_stream_user_data(session, s->id, s);
    return 0;
}

static bool name_is(const uint8_t *name, size_t n, const char *what)
{
    return strlen(what) == n && memcmp(name, what, n) == 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *f, const uint8_t *name, size_t nn,
                     const uint8_t *value, size_t vn, uint8_t flags, void *user)
{
    struct stream2 *s = nghttp2_session_get_stream_user_data(session, f->hd.stream_id);
    if (s == NULL)
        return 0;
    s->field_bytes += (uint32_t)(nn + vn + 4);
    if (s->field_bytes > HTTP_HEAD_MAX || ++s->field_count > HTTP_HEADERS_MAX) {
        s->too_large = true;
        return 0;
    }
    if (name_is(name, nn, ":method"))
        buf_append(&s->method, value, vn);
    else if (name_is(name, nn, ":path"))
        buf_append(&s->path, value, vn);
    else if (name_is(name, nn, ":authority"))
        buf_append(&s->authority, value, vn);
    else if (name[0] == ':')
        return 0;
    else if (name_is(name, nn, "host") && !s->head_done)
        buf_append(&s->host, value, vn);
    else if (name_is(name, nn, "cookie") && !s->head_done) {
        /* RFC 9113 §8.2.3: one line again for HTTP/1.1. */
        buf_puts(&s->cookie, s->cookie.len ? "; " : "");
        buf_append(&s->cookie, value, vn);
    } else {
        buf_append(&s->fields, name, nn);
        buf_puts(&s->fields, ": ");
        buf_append(&s->fields, value, vn);
        buf_puts(&s->fields, "\r\n");
    }
    return 0;
}

/* The head as HTTP/1.1 text. */
static void head_text(struct stream2 *s, struct buf *out)
{
    struct buf *path = s->path.len ? &s->path : &s->authority; /* CONNECT has no path */
    struct buf *host = s->authority.len ? &s->authority : &s->host;
    buf_append(out, s->method.data, s->method.len);
    buf_putc(out, ' ');
    buf_append(out, path->data, path->len);
    buf_puts(out, " HTTP/1.1\r\nhost: ");
    buf_append(out, host->data, host->len);
    buf_puts(out, "\r\n");
    buf_append(out, s->fields.data, s->fields.len);
    if (s->cookie.len) {
        buf_puts(out, "cookie: ");
        buf_append(out, s->cookie.data, s->cookie.len);
        buf_puts(out, "\r\n");
    }
    buf_puts(out, "\r\n");
    buf_reset(&s->fields); /* trailers come here next */
}

static bool host_differs(struct stream2 *s)
{
    return s->authority.len && s->host.len &&
           (s->authority.len != s->host.len || memcmp(s->authority.data, s->host.data, s->host.len) != 0);
}

static int refuse(struct stream2 *s, const char *status)
{
    nghttp2_nv nv[] = {{(uint8_t *)":status", (uint8_t *)status, 7, 3, 0},
                       {(uint8_t *)"content-length", (uint8_t *)"0", 14, 1, 0}};
    nghttp2_submit_response(s->c->session, s->id, nv, 2, NULL);
    if (!s->request_ended)
        nghttp2_submit_rst_stream(s->c->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
    stats_add("refused_heads");
    return 0;
}

static int request_start(struct stream2 *s)
{
    struct front2 *c = s->c;
    _cleanup_buf_ struct buf text = {0};
    if (s->too_large)
        return refuse(s, "431");
    head_text(s, &text);
    s->head_done = true;
    struct exchange *x = text.failed ? NULL : exchange_new(c->worker, &front2_ops, s, text.len);
    if (x == NULL)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(x->head, text.data, text.len);
    int rc = host_differs(s) ? HTTP_BAD : exchange_parse(x);
    if (rc != 0) {
        exchange_discard(x);
        return refuse(s, rc == HTTP_TOO_LARGE ? "431" : "400");
    }
    s->x = x;
    x->request_body = !s->request_ended;
    x->request_done = s->request_ended;
    x->tls = c->tls;
    x->client = c->address;
    x->front_decodes = true;
    x->grpc = x->form == FORM_GRPC;
    buf_free(&s->method);
    buf_free(&s->path);
    buf_free(&s->authority);
    buf_free(&s->host);
    buf_free(&s->cookie);
    exchange_start(x);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    struct front2 *c = user;
    c->active_ms = dp_now_ms(c->worker->loop);
    if (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA)
        return 0;
    struct stream2 *s = nghttp2_session_get_stream_user_data(session, f->hd.stream_id);
    if (s == NULL)
        return 0;
    if (f->hd.flags & NGHTTP2_FLAG_END_STREAM)
        s->request_ended = true;
    if (f->hd.type == NGHTTP2_HEADERS && f->headers.cat == NGHTTP2_HCAT_REQUEST) {
        int rc = request_start(s);
        if (rc != 0)
            return rc;
    } else if (f->hd.type == NGHTTP2_HEADERS && s->fields.len) {
        buf_puts(&s->fields, "\r\n"); /* trailers */
    }
    request_feed(s);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
    struct front2 *c = user;
    struct stream2 *s = nghttp2_session_get_stream_user_data(session, id);
    if (s == NULL)
        return 0;
    nghttp2_session_set_stream_user_data(session, id, NULL);
    if (s->unconsumed)
        nghttp2_session_consume_connection(session, s->unconsumed);
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    c->streams--;
    stream_free(s);
    send_soon(c);
    return 0;
}

/* ---- the answer ---- */

static ssize_t on_body_read(nghttp2_session *session, int32_t id, uint8_t *buf, size_t n, uint32_t *flags,
                            nghttp2_data_source *source, void *user)
{
    struct stream2 *s = source->ptr;
    size_t before = h2_out_pending(&s->out);
    ssize_t got = h2_out_read(&s->out, session, id, buf, n, flags);
    struct exchange *x = s->x;
    if (x && x->back && before >= H2_OUT_FULL && h2_out_pending(&s->out) < H2_OUT_FULL)
        x->back->pull(x);
    return got;
}

static void answer_headers(struct exchange *x, const struct http_head *m, struct h2_list *l, char status[4],
                           char wake[40])
{
    *l = (struct h2_list){.count = 0};
    snprintf(status, 4, "%d", m->status);
    h2_list_lit(l, ":status", status);
    h2_list_head(l, m);
    if (m->status >= 200 && x->woke) {
        snprintf(wake, 40, "wake;dur=%lld", (long long)x->wake_ms);
        h2_list_lit(l, "server-timing", wake);
    }
    if (m->status >= 200 && x->by_path)
        h2_list_lit(l, "content-security-policy", "sandbox allow-scripts allow-forms");
}

static void front_head(struct exchange *x, const struct http_head *m)
{
    struct stream2 *s = x->front_data;
    struct h2_list l;
    char status[4], wake[40];
    answer_headers(x, m, &l, status, wake);
    s->has_body = x->answer_body != BODY_NONE && !x->is_head;
    nghttp2_data_provider provider = {.source.ptr = s, .read_callback = on_body_read};
    if (nghttp2_submit_response(s->c->session, s->id, l.nv, l.count, s->has_body ? &provider : NULL) != 0)
        nghttp2_submit_rst_stream(s->c->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_INTERNAL_ERROR);
    send_soon(s->c);
}

static void front_interim(struct exchange *x, const struct http_head *m)
{
    struct stream2 *s = x->front_data;
    struct h2_list l;
    char status[4], wake[40];
    if (m->status == 101)
        return;
    answer_headers(x, m, &l, status, wake);
    nghttp2_submit_headers(s->c->session, NGHTTP2_FLAG_NONE, s->id, NULL, l.nv, l.count, NULL);
    send_soon(s->c);
}

static void body_resume(struct stream2 *s)
{
    if (s->out.deferred) {
        s->out.deferred = false;
        nghttp2_session_resume_data(s->c->session, s->id);
    }
    send_soon(s->c);
}

static void front_data(struct exchange *x, const char *p, size_t n)
{
    struct stream2 *s = x->front_data;
    x->bytes_out += n;
    s->c->active_ms = dp_now_ms(s->c->worker->loop);
    h2_out_append(&s->out, p, n);
    body_resume(s);
}

static void request_unwanted(struct stream2 *s)
{
    buf_free(&s->in);
    consume(s);
    if (!s->request_ended && !s->has_body)
        nghttp2_submit_rst_stream(s->c->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
}

static void front_finish(struct exchange *x, const struct http_head *trailers)
{
    struct stream2 *s = x->front_data;
    s->out.end = true;
    if (s->has_body)
        h2_out_trailers(&s->out, trailers);
    s->x = NULL;
    request_unwanted(s);
    exchange_done(x);
    body_resume(s);
}

static void front_abort(struct exchange *x)
{
    struct stream2 *s = x->front_data;
    s->x = NULL;
    nghttp2_submit_rst_stream(s->c->session, NGHTTP2_FLAG_NONE, s->id,
                              x->reset_code ? x->reset_code : NGHTTP2_INTERNAL_ERROR);
    consume(s);
    send_soon(s->c);
    exchange_cancel(x);
}

static void front_flush(struct exchange *x)
{
}

static bool front_blocked(struct exchange *x)
{
    struct stream2 *s = x->front_data;
    return h2_out_pending(&s->out) >= H2_OUT_FULL;
}

static void front_pull(struct exchange *x)
{
    struct stream2 *s = x->front_data;
    if (x->back)
        x->back->flush(x);
    request_feed(s);
}

static const struct front_ops front2_ops = {.head = front_head,
                                            .interim = front_interim,
                                            .data = front_data,
                                            .finish = front_finish,
                                            .abort = front_abort,
                                            .flush = front_flush,
                                            .blocked = front_blocked,
                                            .pull = front_pull};

/* ---- reading ---- */

static bool bytes_take(struct front2 *c, const char *p, size_t n)
{
    ssize_t used = nghttp2_session_mem_recv(c->session, (const uint8_t *)p, n);
    if (c->closed)
        return false;
    if (used < 0) {
        stats_add("h2_flood");
        h2_flush(c->session, &c->io); /* the GOAWAY, if there is one */
        front_close(c, false);
        return false;
    }
    send_soon(c);
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
        send_soon(c);
    }
}

static void on_timer(struct dp_timer *t)
{
    struct front2 *c = (struct front2 *)((char *)t - offsetof(struct front2, timer));
    const struct proxy_config *cfg = &c->worker->proxy->cfg;
    int64_t limit = c->streams ? cfg->idle_timeout_ms : cfg->keepalive_timeout_ms,
            quiet = dp_now_ms(c->worker->loop) - c->active_ms;
    if (quiet < limit) {
        dp_timer_start(c->worker->loop, t, limit - quiet);
        return;
    }
    nghttp2_session_terminate_session(c->session, NGHTTP2_NO_ERROR);
    h2_flush(c->session, &c->io);
    front_close(c, false);
}

static void on_link_drain(struct front_link *l)
{
    struct front2 *c = (struct front2 *)((char *)l - offsetof(struct front2, link));
    c->draining = true;
    nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->session),
                          NGHTTP2_NO_ERROR, NULL, 0);
    send_soon(c);
}

static int session_make(struct front2 *c)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *opt;
    if (nghttp2_session_callbacks_new(&cb) != 0)
        return -1;
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    int rc = nghttp2_option_new(&opt);
    if (rc == 0) {
        nghttp2_option_set_no_auto_window_update(opt, 1);
        nghttp2_option_set_no_closed_streams(opt, 1);
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

void front2_adopt(struct worker *w, struct dp_io *io, struct client *client, const char *address, bool tls,
                  const char *first, size_t n)
{
    struct front2 *c = calloc(1, sizeof *c);
    if (c == NULL) {
        client_leave(w, client);
        return; /* the caller closes the stream */
    }
    *c = (struct front2){.io = {.on_read = on_read, .on_drain = on_drain},
                         .worker = w,
                         .client = client,
                         .tls = tls,
                         .timer = {.fire = on_timer},
                         .send = {.run = on_send},
                         .bury = {.run = on_bury},
                         .link = {.drain = on_link_drain},
                         .active_ms = dp_now_ms(w->loop)};
    snprintf(c->address, sizeof c->address, "%s", address);
    front_link_add(w, &c->link);
    dp_io_move(&c->io, io);
    if (session_make(c) != 0) {
        front_close(c, true);
        return;
    }
    dp_timer_start(w->loop, &c->timer, w->proxy->cfg.keepalive_timeout_ms);
    send_soon(c);
    if (n == 0 || bytes_take(c, first, n))
        if (!c->closed && c->io.readable)
            on_read(&c->io);
}
