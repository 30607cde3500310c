/* Requests on HTTP/2 streams: heads become HTTP/1.1 text for the strict parser, bodies go to the back as far
 * as it takes them. Invariant: what the text form could not say in one way only (a Host that differs, a name
 * that is no token) is refused. */
#include "proxy/front2.h"

#include <stdlib.h>
#include <string.h>

#define DROPPED_MAX 65536 /* of a request that was answered before its end; then the stream is reset */

void front2_consume(struct stream2 *s)
{
    if (s->unconsumed == 0)
        return;
    nghttp2_session_consume(s->c->session, s->id, s->unconsumed);
    s->unconsumed = 0;
    front2_send_soon(s->c);
}

static void request_finish(struct stream2 *s)
{
    struct exchange *x = s->x;
    if (!s->request_ended || s->in.len || x == NULL || x->back == NULL || x->request_done)
        return;
    struct http_head trailers, *t = NULL;
    if (s->fields.len > 2 || s->too_large) {
        int rc =
            s->too_large ? HTTP_TOO_LARGE : http_parse_trailers(s->fields.data, s->fields.len, &trailers);
        if (rc != 0) { /* without them the request would not be what was sent */
            exchange_fail(x, rc == HTTP_BAD ? ANSWER_BAD_REQUEST : ANSWER_HEAD_TOO_LARGE,
                          rc == HTTP_BAD ? "Invalid trailers" : NULL);
            return;
        }
        t = &trailers;
    }
    x->request_done = true;
    x->back->finish(x, t);
}

/* Hands over what the back takes now. */
void front2_request_feed(struct stream2 *s)
{
    struct exchange *x = s->x;
    if (x == NULL || x->back == NULL || x->back->blocked(x))
        return;
    if (s->in.len) {
        struct buf bytes = s->in;
        s->in = (struct buf){0};
        front2_count(s->c, bytes.cap, 0);
        x->back->data(x, bytes.data, bytes.len);
        buf_free(&bytes);
        if (s->x != x || x->back == NULL)
            return;
    }
    if (!x->back->blocked(x))
        front2_consume(s);
    request_finish(s);
}

/* Not while the connection's window is used up: then it is the service of another stream that is slow. */
static bool client_dawdles(const struct stream2 *s)
{
    const struct exchange *x = s->x;
    return x->back && s->in.len == 0 && !x->back->blocked(s->x) &&
           nghttp2_session_get_local_window_size(s->c->session) > 0;
}

bool front2_bodies_look(struct front2 *c)
{
    int64_t now = dp_now_ms(c->worker->loop);
    bool due = false, step_over = now - c->bodies_ms >= exchange_body_step(c->worker);
    for (struct stream2 *s = c->all; s; s = s->next) {
        if (s->x == NULL || s->request_ended || !exchange_body_due(s->x))
            continue;
        due = true;
        if (step_over && client_dawdles(s))
            exchange_body_waited(s->x);
    }
    if (step_over)
        c->bodies_ms = now;
    return due;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                   void *user)
{
    struct stream2 *s = nghttp2_session_get_stream_user_data(session, id);
    struct front2 *c = user;
    if (s == NULL || s->x == NULL) { /* answered already: what still comes is dropped */
        nghttp2_session_consume(session, id, n);
        if (s && (s->dropped += n) > DROPPED_MAX && nghttp2_session_get_stream_local_close(session, id) == 1)
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_NO_ERROR);
        front2_send_soon(c);
        return 0;
    }
    s->unconsumed += n;
    struct exchange *x = s->x;
    if (x->back && s->in.len == 0 && !x->back->blocked(x)) {
        x->back->data(x, (const char *)p, n);
        if (s->x == x && x->back && !x->back->blocked(x))
            front2_consume(s);
        return 0;
    }
    size_t before = s->in.cap;
    buf_append(&s->in, p, n);
    front2_count(c, before, s->in.cap);
    return s->in.failed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* ---- request head ---- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    struct front2 *c = user;
    /* From the first byte of a head to its last the clock runs, as for HTTP/1.1. */
    int64_t now = dp_now_ms(c->worker->loop), limit = c->worker->proxy->cfg.head_timeout_ms;
    c->head_ms = now;
    if (c->timer.link == NULL || c->timer.at_ms > now + limit)
        dp_timer_start(c->worker->loop, &c->timer, limit);
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
    bool crumb = s->cookie.len && name_is(name, nn, "cookie"); /* one line in the end, however many come */
    s->field_count += !crumb;
    if (s->field_bytes > HTTP_HEAD_MAX || s->field_count > HTTP_HEADERS_MAX) {
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

/* One that gets no exchange. What its head has said so far is all that is known. */
static void refused_log(struct stream2 *s, int status)
{
    struct front2 *c = s->c;
    _cleanup_buf_ struct buf text = {0};
    buf_append(&text, s->method.data, s->method.len);
    buf_putc(&text, ' ');
    buf_append(&text, s->path.data, s->path.len);
    access_log_refused(c->worker, c->address, text.data, text.len, status, c->head_ms);
}

void front2_broken(struct front2 *c, int status)
{
    if (c->broken)
        return;
    c->broken = true;
    for (struct stream2 *s = c->all; s; s = s->next) {
        if (!s->head_done && !s->refused) {
            s->refused = true;
            refused_log(s, status);
            return;
        }
    }
    access_log_refused(c->worker, c->address, "", 0, status, c->head_ms);
}

static int refuse(struct stream2 *s, const char *status)
{
    s->refused = true;
    refused_log(s, status[1] == '0' ? 400 : 431);
    nghttp2_nv nv[] = {{(uint8_t *)":status", (uint8_t *)status, 7, 3, 0},
                       {(uint8_t *)"content-length", (uint8_t *)"0", 14, 1, 0}};
    nghttp2_submit_response(s->c->session, s->id, nv, 2, NULL);
    if (!s->request_ended)
        nghttp2_submit_rst_stream(s->c->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
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
    if (x->request_body && exchange_body_step(c->worker) < c->timer.at_ms - dp_now_ms(c->worker->loop))
        dp_timer_start(c->worker->loop, &c->timer, exchange_body_step(c->worker));
    exchange_start(x);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    struct front2 *c = user;
    c->active_ms = dp_now_ms(c->worker->loop);
    if (f->hd.type == NGHTTP2_GOAWAY)
        c->client_left = true;
    c->head_ms = 0; /* nothing comes between the parts of a head: it is complete, and so is the preface */
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
    front2_request_feed(s);
    return 0;
}

/* nghttp2 has found a fault and answers it with a reset of the stream or the end of the connection. */
static int on_invalid(nghttp2_session *session, const nghttp2_frame *f, int code, void *user)
{
    struct front2 *c = user;
    if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST) {
        front2_broken(c, 400);
        return 0;
    }
    struct stream2 *s = nghttp2_session_get_stream_user_data(session, f->hd.stream_id);
    if (s && !s->refused) {
        s->refused = true;
        refused_log(s, 400);
    }
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
    front2_stream_free(s);
    front2_send_soon(c);
    return 0;
}

void front2_request_callbacks(nghttp2_session_callbacks *cb)
{
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(cb, on_invalid);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
}
