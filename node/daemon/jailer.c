/* Owns the connection to cube-jailer. Invariant: at most one connection; a request while there is none fails
 * at once with ERR_UNAVAILABLE instead of waiting, except in jailer_wait. */
#include "node/daemon/jailer.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/adopt.h"
#include "node/daemon/peer.h"
#include "node/daemon/vm.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define JAILER_VERSION 1
#define ANSWER_MS 10000
#define RETRY_MS 200
#define KILL_STEP_MS 5

struct jailer {
    struct node *node;
    struct peer *peer;
    bool greeted;
    bool complained;
};

static void on_event(const ProtobufCMessage *m, void *data)
{
    struct jailer *j = data;
    const Cube__Jailer__V1__Reply *r = (const Cube__Jailer__V1__Reply *)m;
    if (r->result_case == CUBE__JAILER__V1__REPLY__RESULT_ENDED)
        vm_on_ended(j->node, r->ended->name, r->ended->status, r->ended->oom, r->ended->host_oom);
}

static int dial(struct jailer *j, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = j->node->cfg.jailer_socket;
    if ((size_t)snprintf(a.sun_path, sizeof a.sun_path, "%s", path) >= sizeof a.sun_path)
        return err_set(e, ERR_INVALID, "the path of the jailer's socket is too long: %s", path);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return err_sys(e, ERR_UNAVAILABLE, "connecting to the jailer at %s", path);
    j->peer = peer_new(j->node->loop, fd_steal(&fd),
                       &(struct peer_config){.name = "jailer",
                                             .framing = PEER_PACKET,
                                             .data = j,
                                             .event = on_event,
                                             .reply = &cube__jailer__v1__reply__descriptor});
    Cube__Jailer__V1__Hello hello = CUBE__JAILER__V1__HELLO__INIT;
    hello.version = JAILER_VERSION;
    Cube__Jailer__V1__Request req = CUBE__JAILER__V1__REQUEST__INIT;
    req.op_case = CUBE__JAILER__V1__REQUEST__OP_HELLO;
    req.hello = &hello;
    if (peer_call(j->peer, &req.base, NULL, 0, ANSWER_MS, NULL, e) < 0)
        return -1;
    j->greeted = true;
    return 0;
}

/* What ended while nobody listened. */
static void catch_up(struct jailer *j)
{
    struct peer_reply reply _cleanup_reply_ = {0};
    const Cube__Jailer__V1__Listed *list;
    if (jailer_list(j, &reply, &list, NULL) < 0)
        return;
    for (size_t i = 0; i < list->n_vms; i++)
        if (!list->vms[i]->alive)
            vm_on_ended(j->node, list->vms[i]->name, list->vms[i]->status, list->vms[i]->oom,
                        list->vms[i]->host_oom);
}

static void keep_connected(void *arg)
{
    struct jailer *j = arg;
    while (!j->node->stopping) {
        struct err e = {0};
        if (!j->peer && dial(j, &e) == 0) {
            log_info("connected to the jailer at %s", j->node->cfg.jailer_socket);
            j->complained = false;
            catch_up(j);
            if (j->node->ready)
                sweep(j->node); /* what could not be ended while it was away */
        } else if (e.code && !j->complained) {
            log_fail(&e, "no jailer yet");
            j->complained = true;
        }
        if (j->peer && peer_is_closed(j->peer)) {
            if (j->greeted)
                log_warn("the jailer went away; VMs go on, nothing can be started until it is back");
            j->greeted = false;
        }
        if (j->peer && !j->greeted) {
            peer_free(j->peer);
            j->peer = NULL;
        }
        fiber_sleep(RETRY_MS);
    }
}

struct jailer *jailer_new(struct node *n)
{
    struct jailer *j = calloc(1, sizeof *j);
    if (!j)
        abort();
    j->node = n;
    fiber_spawn(keep_connected, j);
    return j;
}

