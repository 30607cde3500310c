/* Accepting connections, and finding the route of a request: who may ask what, and when. Invariant: in a VM
 * nothing but /health is served before the identity is set and while frozen, and internal paths exist only on
 * the control connection. */
#include "guest/envd/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "guest/common/peer.h"
#include "guest/envd/conn.h"
#include "guest/envd/files.h"
#include "guest/envd/fs_rpc.h"
#include "guest/envd/messages.h"
#include "guest/envd/platform_api.h"
#include "guest/envd/process_rpc.h"
#include "guest/envd/rpc.h"
#include "guest/envd/state.h"
#include "guest/envd/watch.h"

#define BACKLOG 1024
#define ACCEPTS_PER_EVENT 64
#define RPC_BODY_MAX ((size_t)16 << 20)
#define JSON_BODY_MAX ((size_t)4 << 20)

static unsigned limit = 1024;

static const struct route routes[] = {
    {.method = "GET", .path = "/health", .body_max = 4096, .open = true, .early = true, .handle = api_health},
    {.method = "GET", .path = "/metrics", .body_max = 4096, .handle = api_metrics},
    {.method = "GET", .path = "/envs", .body_max = 4096, .handle = api_envs},
    {.method = "GET", .path = "/files", .body_max = 4096, .open = true, .handle = files_get},
    {.method = "POST", .path = "/files", .mode = BODY_OWN, .open = true, .handle = files_post},
    {.method = "POST", .path = "/files/compose", .body_max = JSON_BODY_MAX, .handle = files_compose},
    {.method = "POST",
     .path = "/init",
     .body_max = JSON_BODY_MAX,
     .open = true,
     .early = true,
     .internal = true,
     .handle = api_init},
    {.method = "POST",
     .path = "/freeze",
     .body_max = 4096,
     .early = true,
     .internal = true,
     .handle = api_freeze},
    {.method = "POST",
     .path = "/unfreeze",
     .body_max = 4096,
     .early = true,
     .internal = true,
     .handle = api_unfreeze},
    {.method = "POST",
     .path = "/fsfreeze",
     .body_max = 4096,
     .early = true,
     .internal = true,
     .handle = api_fsfreeze},
    {.method = "POST",
     .path = "/fsthaw",
     .body_max = 4096,
     .early = true,
     .internal = true,
     .handle = api_nothing},
    {.method = "POST",
     .path = "/collapse",
     .body_max = 4096,
     .early = true,
     .internal = true,
     .handle = api_nothing},
    {.method = "POST",
     .path = "/upgrade",
     .body_max = 4096,
     .early = true,
     .internal = true,
     .handle = api_nothing},
};

static const struct rpc_method methods[] = {
    {"/process.Process/List", RPC_UNARY, &msg_empty, process_list},
    {"/process.Process/Start", RPC_SERVER_STREAM, &msg_start, process_start_call},
    {"/process.Process/Connect", RPC_SERVER_STREAM, &msg_select, process_connect},
    {"/process.Process/Update", RPC_UNARY, &msg_update, process_update},
    {"/process.Process/SendInput", RPC_UNARY, &msg_send_input, process_send_input},
    {"/process.Process/StreamInput", RPC_CLIENT_STREAM, &msg_stream_input, process_stream_input},
    {"/process.Process/SendSignal", RPC_UNARY, &msg_signal, process_send_signal},
    {"/process.Process/CloseStdin", RPC_UNARY, &msg_select, process_close_stdin},
    {"/filesystem.Filesystem/Stat", RPC_UNARY, &msg_path, fs_rpc_stat},
    {"/filesystem.Filesystem/ListDir", RPC_UNARY, &msg_list_dir, fs_rpc_list},
    {"/filesystem.Filesystem/MakeDir", RPC_UNARY, &msg_path, fs_rpc_mkdir},
    {"/filesystem.Filesystem/Move", RPC_UNARY, &msg_move, fs_rpc_move},
    {"/filesystem.Filesystem/Remove", RPC_UNARY, &msg_path, fs_rpc_remove},
    {"/filesystem.Filesystem/WatchDir", RPC_SERVER_STREAM, &msg_watch, watch_dir},
    {"/filesystem.Filesystem/CreateWatcher", RPC_UNARY, &msg_watch, watch_create},
    {"/filesystem.Filesystem/GetWatcherEvents", RPC_UNARY, &msg_watcher, watch_events},
    {"/filesystem.Filesystem/RemoveWatcher", RPC_UNARY, &msg_watcher, watch_remove},
};

static const struct route rpc_whole = {
    .method = "POST", .path = "", .body_max = RPC_BODY_MAX, .handle = rpc_handle};
