/* The control loop: the process's main thread. Invariant: one request at a time, each gets exactly one reply;
 * descriptors that a request brought and nobody took are closed before the next one. */
#include "node/vmm/control.h"

#include "lib/base/log.h"
#include "node/vmm/late.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef Cube__Vmm__V1__Request Request;
typedef Cube__Vmm__V1__Reply Reply;

int control_take(struct control_fds *f, uint32_t index, const char *what, struct err *e)
{
    if (index >= f->n || f->fd[index] < 0)
        return err_set(e, ERR_INVALID, "descriptor %u (%s) was not sent with the request", index, what);
    int fd = f->fd[index];
    f->fd[index] = -1;
    return fd;
}

static void fds_close(struct control_fds *f)
{
    for (unsigned i = 0; i < f->n; i++)
        if (f->fd[i] >= 0)
            close(f->fd[i]);
    f->n = 0;
}

/* One datagram with its descriptors; 0 = the peer is gone, -1 = nothing usable. */
static ssize_t receive(int sock, uint8_t *data, size_t room, struct control_fds *fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * CONTROL_FDS_MAX)];
    } anc;
    struct iovec iov = {data, room};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = anc.bytes, .msg_controllen = sizeof anc.bytes};

    fds->n = 0;
    ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned k = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < k && fds->n < CONTROL_FDS_MAX; i++)
            memcpy(&fds->fd[fds->n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        fds_close(fds);
        return -1;
    }
    return n;
}

static void reply_send(int sock, const Reply *r)
{
    uint8_t out[4096];
    size_t n = cube__vmm__v1__reply__get_packed_size(r);

    if (sock < 0 || n > sizeof out)
        return;
    cube__vmm__v1__reply__pack(r, out);
    if (send(sock, out, n, MSG_NOSIGNAL) < 0)
        log_warn("control: answer not delivered: %s", strerror(errno));
}

static const char *state_name(const struct vm *vm)
{
    if (vm->end != VM_ALIVE)
        return "ended";
    if (!vm->booted)
        return "ready";
    return vm->running ? "running" : "frozen";
}

static void hello_fill(struct vm *vm, Cube__Vmm__V1__HelloReply *h)
{
    h->version = CONTROL_VERSION;
    h->pid = (uint32_t)getpid();
    h->state = (char *)state_name(vm);
    h->sandbox_id = vm->sandbox_id;
    h->gen = vm->gen;
    h->kvm_kind = vm->kind == KVM_PVM ? "pvm" : "hardware";
    h->cpu_class = vm->cpu_class;
    h->device_layout = VM_LAYOUT_VERSION;
}

struct control {
    struct vm *vm;
    int listen_fd, client;
    bool greeted; /* the client said hello */
    bool quit;    /* after this reply the process ends */
    int status;
};

static int require(struct vm *vm, bool booted, struct err *e)
{
    if (vm->end != VM_ALIVE)
        return err_set(e, ERR_CONFLICT, "the guest has ended");
    if (vm->booted != booted)
        return err_set(e, ERR_CONFLICT,
                       booted ? "no guest is in this process yet" : "a guest is in this process already");
    return 0;
}

/* The bodies of the results live here while the reply is sent. */
union bodies {
    Cube__Vmm__V1__HelloReply hello;
    Cube__Vmm__V1__Started started;
    Cube__Vmm__V1__SnapshotDone snapshot;
    Cube__Vmm__V1__Stats stats;
};

static int start_guest(struct control *c, const Request *q, struct control_fds *fds, Reply *r,
                       union bodies *b, struct err *e)
{
    bool boot = q->op_case == CUBE__VMM__V1__REQUEST__OP_BOOT;

    if (require(c->vm, false, e) < 0)
        return -1;
    cube__vmm__v1__started__init(&b->started);
    int rc = boot ? op_boot(c->vm, q->boot, fds, &b->started, e)
                  : op_restore(c->vm, q->restore, fds, &b->started, e);
    if (rc < 0) { /* half made: not to be used again */
        c->quit = true;
        c->status = VM_END_ERROR;
        return -1;
    }
    r->result_case = CUBE__VMM__V1__REPLY__RESULT_STARTED;
    r->started = &b->started;
    return 0;
}

static int dispatch(struct control *c, const Request *q, struct control_fds *fds, Reply *r, union bodies *b,
                    struct err *e)
{
    struct vm *vm = c->vm;