bool jailer_connected(const struct jailer *j)
{
    return j->greeted && !peer_is_closed(j->peer);
}

int jailer_wait(struct jailer *j, int64_t timeout_ms, struct err *e)
{
    for (int64_t waited = 0; !jailer_connected(j); waited += 50) {
        if (waited >= timeout_ms)
            return err_set(e, ERR_UNAVAILABLE, "no cube-jailer at %s", j->node->cfg.jailer_socket);
        fiber_sleep(50);
    }
    return 0;
}

static int call(struct jailer *j, Cube__Jailer__V1__Request *req, struct peer_reply *out, struct err *e)
{
    if (!jailer_connected(j)) {
        err_set(e, ERR_UNAVAILABLE, "no cube-jailer at %s", j->node->cfg.jailer_socket);
        return err_remedy(e, "start cube-jailer");
    }
    return peer_call(j->peer, &req->base, NULL, 0, ANSWER_MS, out, e);
}

int jailer_spawn(struct jailer *j, const char *name, const Cube__Jailer__V1__Limits *limits,
                 uint32_t memory_mib, uint32_t vcpus, struct spawned *out, struct err *e)
{
    Cube__Jailer__V1__Spawn op = CUBE__JAILER__V1__SPAWN__INIT;
    op.name = (char *)name;
    op.limits = (Cube__Jailer__V1__Limits *)limits;
    op.memory_mib = memory_mib;
    op.vcpus = vcpus;
    Cube__Jailer__V1__Request req = CUBE__JAILER__V1__REQUEST__INIT;
    req.op_case = CUBE__JAILER__V1__REQUEST__OP_SPAWN;
    req.spawn = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(j, &req, &reply, e) < 0)
        return -1;
    const Cube__Jailer__V1__Reply *r = (const Cube__Jailer__V1__Reply *)reply.message;
    if (r->result_case != CUBE__JAILER__V1__REPLY__RESULT_SPAWN ||
        strlen(r->spawn->socket) >= sizeof out->socket)
        return err_set(e, ERR_INTERNAL, "the jailer answered something else to Spawn %s", name);
    *out = (struct spawned){.pid = r->spawn->pid, .start_time = r->spawn->start_time, .control_fd = -1};
    snprintf(out->socket, sizeof out->socket, "%s", r->spawn->socket);
    if (reply.fd_count >= 2)
        out->control_fd = fd_steal(
            &reply.fds[1]); /* the first one is the pidfd; the jailer reaps, so it is not needed here */
    return 0;
}

int jailer_dns_sockets(struct jailer *j, int fds[2], struct err *e)
{
    Cube__Jailer__V1__DnsSockets op = CUBE__JAILER__V1__DNS_SOCKETS__INIT;
    Cube__Jailer__V1__Request req = CUBE__JAILER__V1__REQUEST__INIT;
    req.op_case = CUBE__JAILER__V1__REQUEST__OP_DNS_SOCKETS;
    req.dns_sockets = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(j, &req, &reply, e) < 0)
        return -1;
    if (reply.fd_count < 2)
        return err_set(e, ERR_INTERNAL, "the jailer passed no sockets for the name service");
    fds[0] = fd_steal(&reply.fds[0]);
    fds[1] = fd_steal(&reply.fds[1]);
    return 0;
}