static const struct route rpc_pieces = {
    .method = "POST", .path = "", .mode = BODY_PIECES, .handle = rpc_handle};

const struct rpc_method *rpc_find(const char *path)
{
    for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++)
        if (!strcmp(methods[i].path, path))
            return &methods[i];
    return NULL;
}

static void not_found(struct conn *c, const char *path)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kstr(&w, "message", "not found");
    jsonw_kstr(&w, "path", path);
    jsonw_kint(&w, "code", 404);
    jsonw_obj_end(&w);
    conn_reply(c, 404, "application/json; charset=utf-8", NULL, b.data, b.len);
}

static const struct route *find(struct conn *c, const char *method, const char *path)
{
    const struct rpc_method *m = rpc_find(path);
    const struct route *r = m ? (m->kind == RPC_CLIENT_STREAM ? &rpc_pieces : &rpc_whole) : NULL;
    bool known = r != NULL;
    for (size_t i = 0; !m && i < sizeof(routes) / sizeof(*routes); i++) {
        bool here = !strcmp(routes[i].path, path) && !(routes[i].internal && state.in_vm && !c->trusted);
        known = known || here;
        if (here && !strcmp(routes[i].method, method))
            r = &routes[i];
    }
    if (r && !strcmp(r->method, method))
        return r;
    if (known)
        conn_error(c, 405, "method not allowed");
    else
        not_found(c, path);
    return NULL;
}

static void preflight(struct conn *c)
{
    conn_reply(c, 204, NULL,
               "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\nAccess-Control-Allow-Headers: *, "
               "Authorization\r\n"
               "Access-Control-Max-Age: 7200\r\n",
               NULL, 0);
}

const struct route *conn_route(struct conn *c, const struct http_req *http, const char *path)
{
    if (!strcmp(http->method, "OPTIONS")) {
        preflight(c);
        return NULL;
    }
    const struct route *r = find(c, http->method, path);
    if (!r || c->trusted || r->early)
        return r;
    if (state.in_vm && !state.ready) {
        conn_error(c, 503, "the sandbox has no identity yet");
        return NULL;
    }
    if (state.frozen) {
        conn_error(c, 503, "the sandbox is frozen");
        return NULL;
    }
    if (!r->open && !state_token_matches(http_header(http, "x-access-token"))) {
        conn_error(c, 401,
                   "unauthorized access, please provide a valid access token or method signing if supported");
        return NULL;
    }
    return r;
}

void server_limit(unsigned connections)
{
    limit = connections;
}

static void on_accept(void *owner, uint32_t events)
{
    struct ev *ev = owner;
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        struct sockaddr_storage from;
        socklen_t n = sizeof(from);
        if (conn_count() >= limit)
            conn_close_idlest();
        int fd = accept4(ev->fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            conn_close_idlest();
            return;
        }
        if (fd < 0)
            return;
        if (peer_is_guest(&from)) {
            close(fd);
            continue;
        }
        int one = 1;
        bool tcp = from.ss_family == AF_INET || from.ss_family == AF_INET6;
        if (tcp)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        conn_open(fd, false, tcp);
    }
}

int server_listen_fd(int fd)
{
    static struct ev listeners[8];
    static unsigned used;
    if (used == sizeof(listeners) / sizeof(*listeners)) {
        errno = EMFILE;
        return -1;
    }
    struct ev *ev = &listeners[used++];
    *ev = (struct ev){.fd = fd, .cb = on_accept, .owner = ev};
    return ev_watch(ev, EPOLLIN);
}

static int listen_on(int fd, const struct sockaddr *addr, socklen_t n)
{
    if (bind(fd, addr, n) == 0 && listen(fd, BACKLOG) == 0)
        return server_listen_fd(fd);
    int sys = errno;
    close(fd);
    errno = sys;
    return -1;
}

int server_listen_tcp(const char *address, uint16_t port)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool v4 = inet_pton(AF_INET, address, &a4.sin_addr) == 1;
    if (!v4 && inet_pton(AF_INET6, address, &a6.sin6_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    int one = 1, fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (!v4)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if ((v4 ? listen_on(fd, (struct sockaddr *)&a4, sizeof(a4))
            : listen_on(fd, (struct sockaddr *)&a6, sizeof(a6))) < 0)
        return -1;
    struct sockaddr_storage bound;
    socklen_t n = sizeof(bound);
    if (getsockname(fd, (struct sockaddr *)&bound, &n) < 0)
        return -1;
    return ntohs(v4 ? ((struct sockaddr_in *)&bound)->sin_port : ((struct sockaddr_in6 *)&bound)->sin6_port);
}
