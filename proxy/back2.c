/* The h2c side towards a gRPC service: one stream at a time on a connection with prior knowledge, trailers
 * and half-close in both directions. Invariant: the service's window is opened only for bytes that the
 * client's side has taken. */
#include "proxy/h2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8 };

struct back2 {
    nghttp2_session *session;
    struct back *b;
    int32_t stream;
    bool head_done, ended, goaway, reading;
    int status;
    uint32_t field_bytes;
    struct buf fields;
    struct h2_out out;
    size_t unconsumed;
};

static const struct back_ops back2_ops;

static void send_now(struct back *b)
{
    /* Not from inside the session's own callbacks: the reader sends when it is through. */
    if (!b->h2->reading && !h2_flush(b->h2->session, &b->io))
        dp_defer(b->worker->loop, &b->again);
}

/* ---- answer ---- */

static int on_header(nghttp2_session *session, const nghttp2_frame *f, const uint8_t *name, size_t nn,
                     const uint8_t *value, size_t vn, uint8_t flags, void *user)
{
    struct back2 *h = user;
    if (f->hd.stream_id != h->stream)
        return 0;
    h->field_bytes += (uint32_t)(nn + vn + 4);
    if (h->field_bytes > HTTP_HEAD_MAX)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (nn == 7 && memcmp(name, ":status", 7) == 0) {
        h->status = vn == 3 ? (value[0] - '0') * 100 + (value[1] - '0') * 10 + (value[2] - '0') : 0;
        return 0;
    }
    if (name[0] == ':')
        return 0;
    buf_append(&h->fields, name, nn);
    buf_puts(&h->fields, ": ");
    buf_append(&h->fields, value, vn);
    buf_puts(&h->fields, "\r\n");
    return 0;
}

static void answer_finish(struct back2 *h, const struct http_head *trailers)
{
    struct exchange *x = back_part(h->b);
    h->ended = true;
    x->front->finish(x, trailers);
}

static int head_take(struct back2 *h, bool end)
{
    struct back *b = h->b;
    struct exchange *x = b->x;
    struct http_head *m = &b->worker->response;
    _cleanup_buf_ struct buf text = {0};
    buf_printf(&text, "HTTP/1.1 %03d \r\n", h->status);
    buf_append(&text, h->fields.data, h->fields.len);
    buf_puts(&text, "\r\n");
    buf_free(&h->fields);
    if (text.failed || http_parse_response(text.data, text.len, m) != 0 || m->status == 101)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (m->status < 200) {
        if (!exchange_interim(x, text.len))
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        x->front->interim(x, m);
        return 0;
    }
    h->head_done = true;
    x->answer_body = end ? BODY_NONE : BODY_UNTIL_CLOSE;
    exchange_answered(x, m->status);
    x->front->head(x, m);
    if (end && b->x == x)
        answer_finish(h, NULL);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    struct back2 *h = user;
    if (f->hd.type == NGHTTP2_GOAWAY)
        h->goaway = true;
    if (f->hd.stream_id != h->stream || h->b->x == NULL ||
        (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA))
        return 0;
    h->b->got_bytes = true;
    bool end = f->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (f->hd.type == NGHTTP2_HEADERS && !h->head_done)
        return head_take(h, end);
    if (!end)
        return 0;
    if (h->fields.len) {
        struct http_head *t = &h->b->worker->response;
        struct buf text = h->fields;
        h->fields = (struct buf){0};
        buf_puts(&text, "\r\n");
        bool ok = !text.failed && http_parse_trailers(text.data, text.len, t) == 0;
        if (ok)
            answer_finish(h, t);
        buf_free(&text);
        return ok ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE; /* the answer does not end as if it were whole */
    }
    answer_finish(h, NULL);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                   void *user)
{
    struct back2 *h = user;
    struct exchange *x = h->b->x;
    if (id != h->stream || x == NULL || !h->head_done) {
        nghttp2_session_consume(session, id, n);
        return 0;
    }
    x->front->data(x, (const char *)p, n);
    if (h->b->x == x && x->front->blocked(x))
        h->unconsumed += n;
    else
        nghttp2_session_consume(session, id, n);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
    struct back2 *h = user;
    if (id != h->stream)
        return 0;
    h->stream = -1;
    if (h->unconsumed)
        nghttp2_session_consume_connection(session, h->unconsumed);
    h->unconsumed = 0;
    struct exchange *x = back_part(h->b);
    if (x == NULL)
        return 0;
    x->reset_code = code;
    /* The service has not looked at it (RFC 9113 §8.7): said as it is, the client's library sends it again.
     */
    if (code == NGHTTP2_REFUSED_STREAM && !h->head_done) {
        x->state = X_ANSWERING; /* so that it ends in a reset */
        x->status = 503;
    }
    exchange_fail(x, ANSWER_BAD_GATEWAY, NULL);
    return 0;
}