static int named(struct jailer *j, int op, const char *name, struct peer_reply *out, struct err *e)
{
    Cube__Jailer__V1__Kill kill = CUBE__JAILER__V1__KILL__INIT;
    Cube__Jailer__V1__Forget forget = CUBE__JAILER__V1__FORGET__INIT;
    Cube__Jailer__V1__MakeTap make = CUBE__JAILER__V1__MAKE_TAP__INIT;
    Cube__Jailer__V1__DropTap drop = CUBE__JAILER__V1__DROP_TAP__INIT;
    kill.name = forget.name = make.name = drop.name = (char *)name;
    Cube__Jailer__V1__Request req = CUBE__JAILER__V1__REQUEST__INIT;
    req.op_case = op;
    if (op == CUBE__JAILER__V1__REQUEST__OP_KILL)
        req.kill = &kill;
    else if (op == CUBE__JAILER__V1__REQUEST__OP_FORGET)
        req.forget = &forget;
    else if (op == CUBE__JAILER__V1__REQUEST__OP_MAKE_TAP)
        req.make_tap = &make;
    else
        req.drop_tap = &drop;
    struct err own = {0};
    int rc = call(j, &req, out, &own);
    if (rc < 0 && own.code == ERR_NOT_FOUND)
        return 0;
    if (rc < 0 && e)
        *e = own;
    return rc;
}

int jailer_kill(struct jailer *j, const char *name, struct err *e)
{
    struct err own;
    int rc;
    char vm[VM_NAME_MAX * 2]; /* whoever kills it as well may free the VM that the name belongs to */
    snprintf(vm, sizeof vm, "%s", name);
    for (int64_t waited = 0;; waited += KILL_STEP_MS) {
        own = (struct err){0};
        rc = named(j, CUBE__JAILER__V1__REQUEST__OP_KILL, vm, NULL, &own);
        if (rc == 0 || own.code != ERR_CONFLICT || waited >= ANSWER_MS)
            break;
        fiber_sleep(KILL_STEP_MS); /* somebody else's kill is under way: this one ends with it */
    }
    if (rc < 0 && e)
        *e = own;
    return rc;
}

int jailer_forget(struct jailer *j, const char *name, struct err *e)
{
    return named(j, CUBE__JAILER__V1__REQUEST__OP_FORGET, name, NULL, e);
}

int jailer_drop_tap(struct jailer *j, const char *name, struct err *e)
{
    return named(j, CUBE__JAILER__V1__REQUEST__OP_DROP_TAP, name, NULL, e);
}

int jailer_make_tap(struct jailer *j, const char *name, int *fd, struct err *e)
{
    struct peer_reply reply _cleanup_reply_ = {0};
    if (named(j, CUBE__JAILER__V1__REQUEST__OP_MAKE_TAP, name, &reply, e) < 0)
        return -1;
    if (reply.fd_count < 1)
        return err_set(e, ERR_INTERNAL, "the jailer made TAP %s but passed no descriptor", name);
    *fd = fd_steal(&reply.fds[0]);
    return 0;
}

int jailer_set_limits(struct jailer *j, const char *name, const Cube__Jailer__V1__Limits *limits,
                      struct err *e)
{
    Cube__Jailer__V1__SetLimits op = CUBE__JAILER__V1__SET_LIMITS__INIT;
    op.name = (char *)name;
    op.limits = (Cube__Jailer__V1__Limits *)limits;
    Cube__Jailer__V1__Request req = CUBE__JAILER__V1__REQUEST__INIT;
    req.op_case = CUBE__JAILER__V1__REQUEST__OP_SET_LIMITS;
    req.set_limits = &op;
    return call(j, &req, NULL, e);
}

int jailer_list(struct jailer *j, struct peer_reply *out, const Cube__Jailer__V1__Listed **list,
                struct err *e)
{
    Cube__Jailer__V1__List op = CUBE__JAILER__V1__LIST__INIT;
    Cube__Jailer__V1__Request req = CUBE__JAILER__V1__REQUEST__INIT;
    req.op_case = CUBE__JAILER__V1__REQUEST__OP_LIST;
    req.list = &op;
    if (call(j, &req, out, e) < 0)
        return -1;
    const Cube__Jailer__V1__Reply *r = (const Cube__Jailer__V1__Reply *)out->message;
    if (r->result_case != CUBE__JAILER__V1__REPLY__RESULT_LIST)
        return err_set(e, ERR_INTERNAL, "the jailer answered something else to List");
    *list = r->list;
    return 0;
}
