/* The HTTP/1.1 side towards a service: sends the rewritten head, streams the body, reads the answer and tells
 * the front. Invariant: bytes of an answer are read only while the front takes them, so at most one read (64
 * KiB, or less where the front has little room) is in flight. */
#include "proxy/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8 };

static const struct back_ops back1_ops;

/* ---- request ---- */

static void request_flush(struct back *b)
{
    if (b->corked) {
        size_t n = b->corked;
        b->corked = 0;
        dp_io_write(&b->io, b->worker->head, n);
    }
}

void back1_send(struct exchange *x, struct back *b)
{
    bool chunked;
    size_t n = request_build(x, &chunked);
    if (n == 0 || n > UINT16_MAX) {
        x->back = NULL;
        back_close(b, false);
        exchange_fail(x, ANSWER_HEAD_TOO_LARGE, NULL);
        return;
    }
    x->back = &back1_ops;
    b->body = BODY_NONE;
    b->scan = (struct http_scan){0};
    b->chunked = (struct chunked){0};
    b->keep_alive = false;
    b->got_bytes = false;
    b->request_chunked = chunked;
    b->raw_in_done = b->raw_out_done = false;
    if (x->request_body && !x->request_done) {
        b->corked = (uint16_t)n; /* goes out with the first body bytes, or at the flush */
        x->front->pull(x);
        return;
    }
    b->corked = 0;
    /* A failed write shows as the end of the stream in the read that follows. */
    if (!dp_io_write(&b->io, b->worker->head, n))
        dp_defer(b->worker->loop, &b->again);
}

static void back1_data(struct exchange *x, const char *p, size_t n)
{
    struct back *b = x->conn;
    x->body_sent = true;
    x->bytes_in += n;
    struct iovec v[4];
    int count = 0;
    char size[20];
    if (b->corked)
        v[count++] = (struct iovec){b->worker->head, b->corked};
    b->corked = 0;
    if (b->request_chunked && x->front_decodes) {
        int len = snprintf(size, sizeof size, "%zx\r\n", n);
        v[count++] = (struct iovec){size, (size_t)len};
        v[count++] = (struct iovec){(char *)p, n};
        v[count++] = (struct iovec){(char *)"\r\n", 2};
    } else {
        v[count++] = (struct iovec){(char *)p, n};
    }
    if (!dp_io_writev(&b->io, v, count))
        dp_defer(b->worker->loop, &b->again);
}

static void back1_finish(struct exchange *x, const struct http_head *trailers)
{
    struct back *b = x->conn;
    request_flush(b);
    x->request_done = true;
    if (b->body == BODY_RAW) {
        b->raw_out_done = true;
        dp_io_shutdown(&b->io);
        return;
    }
    if (!b->request_chunked || !x->front_decodes)
        return;
    _cleanup_buf_ struct buf end = {0};
    buf_puts(&end, "0\r\n");
    for (uint16_t i = 0; trailers && i < trailers->count; i++) {
        const struct http_header *h = &trailers->h[i];
        buf_append(&end, h->name.p, h->name.n);
        buf_puts(&end, ": ");
        buf_append(&end, h->value.p, h->value.n);
        buf_puts(&end, "\r\n");
    }
    buf_puts(&end, "\r\n");
    dp_io_write(&b->io, end.data, end.len);
}

static void back1_flush(struct exchange *x)
{
    request_flush(x->conn);
}

static void back1_cancel(struct exchange *x)
{
    struct back *b = x->conn;
    b->x = NULL;
    back_close(b, !(b->raw_in_done && b->raw_out_done));
}

static bool back1_blocked(struct exchange *x)
{
    return dp_io_blocked(&x->conn->io) || x->up.in_pipe;
}

static struct dp_io *back1_plain(struct exchange *x)
{
    struct back *b = x->conn;
    return b->corked || b->request_chunked || b->body == BODY_RAW ? NULL : &b->io;
}

static void back1_pull(struct exchange *x)
{
    struct back *b = x->conn;
    if (!b->in_read && (b->io.readable || b->in || x->down.in_pipe))
        dp_defer(b->worker->loop, &b->again);
}

static const struct back_ops back1_ops = {.data = back1_data,
                                          .finish = back1_finish,
                                          .flush = back1_flush,
                                          .cancel = back1_cancel,
                                          .blocked = back1_blocked,
                                          .pull = back1_pull,
                                          .plain = back1_plain};

void back1_drained(struct back *b)
{
    struct exchange *x = b->x;
    if (x && (b->body == BODY_RAW || !x->request_done))
        x->front->pull(x);
}

