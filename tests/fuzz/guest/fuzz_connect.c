/* A whole connection: bytes from a client through HTTP and Connect into echoing methods of each kind, over a
 * real socket and the real event loop. No process is started and no file is touched. */
#include "guest/envd/messages.h"
#include "guest/envd/rpc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void on_unary(struct rpc *r, void *request)
{
    const struct msg_path *m = request;
    struct user u;
    if (rpc_user(r, &u) == 0)
        rpc_reply(r, m->path, strlen(m->path));
}

static void on_stream(struct rpc *r, void *request)
{
    rpc_message(r, "{}", 2);
    rpc_end(r);
}

static void on_message(struct rpc *r, void *message)
{
    const struct msg_stream_input *m = message;
    if (m->has_data && m->data.input.in.n > 100)
        rpc_fail(r, RPC_OUT_OF_RANGE, "too much");
}

static void on_messages_end(struct rpc *r)
{
    rpc_reply(r, NULL, 0);
}

static void on_client_stream(struct rpc *r, void *request)
{
    r->on_message = on_message;
    r->on_end = on_messages_end;
}

static const struct rpc_method methods[] = {
    {"/u", RPC_UNARY, &msg_path, on_unary},
    {"/s", RPC_SERVER_STREAM, &msg_start, on_stream},
    {"/c", RPC_CLIENT_STREAM, &msg_stream_input, on_client_stream},
};
static const struct route whole = {.method = "POST", .path = "", .body_max = 4096, .handle = rpc_handle};
static const struct route pieces = {.method = "POST", .path = "", .mode = BODY_PIECES, .handle = rpc_handle};

const struct rpc_method *rpc_find(const char *path)
{
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(methods[i].path, path))
            return &methods[i];
    return NULL;
}

const struct route *conn_route(struct conn *c, const struct http_req *http, const char *path)
{
    const struct rpc_method *m = rpc_find(path);
    if (m)
        return m->kind == RPC_CLIENT_STREAM ? &pieces : &whole;
    conn_error(c, 404, "no such path");
    return NULL;
}

/* Ends the run when the daemon's side is closed, or has nothing more to do. */
static void on_idle(void *owner)
{
    loop_stop();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool opened;
    static struct timer idle = {.cb = on_idle};
    int fd[2];
    char drop[4096];
    if (!opened && loop_open() < 0)
        abort();
    opened = true;
    if (n > 60000 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) < 0)
        return 0;
    if (write(fd[1], data, n) < 0)
        abort();
    shutdown(fd[1], SHUT_WR);
    conn_open(fd[0], false, true);
    for (int i = 0; i < 4 && conn_count(); i++) {
        timer_set(&idle, 0);
        loop_run();
        while (read(fd[1], drop, sizeof(drop)) > 0)
            continue;
    }
    close(fd[1]);
    while (conn_count()) { /* what waits for the peer dies with it */
        timer_set(&idle, 0);
        loop_run();
        conn_close_idlest();
    }
    return 0;
}
