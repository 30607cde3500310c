/* Answers on HTTP/2 streams. Invariant: at most H2_OUT_FULL bytes and one read of the service wait per
 * stream; a cut answer is a reset. */
#include "proxy/front2.h"

#include <stdio.h>

/* A client that opens no window could else make us hold a full buffer for each of its streams. A stream that
 * has nothing waiting always gets something, so one that the client reads is not held up by others that it
 * does not. */
static bool crowded(const struct stream2 *s)
{
    return s->c->held >= H2_CONNECTION_FULL;
}

static bool full(const struct stream2 *s)
{
    size_t pending = h2_out_pending(&s->out);
    return pending >= H2_OUT_FULL || (pending && crowded(s));
}

static ssize_t on_body_read(nghttp2_session *session, int32_t id, uint8_t *buf, size_t n, uint32_t *flags,
                            nghttp2_data_source *source, void *user)
{
    struct stream2 *s = source->ptr;
    size_t before = s->out.bytes.cap;
    ssize_t got = h2_out_read(&s->out, session, id, buf, n, flags);
    front2_count(s->c, before, s->out.bytes.cap);
    struct exchange *x = s->x;
    if (x && x->back && s->held_back && !full(s)) {
        s->held_back = false;
        x->back->pull(x);
    }
    return got;
}

static void answer_headers(struct exchange *x, const struct http_head *m, struct h2_list *l, char status[4],
                           char wake[40])
{
    h2_list_start(l);
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
    front2_send_soon(s->c);
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
    front2_send_soon(s->c);
}

static void body_resume(struct stream2 *s)
{
    if (s->out.deferred) {
        s->out.deferred = false;
        nghttp2_session_resume_data(s->c->session, s->id);
    }
    front2_send_soon(s->c);
}

static void front_data(struct exchange *x, const char *p, size_t n)
{
    struct stream2 *s = x->front_data;
    x->bytes_out += n;
    s->c->active_ms = dp_now_ms(s->c->worker->loop);
    size_t before = s->out.bytes.cap;
    h2_out_append(&s->out, p, n);
    front2_count(s->c, before, s->out.bytes.cap);
    body_resume(s);
}

/* What is left of the request is dropped as it comes (front2_request.c). The stream is not reset right behind
 * the answer: clients exist that then take the reset for the answer (grpc-js: "Call ended without gRPC
 * status"). */
static void request_unwanted(struct stream2 *s)
{
    front2_count(s->c, s->in.cap, 0);
    buf_free(&s->in);
    front2_consume(s);
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
    front2_consume(s);
    front2_send_soon(s->c);
    exchange_cancel(x);
}

static void front_flush(struct exchange *x)
{
}

static bool front_blocked(struct exchange *x)
{
    struct stream2 *s = x->front_data;
    s->held_back |= full(s);
    return full(s);
}

static size_t front_room(struct exchange *x)
{
    return crowded(x->front_data) ? H2_LITTLE : SCRATCH;
}

static void front_pull(struct exchange *x)
{
    struct stream2 *s = x->front_data;
    if (x->back)
        x->back->flush(x);
    front2_request_feed(s);
}

const struct front_ops front2_ops = {.head = front_head,
                                     .interim = front_interim,
                                     .data = front_data,
                                     .finish = front_finish,
                                     .abort = front_abort,
                                     .flush = front_flush,
                                     .blocked = front_blocked,
                                     .pull = front_pull,
                                     .room = front_room};
