/* Owns the admin listener: a tiny HTTP/1.1 answerer for people and Prometheus on loopback. Invariant: a
 * request of more than MAX_REQUEST bytes, or one that takes longer than REQUEST_MS, ends the connection. */
#include "lib/net/admin.h"

#include "lib/base/buf.h"
#include "lib/base/sockaddr.h"
#include "lib/net/metrics.h"

#include <stdlib.h>
#include <string.h>

#define MAX_REQUEST 8192
#define REQUEST_MS 10000

struct admin {
    struct loop *loop;
    bool (*ready)(char why[128], void *data);
    void *data;
    struct loop_listener *listener;
    struct admin *next;
};

struct request {
    struct admin *admin;
    h2o_socket_t *sock;
    struct loop_timer timer;
    struct buf out;
};

static void request_end(struct request *q)
{
    loop_timer_stop(q->admin->loop, &q->timer);
    h2o_socket_read_stop(q->sock);
    h2o_socket_close(q->sock);
    buf_free(&q->out);
    free(q);
}

static void on_timeout(struct loop_timer *t)
{
    request_end(H2O_STRUCT_FROM_MEMBER(struct request, timer, t));
}

static void on_written(h2o_socket_t *sock, const char *err)
{
    request_end(sock->data);
}

static void answer(struct request *q, const char *status, const char *body, size_t n, bool head)
{
    h2o_socket_read_stop(q->sock);
    buf_printf(
        &q->out,
        "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\n"
        "Connection: close\r\n\r\n",
        status, n);
    if (!head)
        buf_append(&q->out, body, n);
    if (q->out.failed) {
        request_end(q);
        return;
    }
    h2o_iovec_t v = {q->out.data, q->out.len};
    h2o_socket_write(q->sock, &v, 1, on_written);
}

static bool path_is(const char *path, size_t n, const char *want)
{
    return n == strlen(want) && memcmp(path, want, n) == 0;
}

static void route(struct request *q, const char *path, size_t n, bool head)
{
    _cleanup_buf_ struct buf body = {0};
    char why[128] = "";
    const char *status = "200 OK";
    if (path_is(path, n, "/metrics")) {
        metrics_write(&body);
    } else if (path_is(path, n, "/healthz") ||
               (path_is(path, n, "/readyz") && (!q->admin->ready || q->admin->ready(why, q->admin->data)))) {
        buf_puts(&body, "ok\n");
    } else if (path_is(path, n, "/readyz")) {
        status = "503 Service Unavailable";
        buf_printf(&body, "not ready: %s\n", why);
    } else {
        status = "404 Not Found";
        buf_puts(&body, "here are /metrics, /healthz and /readyz\n");
    }
    answer(q, status, body.data, body.len, head);
}

static void on_read(h2o_socket_t *sock, const char *err)
{
    struct request *q = sock->data;
    if (err) {
        request_end(q);
        return;
    }
    const char *in = sock->input->bytes;
    size_t n = sock->input->size;
    if (n > MAX_REQUEST) {
        answer(q, "431 Request Header Fields Too Large", "", 0, false);
        return;
    }
    if (!memmem(in, n, "\r\n\r\n", 4))
        return;
    const char *space = memchr(in, ' ', n), *line_end = memchr(in, '\r', n);
    const char *path = space ? space + 1 : NULL;
    const char *end = path && path < line_end ? memchr(path, ' ', (size_t)(line_end - path)) : NULL;
    bool get = n > 4 && memcmp(in, "GET ", 4) == 0, head = n > 5 && memcmp(in, "HEAD ", 5) == 0;
    if (!end || path[0] != '/')
        answer(q, "400 Bad Request", "", 0, false);
    else if (!get && !head)
        answer(q, "405 Method Not Allowed", "", 0, false);
    else
        route(q, path, (size_t)(end - path), head);
}

static void on_accepted(h2o_socket_t *sock, void *data)
{
    struct admin *a = data;
    struct request *q = calloc(1, sizeof *q);
    if (!q) {
        h2o_socket_close(sock);
        return;
    }
    *q = (struct request){.admin = a, .sock = sock, .timer.fire = on_timeout};
    sock->data = q;
    loop_timer_start(a->loop, &q->timer, REQUEST_MS);
    h2o_socket_read_start(sock, on_read);
}

/* They live as long as the process; the list says so to a leak checker. */
static struct admin *listeners;

int admin_listen(struct loop *l, const char *address, bool (*ready)(char why[128], void *data), void *data,
                 struct err *e)
{
    struct sockaddr_storage addr;
    socklen_t len;
    if (loop_address_parse(address, &addr, &len, e) < 0)
        return -1;
    if (!sockaddr_is_local((const struct sockaddr *)&addr))
        return err_set(e, ERR_INVALID, "admin_listen %s: the admin listener is for loopback only", address);
    struct admin *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(e, ERR_INTERNAL, "listening on %s: out of memory", address);
    *a = (struct admin){.loop = l, .ready = ready, .data = data};
    struct loop_listener *ln = loop_listen(l, address, false, false, on_accepted, a, e);
    if (!ln) {
        free(a);
        return -1;
    }
    a->listener = ln;
    a->next = listeners;
    listeners = a;
    return loop_listener_port(ln);
}
