/* Owns the client side of cube.node.v1 for tools. Invariant: each call waits in its own fiber, so a burst is
 * as many fibers. */
#include "bench/node/client.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/net/fiber.h"
#include "proto/init.pb-c.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CALL_MS 120000

int node_client_open(struct node_client *c, struct loop *l, const char *address, const char *key_dir,
                     struct err *e)
{
    struct rpc_auth auth = {.role = RPC_ROLE_MASTER, .key_dir = key_dir};
    c->loop = l;
    c->creds = rpc_creds_load(&auth, e);
    if (!c->creds)
        return -1;
    c->rpc = rpc_client_new(l, c->creds, address, NULL);
    return 0;
}

struct waiting {
    struct fiber_event done;
    ProtobufCMessage *reply;
    struct err error;
};

static void on_reply(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct waiting *w = data;
    if (reply) { /* it lives only as long as this callback */
        size_t n = protobuf_c_message_get_packed_size(reply);
        uint8_t *copy = malloc(n ? n : 1);
        if (!copy)
            abort();
        protobuf_c_message_pack(reply, copy);
        w->reply = protobuf_c_message_unpack(reply->descriptor, NULL, n, copy);
        free(copy);
    } else {
        w->error = *e;
    }
    fiber_event_set(&w->done);
}

ProtobufCMessage *node_call(struct node_client *c, const char *method, const ProtobufCMessage *in,
                            const ProtobufCMessageDescriptor *out, struct err *e)
{
    char path[80];
    struct waiting w = {0};
    snprintf(path, sizeof path, "/cube.node.v1.Sandboxes/%s", method);
    rpc_unary(c->rpc, path, in, out, CALL_MS, "", on_reply, &w);
    fiber_event_wait(&w.done, -1);
    if (!w.reply && e)
        *e = w.error;
    return w.reply;
}