/* ---- request ---- */

static ssize_t on_body_read(nghttp2_session *session, int32_t id, uint8_t *buf, size_t n, uint32_t *flags,
                            nghttp2_data_source *source, void *user)
{
    struct back2 *h = source->ptr;
    size_t before = h2_out_pending(&h->out);
    ssize_t got = h2_out_read(&h->out, session, id, buf, n, flags);
    if (before >= H2_OUT_FULL && h2_out_pending(&h->out) < H2_OUT_FULL)
        dp_defer(h->b->worker->loop, &h->b->again);
    return got;
}

static int session_make(struct back *b)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *opt;
    struct back2 *h = calloc(1, sizeof *h);
    if (h == NULL || nghttp2_session_callbacks_new(&cb) != 0) {
        free(h);
        return -1;
    }
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    int rc = nghttp2_option_new(&opt);
    if (rc == 0) {
        nghttp2_option_set_no_auto_window_update(opt, 1);
        rc = nghttp2_session_client_new2(&h->session, cb, h, opt);
        nghttp2_option_del(opt);
    }
    nghttp2_session_callbacks_del(cb);
    if (rc != 0) {
        free(h);
        return -1;
    }
    nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                         {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_WINDOW},
                                         {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX}};
    nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings, sizeof settings / sizeof settings[0]);
    nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, H2_CONNECTION_WINDOW);
    h->b = b;
    h->stream = -1;
    b->h2 = h;
    return 0;
}

/* What the list says lives in `masked` and `forwarded` too. */
static void request_list(struct exchange *x, struct h2_list *l, char masked[HOST_MASKED_MAX],
                         struct buf *forwarded)
{
    const struct http_head *m = exchange_request(x);
    struct str host = request_host(x, m, masked), path = m->target;
    struct target t;
    if (x->by_path) {
        target_resolve(m, x->worker->proxy->cfg.domain, &t);
        path = t.path;
    }
    h2_list_start(l);
    h2_list_add(l, ":method", 7, m->method.p, m->method.n);
    h2_list_lit(l, ":scheme", "http");
    h2_list_add(l, ":path", 5, path.p, path.n);
    h2_list_add(l, ":authority", 10, host.p, host.n);
    for (uint16_t i = 0; i < m->count; i++) {
        const struct http_header *h = &m->h[i];
        if (request_passes(x, m, h))
            h2_list_add(l, h->name.p, h->name.n, h->value.p, h->value.n);
    }
    h2_list_lit(l, "te", "trailers");
    struct str before = http_get(m, HDR_X_FORWARDED_FOR), asked = http_get(m, HDR_HOST);
    buf_append(forwarded, before.p, before.n);
    buf_puts(forwarded, before.n ? ", " : "");
    buf_puts(forwarded, x->client);
    h2_list_add(l, "x-forwarded-for", 15, forwarded->data, forwarded->len);
    if (!http_has(m, HDR_X_FORWARDED_PROTO))
        h2_list_lit(l, "x-forwarded-proto", x->tls ? "https" : "http");
    if ((request_masked(x) || x->by_path) && !http_has(m, HDR_X_FORWARDED_HOST))
        h2_list_add(l, "x-forwarded-host", 16, asked.p, asked.n);
}

void back2_send(struct exchange *x, struct back *b)
{
    struct h2_list l;
    char masked[HOST_MASKED_MAX];
    _cleanup_buf_ struct buf forwarded = {0};
    if (b->h2 == NULL && session_make(b) != 0) {
        b->x = NULL;
        back_close(b, true);
        exchange_fail(x, ANSWER_UNREACHABLE, NULL);
        return;
    }
    struct back2 *h = b->h2;
    request_list(x, &l, masked, &forwarded);
    h2_out_free(&h->out);
    h->out = (struct h2_out){0};
    h->head_done = h->ended = false;
    h->field_bytes = 0;
    h->status = 0;
    buf_reset(&h->fields);
    nghttp2_data_provider provider = {.source.ptr = h, .read_callback = on_body_read};
    h->stream =
        nghttp2_submit_request(h->session, NULL, l.nv, l.count, x->request_done ? NULL : &provider, NULL);
    x->back = &back2_ops;
    b->got_bytes = false;
    if (h->stream < 0) {
        x->back = NULL;
        b->x = NULL;
        back_close(b, true);
        exchange_fail(x, ANSWER_UNREACHABLE, NULL);
        return;
    }
    if (!x->request_done)
        x->front->pull(x);
    send_now(b);
}