/* ---- answer ---- */

static void answer_complete(struct back *b, const struct http_head *trailers)
{
    bool keep = b->keep_alive && b->x->request_done;
    struct exchange *x = back_part(b);
    if (keep)
        back_release(b);
    else
        back_close(b, false);
    x->front->finish(x, trailers);
}

static bool body_framing(struct back *b, struct exchange *x, const struct http_head *m)
{
    b->keep_alive = m->minor == 1 ? !m->close : m->keep_alive;
    x->answer_length = -1;
    if (m->status == 101) {
        x->answer_body = b->body = BODY_RAW;
        b->keep_alive = false;
        return true;
    }
    if (x->is_head || m->status == 204 || m->status == 304) {
        b->body = BODY_NONE;
    } else if (m->chunked) {
        b->body = BODY_CHUNKED;
    } else if (m->content_length >= 0) {
        b->body = m->content_length ? BODY_LENGTH : BODY_NONE;
        b->left = (uint64_t)m->content_length;
        x->answer_length = m->content_length;
    } else {
        b->body = BODY_UNTIL_CLOSE;
        b->keep_alive = false;
    }
    x->answer_body = b->body;
    return true;
}

/* A head of `n` bytes. false: the exchange is over. */
static bool head_take(struct back *b, const char *p, size_t n)
{
    struct exchange *x = b->x;
    struct http_head *m = &b->worker->response;
    if (http_parse_response(p, n, m) != 0) {
        back_lost(b);
        return false;
    }
    b->scan = (struct http_scan){0};
    if (m->status < 200 && m->status != 101) {
        if (!exchange_interim(x, n)) {
            back_lost(b);
            return false;
        }
        x->front->interim(x, m);
        return b->x == x;
    }
    if (m->status == 101 && (!http_has(m, HDR_UPGRADE) || x->request_body || !x->may_upgrade)) {
        back_lost(b);
        return false;
    }
    body_framing(b, x, m);
    exchange_answered(x, m->status);
    x->front->head(x, m);
    if (b->x != x)
        return false;
    if (b->body == BODY_NONE) {
        answer_complete(b, NULL);
        return false;
    }
    return true;
}

static void trailers_finish(struct back *b)
{
    struct http_head *t = &b->worker->response;
    if (b->trailers.failed ||
        (b->trailers.len > 2 && http_parse_trailers(b->trailers.data, b->trailers.len, t) != 0)) {
        back_lost(b);
        return;
    }
    if (b->trailers.len > 2) {
        struct buf text = b->trailers; /* outlives the back: the front copies */
        b->trailers = (struct buf){0};
        answer_complete(b, t);
        buf_free(&text);
        return;
    }
    answer_complete(b, NULL);
}

/* Chunked payload for a front that frames by itself. Bytes used, or -1 when the exchange is over. */
static ssize_t chunks_decode(struct back *b, const char *p, size_t n)
{
    struct exchange *x = b->x;
    size_t total = 0;
    for (;;) {
        size_t used = 0;
        struct str span;
        enum chunked_event ev = chunked_next(&b->chunked, p + total, n - total, &used, &span);
        total += used;
        switch (ev) {
        case CHUNKED_DATA:
            x->front->data(x, span.p, span.n);
            if (b->x != x)
                return -1;
            break;
        case CHUNKED_TRAILER:
            buf_append(&b->trailers, span.p, span.n);
            if (b->chunked.state == CHUNKED_STATE_END) {
                if (total < n)
                    b->keep_alive = false;
                trailers_finish(b);
                return -1;
            }
            break;
        case CHUNKED_MORE:
            return (ssize_t)total;
        default:
            back_lost(b);
            return -1;
        }
    }
}

/* Body bytes. false: the exchange is over (or its connection). */
static bool body_take(struct back *b, const char *p, size_t n)
{
    struct exchange *x = b->x;
    size_t used = n;
    bool complete = false;
    switch (b->body) {
    case BODY_LENGTH:
        if (used > b->left)
            used = (size_t)b->left;
        b->left -= used;
        complete = b->left == 0;
        break;
    case BODY_CHUNKED: {
        if (!x->verbatim)
            return chunks_decode(b, p, n) >= 0;
        enum chunked_event ev = chunked_skip(&b->chunked, p, n, &used);
        if (ev == CHUNKED_BAD) {
            back_lost(b);
            return false;
        }
        complete = ev == CHUNKED_END || b->chunked.state == CHUNKED_STATE_END;
        break;
    }
    default:
        break;
    }
    if (used < n)
        b->keep_alive = false; /* it sent more than it announced */
    x->front->data(x, p, used);
    if (b->x != x)
        return false;
    if (complete) {
        answer_complete(b, NULL);
        return false;
    }
    bulk_down_consider(x, b, n);
    return true;
}

