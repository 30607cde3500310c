/* Owns the hooks of hiredis into the h2o loop. h2o closes the descriptor it watches, and so does hiredis:
 * each gets its own (c-libraries.md §1.8). Invariant: after `cleanup` no event reaches the context any more.
 */
#include "lib/net/redis_impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct hook {
    h2o_socket_t *sock;
    redisAsyncContext *ctx;
};

static void on_readable(h2o_socket_t *sock, const char *err)
{
    struct hook *h = sock->data;
    redisAsyncHandleRead(h->ctx); /* may free the context, and with it the hook */
}

static void on_writable(h2o_socket_t *sock, const char *err)
{
    struct hook *h = sock->data;
    redisAsyncHandleWrite(h->ctx);
}

static void add_read(void *data)
{
    struct hook *h = data;
    if (!h2o_socket_is_reading(h->sock))
        h2o_socket_read_start(h->sock, on_readable);
}

static void del_read(void *data)
{
    struct hook *h = data;
    h2o_socket_read_stop(h->sock);
}

static void add_write(void *data)
{
    struct hook *h = data;
    if (!h2o_socket_is_writing(h->sock))
        h2o_socket_notify_write(h->sock, on_writable);
}

static void del_write(void *data)
{
    /* h2o tells once per request; a call with nothing to write does no harm */
}

static void cleanup(void *data)
{
    struct hook *h = data;
    h2o_socket_read_stop(h->sock);
    h2o_socket_close(h->sock);
    free(h);
}

int redis_attach(struct loop *l, redisAsyncContext *ctx)
{
    int fd = fcntl(ctx->c.fd, F_DUPFD_CLOEXEC, 3);
    struct hook *h = calloc(1, sizeof *h);
    if (fd < 0 || !h) {
        if (fd >= 0)
            close(fd);
        free(h);
        return -1;
    }
    h->sock = h2o_evloop_socket_create(loop_h2o(l), fd, H2O_SOCKET_FLAG_DONT_READ);
    h->sock->data = h;
    h->ctx = ctx;
    ctx->ev.data = h;
    ctx->ev.addRead = add_read;
    ctx->ev.delRead = del_read;
    ctx->ev.addWrite = add_write;
    ctx->ev.delWrite = del_write;
    ctx->ev.cleanup = cleanup;
    add_write(h); /* tells when the connection stands */
    return 0;
}