static void body_resume(struct back2 *h)
{
    if (h->out.deferred) {
        h->out.deferred = false;
        nghttp2_session_resume_data(h->session, h->stream);
    }
    send_now(h->b);
}

static void back2_data(struct exchange *x, const char *p, size_t n)
{
    struct back2 *h = x->conn->h2;
    x->body_sent = true;
    x->bytes_in += n;
    h2_out_append(&h->out, p, n);
    body_resume(h);
}

static void back2_finish(struct exchange *x, const struct http_head *trailers)
{
    struct back2 *h = x->conn->h2;
    x->request_done = true;
    h->out.end = true;
    h2_out_trailers(&h->out, trailers);
    body_resume(h);
}

static void back2_flush(struct exchange *x)
{
}

static void back2_cancel(struct exchange *x)
{
    struct back *b = x->conn;
    b->x = NULL;
    nghttp2_submit_rst_stream(b->h2->session, NGHTTP2_FLAG_NONE, b->h2->stream, NGHTTP2_CANCEL);
    dp_defer(b->worker->loop, &b->again); /* sends the reset, then the connection goes back to the pool */
}

static bool back2_blocked(struct exchange *x)
{
    return h2_out_pending(&x->conn->h2->out) >= H2_OUT_FULL;
}

static void back2_pull(struct exchange *x)
{
    struct back2 *h = x->conn->h2;
    if (h->unconsumed)
        nghttp2_session_consume(h->session, h->stream, h->unconsumed);
    else if (!h->b->io.readable)
        return;
    h->unconsumed = 0;
    dp_defer(h->b->worker->loop,
             &h->b->again); /* sends the window update; the front may be inside its own session */
}

static const struct back_ops back2_ops = {.data = back2_data,
                                          .finish = back2_finish,
                                          .flush = back2_flush,
                                          .cancel = back2_cancel,
                                          .blocked = back2_blocked,
                                          .pull = back2_pull};

/* ---- connection ---- */

/* After reading or sending: back to the pool when its exchange is over. */
static void settle(struct back *b)
{
    struct back2 *h = b->h2;
    if (b->state == BACK_IDLE && h->goaway) { /* it takes no more requests, though it may stay open */
        back_close(b, false);
        return;
    }
    if (b->state != BACK_BUSY || b->x)
        return;
    if (h->stream > 0 && h->ended) /* the answer came before the request's end: the rest is not wanted */
        nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, h->stream, NGHTTP2_NO_ERROR);
    if (!h2_flush(h->session, &b->io) || h->goaway ||
        (h->stream > 0 && nghttp2_session_want_write(h->session))) {
        back_close(b, false);
        return;
    }
    h->stream = -1;
    back_release(b);
}

void back2_read(struct back *b)
{
    struct back2 *h = b->h2;
    struct worker *w = b->worker;
    bool held_back = false;
    for (int i = 0; i < ROUNDS; i++) {
        size_t room = b->x ? exchange_room(b->x) : SCRATCH;
        /* Its window is open further than that: what it still sends waits in the kernel. */
        held_back = room < SCRATCH && b->x->state == X_ANSWERING && b->x->front->blocked(b->x);
        ssize_t n =
            held_back ? DP_IO_AGAIN : dp_io_read(&b->io, w->scratch, room < SCRATCH / 4 ? room : SCRATCH / 4);
        if (n == DP_IO_AGAIN)
            break;
        if (n <= 0) {
            back_lost(b);
            return;
        }
        h->reading = true;
        ssize_t used = nghttp2_session_mem_recv(h->session, (const uint8_t *)w->scratch, (size_t)n);
        h->reading = false;
        if (b->state == BACK_CLOSED)
            return;
        if (used < 0 || !h2_flush(h->session, &b->io)) {
            back_lost(b);
            return;
        }
    }
    if (!h2_flush(h->session, &b->io) || b->io.wfailed) {
        back_lost(b);
        return;
    }
    if (b->x && !b->x->request_done && h2_out_pending(&h->out) < H2_OUT_FULL)
        b->x->front->pull(b->x);
    if (b->state == BACK_CLOSED)
        return;
    if (b->io.readable && !held_back)
        dp_defer(w->loop, &b->again);
    settle(b);
}

void back2_drained(struct back *b)
{
    if (b->state == BACK_BUSY || b->state == BACK_IDLE)
        back2_read(b);
}

void back2_free(struct back *b)
{
    struct back2 *h = b->h2;
    b->h2 = NULL;
    buf_free(&h->fields);
    h2_out_free(&h->out);
    nghttp2_session_del(h->session);
    free(h);
}