/* Bytes from the service. false: the exchange is over. */
static bool answer_take(struct back *b, const char *p, size_t n)
{
    struct exchange *x = b->x;
    b->got_bytes = true;
    while (n && x->state != X_ANSWERING) {
        int end = http_head_end(&b->scan, p, n);
        if (end == HTTP_MORE) {
            if (b->in)
                return true; /* `p` is b->in already */
            b->in = dp_mem_get(n > 2048 ? HTTP_HEAD_MAX * 2 : 4096, &b->in_cap);
            if (b->in == NULL) {
                back_lost(b);
                return false;
            }
            memcpy(b->in, p, n);
            b->in_len = (uint32_t)n;
            return true;
        }
        if (end < 0) {
            back_lost(b);
            return false;
        }
        if (!head_take(b, p, (size_t)end))
            return false;
        p += end;
        n -= (size_t)end;
        if (p - (size_t)end == b->in &&
            x->state != X_ANSWERING) { /* after an interim head: the rest starts the buffer */
            memmove(b->in, p, n);
            b->in_len = (uint32_t)n;
            p = b->in;
        }
    }
    return n == 0 || body_take(b, p, n);
}

static void head_buffer_free(struct back *b)
{
    dp_mem_put(b->in, b->in_cap);
    b->in = NULL;
    b->in_len = b->in_cap = 0;
}

/* More bytes of a head that came in pieces. */
static bool answer_take_more(struct back *b, const char *p, size_t n)
{
    struct exchange *x = b->x;
    if (b->in_len + n > b->in_cap) {
        uint32_t cap;
        char *q = dp_mem_get(b->in_len + n, &cap);
        if (q == NULL) {
            back_lost(b);
            return false;
        }
        memcpy(q, b->in, b->in_len);
        dp_mem_put(b->in, b->in_cap);
        b->in = q;
        b->in_cap = cap;
    }
    memcpy(b->in + b->in_len, p, n);
    b->in_len += (uint32_t)n;
    bool more = answer_take(b, b->in, b->in_len);
    if (more && x->state == X_ANSWERING)
        head_buffer_free(b);
    return more;
}

/* The service closed its side. */
static void answer_ended(struct back *b)
{
    struct exchange *x = b->x;
    if (b->body == BODY_RAW && x->state == X_ANSWERING) {
        if (!b->raw_in_done) {
            b->raw_in_done = true;
            x->front->finish(x, NULL);
        }
        return;
    }
    if (b->body == BODY_UNTIL_CLOSE && x->state == X_ANSWERING)
        answer_complete(b, NULL);
    else
        back_lost(b);
}

void back1_read(struct back *b)
{
    struct exchange *x = b->x;
    b->in_read = true;
    for (int i = 0; i < ROUNDS && b->x == x && x && b->state == BACK_BUSY; i++) {
        if (x->down.bulk || x->down.in_pipe) {
            enum pump_result r = bulk_down(x, b);
            if (r == PUMP_DONE)
                answer_complete(b, NULL);
            if (r != PUMP_COPY) {
                b->in_read = false;
                return;
            }
        }
        if (x->state == X_ANSWERING && x->front->blocked(x))
            break;
        /* A length leaves no reason to read beyond it; a short last read also saves the read that finds
         * nothing. */
        ssize_t n = dp_io_read(&b->io, b->worker->scratch, exchange_room(x));
        if (n == DP_IO_AGAIN)
            break;
        if (n <= 0) {
            if (n == DP_IO_END)
                answer_ended(b);
            else
                back_lost(b);
            break;
        }
        if (b->in ? !answer_take_more(b, b->worker->scratch, (size_t)n)
                  : !answer_take(b, b->worker->scratch, (size_t)n))
            break;
    }
    b->in_read = false;
    if (b->x != x || x == NULL || b->state != BACK_BUSY)
        return;
    if (x->state == X_ANSWERING) {
        x->front->flush(x);
        if (b->x != x)
            return;
        if (x->front->blocked(x))
            return;
    }
    if ((b->io.readable && !b->io.eof) || b->io.failed)
        dp_defer(b->worker->loop, &b->again);
}