    if (q->op_case == CUBE__VMM__V1__REQUEST__OP_HELLO) {
        if (q->hello->version < 1)
            return err_set(e, ERR_UNSUPPORTED, "control protocol version %u", q->hello->version);
        c->greeted = true;
        cube__vmm__v1__hello_reply__init(&b->hello);
        hello_fill(vm, &b->hello);
        r->result_case = CUBE__VMM__V1__REPLY__RESULT_HELLO;
        r->hello = &b->hello;
        return 0;
    }
    if (!c->greeted)
        return err_set(e, ERR_INVALID, "the first message must be hello");
    switch (q->op_case) {
    case CUBE__VMM__V1__REQUEST__OP_BOOT:
    case CUBE__VMM__V1__REQUEST__OP_RESTORE:
        return start_guest(c, q, fds, r, b, e);
    case CUBE__VMM__V1__REQUEST__OP_SNAPSHOT:
        if (require(vm, true, e) < 0)
            return -1;
        cube__vmm__v1__snapshot_done__init(&b->snapshot);
        r->result_case = CUBE__VMM__V1__REPLY__RESULT_SNAPSHOT;
        r->snapshot = &b->snapshot;
        return op_snapshot(vm, q->snapshot, fds, &b->snapshot, e);
    case CUBE__VMM__V1__REQUEST__OP_WORKING_SET:
        return require(vm, true, e) < 0 ? -1 : op_working_set(vm, q->working_set, fds, e);
    case CUBE__VMM__V1__REQUEST__OP_GET_STATS:
        cube__vmm__v1__stats__init(&b->stats);
        op_stats(vm, &b->stats);
        r->result_case = CUBE__VMM__V1__REPLY__RESULT_STATS;
        r->stats = &b->stats;
        return 0;
    case CUBE__VMM__V1__REQUEST__OP_FREEZE:
        if (require(vm, true, e) < 0)
            return -1;
        vm_stop(vm);
        return 0;
    case CUBE__VMM__V1__REQUEST__OP_THAW:
        if (require(vm, true, e) < 0)
            return -1;
        vm_go(vm);
        return 0;
    case CUBE__VMM__V1__REQUEST__OP_RESIZE:
        return require(vm, true, e) < 0 ? -1 : op_resize(vm, q->resize, e);
    case CUBE__VMM__V1__REQUEST__OP_SHUTDOWN:
        c->quit = true;
        return 0;
    default:
        return err_set(e, ERR_UNSUPPORTED, "unknown request %d", q->op_case);
    }
}

static void request_handle(struct control *c, const uint8_t *data, size_t n, struct control_fds *fds)
{
    Reply r = CUBE__VMM__V1__REPLY__INIT;
    struct err e = {0};
    union bodies b;
    Request *q = cube__vmm__v1__request__unpack(NULL, n, data);

    if (!q) {
        err_set(&e, ERR_INVALID, "the request cannot be parsed");
    } else {
        r.id = q->id;
        if (dispatch(c, q, fds, &r, &b, &e) < 0)
            r.result_case = CUBE__VMM__V1__REPLY__RESULT__NOT_SET;
    }
    if (e.code != ERR_OK) {
        r.error_code = (char *)err_code_name(e.code);
        r.error = e.msg;
        log_warn("control: %s", e.msg);
    }
    reply_send(c->client, &r);
    if (q && q->op_case == CUBE__VMM__V1__REQUEST__OP_RESTORE && e.code == ERR_OK)
        op_restore_after(c->vm);
    if (q)
        cube__vmm__v1__request__free_unpacked(q, NULL);
}

static void client_drop(struct control *c)
{
    if (c->client >= 0)
        close(c->client);
    c->client = -1;
    c->greeted = false;
}

static void client_read(struct control *c)
{
    static uint8_t data[CONTROL_MESSAGE_MAX];
    struct control_fds fds;
    ssize_t n = receive(c->client, data, sizeof data, &fds);

    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {
        client_drop(c);
        return;
    }
    if (n > 0)
        request_handle(c, data, (size_t)n, &fds);
    fds_close(&fds);
}

static void exit_event(struct control *c)
{
    Cube__Vmm__V1__Exit x = CUBE__VMM__V1__EXIT__INIT;
    Reply r = CUBE__VMM__V1__REPLY__INIT;

    vm_stop(c->vm);
    serial_flush(&c->vm->serial);
    x.reason = c->vm->end == VM_END_RESET ? "reset" : c->vm->end == VM_END_PANIC ? "panic" : "error";
    x.detail = c->vm->end_detail;
    r.result_case = CUBE__VMM__V1__REPLY__RESULT_EXIT;
    r.exit = &x;
    reply_send(c->client, &r);
    log_info("guest ended: %s: %s", x.reason, x.detail);
    c->status = (int)c->vm->end;
    c->quit = true;
}

int control_serve(struct vm *vm, int listen_fd)
{
    struct control c = {.vm = vm, .listen_fd = listen_fd, .client = -1};

    while (!c.quit) {
        struct pollfd p[] = {{vm->end_fd, POLLIN, 0},
                             {listen_fd, POLLIN, 0},
                             {c.client, POLLIN, 0},
                             {vm->vsock.late_fd, POLLIN, 0}};

        if (poll(p, 4, -1) < 0)
            continue;
        if (p[0].revents) {
            exit_event(&c);
            break;
        }
        uint64_t times;
        if (p[3].revents && read(vm->vsock.late_fd, &times, sizeof times) > 0)
            late_report(vm);
        if (c.client >= 0 && p[2].revents)
            client_read(&c);
        if (!c.quit && p[1].revents) {
            int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) { /* a node that came back replaces what it left */
                client_drop(&c);
                c.client = fd;
            }
        }
    }
    serial_flush(&vm->serial);
    layer_publish(&vm->disk[0].disk);
    client_drop(&c);
    return c.status;
}