int node_start(struct node_client *c, const struct node_start *s, Cube__Node__V1__Receipt *receipt,
               struct err *e)
{
    uint8_t ticket[32];
    random_bytes(ticket, sizeof ticket);
    Cube__V1__SandboxSpec spec = CUBE__V1__SANDBOX_SPEC__INIT;
    Cube__V1__Limits limits = CUBE__V1__LIMITS__INIT;
    Cube__Node__V1__StartRequest req = CUBE__NODE__V1__START_REQUEST__INIT;
    spec.sandbox_id = (char *)s->id;
    spec.template_id = (char *)c->template_id;
    spec.auto_pause = s->auto_pause;
    spec.auto_pause_memory = true;
    limits.memory_mib = s->memory_mib;
    spec.limits = &limits;
    req.spec = &spec;
    req.gen = s->gen;
    req.remaining_ms = c->remaining_ms ? c->remaining_ms : 300000;
    req.ticket = (ProtobufCBinaryData){sizeof ticket, ticket};
    req.envd_token = (char *)"token-of-a-test";
    if (s->snapshot_id)
        req.snapshot_id = (char *)s->snapshot_id;
    req.reboot = s->reboot;
    ProtobufCMessage *m = node_call(c, s->restore ? "Restore" : "Start", &req.base,
                                    &cube__node__v1__start_reply__descriptor, e);
    if (!m)
        return -1;
    const Cube__Node__V1__StartReply *r = (Cube__Node__V1__StartReply *)m;
    if (receipt && r->receipt)
        *receipt = *r->receipt;
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

int node_kill(struct node_client *c, const char *id, uint64_t gen, bool *existed, struct err *e)
{
    Cube__Node__V1__KillRequest req = CUBE__NODE__V1__KILL_REQUEST__INIT;
    req.sandbox_id = (char *)id;
    req.gen = gen;
    req.reason = (char *)"test";
    ProtobufCMessage *m = node_call(c, "Kill", &req.base, &cube__node__v1__kill_reply__descriptor, e);
    if (!m)
        return -1;
    if (existed)
        *existed = ((Cube__Node__V1__KillReply *)m)->existed;
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

int node_pause(struct node_client *c, const char *id, uint64_t gen, bool filesystem_only, int64_t *frozen_us,
               int64_t *durable_us, char snapshot_id[64], struct err *e)
{
    Cube__Node__V1__PauseRequest req = CUBE__NODE__V1__PAUSE_REQUEST__INIT;
    req.sandbox_id = (char *)id;
    req.gen = gen;
    req.filesystem_only = filesystem_only;
    ProtobufCMessage *m = node_call(c, "Pause", &req.base, &cube__node__v1__pause_reply__descriptor, e);
    if (!m)
        return -1;
    const Cube__Node__V1__PauseReply *r = (Cube__Node__V1__PauseReply *)m;
    *frozen_us = r->frozen_us;
    *durable_us = r->durable_us;
    snprintf(snapshot_id, 64, "%s", r->snapshot_id);
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

int node_snapshot(struct node_client *c, const char *id, uint64_t gen, const char *snapshot_id,
                  int64_t *frozen_us, struct err *e)
{
    Cube__Node__V1__SnapshotRequest req = CUBE__NODE__V1__SNAPSHOT_REQUEST__INIT;
    req.sandbox_id = (char *)id;
    req.gen = gen;
    req.snapshot_id = (char *)snapshot_id;
    ProtobufCMessage *m = node_call(c, "Snapshot", &req.base, &cube__node__v1__snapshot_reply__descriptor, e);
    if (!m)
        return -1;
    *frozen_us = ((Cube__Node__V1__SnapshotReply *)m)->frozen_us;
    protobuf_c_message_free_unpacked(m, NULL);
    return 0;
}

static bool read_all(int fd, void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = read(fd, (char *)p + at, n - at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        at += (size_t)r;
    }
    return true;
}

static int ctl_connect(const char *run_dir, const char *id, uint64_t gen, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(a.sun_path, sizeof a.sun_path, "%s/sb/%s/%llu/ctl.sock", run_dir, id,
                         (unsigned long long)gen) >= sizeof a.sun_path)
        return err_set(e, ERR_INVALID, "the path of ctl.sock is too long");
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 60};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0 ||
        connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return err_sys(e, ERR_UNAVAILABLE, "connecting to %s", a.sun_path);
    return fd_steal(&fd);
}

static int send_exec(int fd, char *const *argv, const char *user, struct err *e)
{
    Cube__Init__V1__Exec op = CUBE__INIT__V1__EXEC__INIT;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    while (argv[op.n_argv])
        op.n_argv++;
    op.argv = (char **)argv;
    op.user = (char *)user;
    op.timeout_ms = 60000;
    req.id = 1;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_EXEC;
    req.exec = &op;
    size_t n = cube__init__v1__request__get_packed_size(&req);
    _cleanup_free_ uint8_t *data = malloc(n + 4);
    if (!data)
        abort();
    data[0] = (uint8_t)(n >> 24), data[1] = (uint8_t)(n >> 16), data[2] = (uint8_t)(n >> 8),
    data[3] = (uint8_t)n;
    cube__init__v1__request__pack(&req, data + 4);
    return write(fd, data, n + 4) == (ssize_t)(n + 4)
               ? 0
               : err_sys(e, ERR_UNAVAILABLE, "sending a command to the guest");
}

int guest_exec(const char *run_dir, const char *id, uint64_t gen, char *const *argv, const char *user,
               char *out, size_t max, struct err *e)
{
    _cleanup_close_ int fd = ctl_connect(run_dir, id, gen, e);
    if (fd < 0 || send_exec(fd, argv, user, e) < 0)
        return -1;
    size_t len = 0;
    out[0] = 0;
    for (;;) {
        uint8_t head[4];
        static uint8_t body[1 << 20];
        if (!read_all(fd, head, 4))
            return err_sys(e, ERR_UNAVAILABLE, "reading the guest's answer");
        size_t n = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (n > sizeof body || !read_all(fd, body, n))
            return err_set(e, ERR_UNAVAILABLE, "the guest's answer is cut off");
        Cube__Init__V1__Reply *r = cube__init__v1__reply__unpack(NULL, n, body);
        if (!r)
            return err_set(e, ERR_INTERNAL, "the guest's answer cannot be read");
        int code = -2;
        if (*r->error_code)
            code = err_set(e, ERR_INTERNAL, "guest: %s", r->error);
        else if (r->result_case == CUBE__INIT__V1__REPLY__RESULT_EXEC) {
            const ProtobufCBinaryData *part[] = {&r->exec->out, &r->exec->err};
            for (int i = 0; i < 2; i++) {
                size_t take = part[i]->len < max - 1 - len ? part[i]->len : max - 1 - len;
                memcpy(out + len, part[i]->data, take);
                len += take;
            }
            out[len] = 0;
            if (r->exec->ended)
                code = r->exec->signal ? 128 + (int)r->exec->signal : r->exec->exit_code;
        }
        cube__init__v1__reply__free_unpacked(r, NULL);
        if (code != -2)
            return code;
    }
}
