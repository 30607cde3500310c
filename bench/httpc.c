/* Owns the connections of the load client; invariant: a connection carries one call, and its answer is read
 * to the last byte before the next is sent. Written for answers of our own programs and nginx, not for
 * hostile ones. */
#include "bench/httpc.h"

#include "lib/base/buf.h"
#include "lib/base/clock.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct call {
    struct buf request;
    httpc_done done;
    void *data;
    struct call *next;
};

struct conn {
    struct httpc *owner;
    h2o_socket_t *sock;
    bool connecting;
    struct call *call;
    int64_t sent_us;
    struct buf body; /* of a chunked answer */
    struct conn *next_idle;
};

struct httpc {
    struct loop *loop;
    int port;
    char *headers;
    struct conn *conns, *idle;
    unsigned n;
    struct call *first, **last;
    struct loop_task task;
};

static void next_call(struct httpc *h);

static void call_free(struct call *c)
{
    buf_free(&c->request);
    free(c);
}

static void finish(struct conn *c, int status, const char *body, size_t n)
{
    struct httpc *h = c->owner;
    struct call *call = c->call;
    int64_t us = clock_mono_us() - c->sent_us;
    c->call = NULL;
    c->next_idle = h->idle;
    h->idle = c;
    if (call) {
        call->done(status, body, n, us, call->data);
        call_free(call);
    }
    loop_defer(h->loop, &h->task);
}

static void broken(struct conn *c)
{
    if (c->sock)
        h2o_socket_close(c->sock);
    c->sock = NULL;
    c->connecting = false;
    if (c->call)
        finish(c, 0, "", 0);
}

static const char *header(const char *head, const char *end, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = memchr(head, '\n', (size_t)(end - head)); p && p + n < end;
         p = memchr(p + 1, '\n', (size_t)(end - p - 1)))
        if (strncasecmp(p + 1, name, n) == 0)
            return p + 1 + n;
    return NULL;
}

/* Gathers chunks into c->body; bytes used when complete, 0 when more is needed. */
static size_t read_chunks(struct conn *c, const char *p, size_t n)
{
    size_t at = 0;
    buf_reset(&c->body);
    for (;;) {
        const char *line = memmem(p + at, n - at, "\r\n", 2);
        if (!line)
            return 0;
        size_t size = strtoul(p + at, NULL, 16);
        at = (size_t)(line - p) + 2;
        if (n < at + size + 2)
            return 0;
        buf_append(&c->body, p + at, size);
        at += size + 2;
        if (size == 0)
            return at;
    }
}

static void on_read(h2o_socket_t *sock, const char *err)
{
    struct conn *c = sock->data;
    if (err || !c->call) {
        broken(c);
        return;
    }
    const char *p = sock->input->bytes;
    size_t n = sock->input->size;
    const char *end = memmem(p, n, "\r\n\r\n", 4);
    if (!end || n < 12)
        return;
    int status = atoi(p + 9);
    size_t head = (size_t)(end - p) + 4, used;
    const char *length = header(p, end + 2, "content-length:"), *body = p + head;
    size_t body_len = length ? strtoul(length, NULL, 10) : 0;
    if (header(p, end + 2, "transfer-encoding:")) {
        used = read_chunks(c, body, n - head);
        if (used == 0)
            return;
        used += head;
        body = c->body.data ? c->body.data : "";
        body_len = c->body.len;
    } else {
        if (n < head + body_len)
            return;
        used = head + body_len;
    }
    bool close_it = header(p, end + 2, "connection: close") != NULL;
    finish(c, status, body, body_len);
    h2o_buffer_consume(&sock->input, used);
    if (close_it) {
        h2o_socket_close(sock);
        c->sock = NULL;
    }
}

static void on_written(h2o_socket_t *sock, const char *err)
{
    if (err)
        broken(sock->data);
}

static void send_call(struct conn *c)
{
    h2o_iovec_t v = {c->call->request.data, c->call->request.len};
    c->sent_us = clock_mono_us();
    h2o_socket_write(c->sock, &v, 1, on_written);
}

static void on_connected(h2o_socket_t *sock, const char *err)
{
    struct conn *c = sock->data;
    int on = 1;
    c->connecting = false;
    if (err) {
        broken(c);
        return;
    }
    setsockopt(h2o_socket_get_fd(sock), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    h2o_socket_read_start(sock, on_read);
    send_call(c);
}

static void start(struct conn *c)
{
    if (c->sock) {
        send_call(c);
        return;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->owner->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->connecting = true;
    c->sent_us = clock_mono_us();
    c->sock = h2o_socket_connect(loop_h2o(c->owner->loop), (struct sockaddr *)&a, sizeof a, on_connected);
    if (c->sock)
        c->sock->data = c;
    else
        broken(c);
}

static void next_call(struct httpc *h)
{
    while (h->first && h->idle) {
        struct conn *c = h->idle;
        h->idle = c->next_idle;
        c->call = h->first;
        h->first = c->call->next;
        if (!h->first)
            h->last = &h->first;
        start(c);
    }
}

static void on_task(struct loop_task *t)
{
    next_call(H2O_STRUCT_FROM_MEMBER(struct httpc, task, t));
}

struct httpc *httpc_new(struct loop *l, int port, unsigned connections, const char *headers)
{
    struct httpc *h = calloc(1, sizeof *h);
    if (!h)
        abort();
    *h = (struct httpc){
        .loop = l, .port = port, .headers = strdup(headers), .n = connections, .task.run = on_task};
    h->last = &h->first;
    h->conns = calloc(connections, sizeof *h->conns);
    for (unsigned i = 0; i < connections; i++) {
        h->conns[i] = (struct conn){.owner = h, .next_idle = h->idle};
        h->idle = &h->conns[i];
    }
    return h;
}

void httpc_free(struct httpc *h)
{
    if (!h)
        return;
    loop_defer_cancel(h->loop, &h->task);
    for (unsigned i = 0; i < h->n; i++) {
        if (h->conns[i].sock)
            h2o_socket_close(h->conns[i].sock);
        if (h->conns[i].call)
            call_free(h->conns[i].call);
        buf_free(&h->conns[i].body);
    }
    while (h->first) {
        struct call *c = h->first;
        h->first = c->next;
        call_free(c);
    }
    free(h->conns);
    free(h->headers);
    free(h);
}

void httpc_call(struct httpc *h, const char *method, const char *path, const char *type, const void *body,
                size_t len, httpc_done done, void *data)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    *c = (struct call){.done = done, .data = data};
    buf_printf(&c->request, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s", method, path, h->port, h->headers);
    if (type)
        buf_printf(&c->request, "Content-Type: %s\r\nContent-Length: %zu\r\n", type, len);
    buf_puts(&c->request, "\r\n");
    if (type)
        buf_append(&c->request, body, len);
    *h->last = c;
    h->last = &c->next;
    loop_defer(h->loop, &h->task);
}
