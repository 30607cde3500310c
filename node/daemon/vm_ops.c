/* Owns the messages of cube-node to a VMM (proto/vmm.proto). Invariant: a descriptor is named by its place in
 * the same datagram, so `struct fds` is the only way in which one gets there. */
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "node/daemon/jailer.h"
#include "node/daemon/vm.h"

#include <string.h>

#define ANSWER_MS 10000
#define SNAPSHOT_MS 120000

/* One address for all guests: the host translates (internal.md §8). Locally administered. */
static const uint8_t guest_mac[6] = {0x02, 0xcb, 0x00, 0x00, 0x00, 0x01};

struct fds {
    int fd[PEER_MAX_FDS];
    int count;
};

static uint32_t put(struct fds *f, int fd)
{
    f->fd[f->count] = fd;
    return (uint32_t)f->count++;
}

struct wiring {
    Cube__Vmm__V1__Wiring w;
    Cube__Vmm__V1__Disk root, tools, *disks[2];
    Cube__Vmm__V1__Net net;
};

static void wire(struct wiring *o, struct vm *vm, const char *sandbox_id, uint64_t gen,
                 const struct vm_image *image, int console, struct fds *fds)
{
    cube__vmm__v1__wiring__init(&o->w);
    cube__vmm__v1__disk__init(&o->root);
    cube__vmm__v1__disk__init(&o->tools);
    cube__vmm__v1__net__init(&o->net);
    o->root.base_fd = put(fds, image->root);
    o->root.layer_fd = put(fds, image->layer);
    o->root.size_bytes = image->disk_bytes;
    o->root.serial = (char *)"root";
    o->root.parent = (char *)image->root_name;
    o->root.bytes_per_s = (uint64_t)vm->node->cfg.disk_bytes;
    o->root.ops_per_s = (uint64_t)vm->node->cfg.disk_ops;
    o->tools.base_fd = put(fds, image->tools);
    o->tools.read_only = true;
    o->tools.serial = (char *)"tools";
    o->disks[0] = &o->root;
    o->disks[1] = &o->tools;
    o->net.tap_fd = put(fds, vm->tap_fd);
    o->net.mac = (ProtobufCBinaryData){sizeof guest_mac, (uint8_t *)guest_mac};
    o->net.present = true;
    o->w.sandbox_id = (char *)sandbox_id;
    o->w.gen = gen;
    o->w.n_disks = 2;
    o->w.disks = o->disks;
    o->w.net = &o->net;
    o->w.ctl_fd = put(fds, vm->ctl_fd);
    o->w.in_fd = put(fds, vm->in_fd);
    o->w.console_fd = put(fds, console);
    o->w.vcpus = image->vcpus;
    o->w.memory_mib = image->memory_mib;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* From here on only the VMM has them: a TAP or a socket without its VMM must not look alive. */
static void handed_over(struct vm *vm, uint64_t gen)
{
    close_fd(&vm->tap_fd);
    close_fd(&vm->ctl_fd);
    close_fd(&vm->in_fd);
    vm->vmm_gen = gen;
}

static int call(struct vm *vm, Cube__Vmm__V1__Request *req, const struct fds *fds, int64_t timeout_ms,
                struct peer_reply *out, struct err *e)
{
    if (vm->ended || !vm->control)
        return err_set(e, ERR_UNAVAILABLE, "%s has ended: %s", vm->name, vm->end_reason);
    if (peer_call(vm->control, &req->base, fds ? fds->fd : NULL, fds ? fds->count : 0, timeout_ms, out, e) ==
        0)
        return 0;
    if (vm->ended)
        return err_set(e, ERR_UNAVAILABLE, "%s has ended: %s", vm->name, vm->end_reason);
    return -1;
}

static int fit_limits(struct vm *vm, const struct vm_image *image, struct err *e)
{
    if (vm->vcpus == image->vcpus && vm->memory_mib == image->memory_mib)
        return 0;
    vm->vcpus = image->vcpus;
    vm->memory_mib = image->memory_mib;
    Cube__Jailer__V1__Limits limits = vm_limits(vm->vcpus, vm->memory_mib);
    return jailer_set_limits(vm->node->jailer, vm->name, &limits, e);
}

int vm_boot(struct vm *vm, const char *sandbox_id, uint64_t gen, const struct vm_image *image, struct err *e)
{
    _cleanup_close_ int console = vm_console_open(vm, e);
    if (console < 0 || fit_limits(vm, image, e) < 0)
        return -1;
    struct fds fds = {.count = 0};
    struct wiring w;
    wire(&w, vm, sandbox_id, gen, image, console, &fds);
    Cube__Vmm__V1__Boot op = CUBE__VMM__V1__BOOT__INIT;
    op.wiring = &w.w;
    op.kernel_fd = put(&fds, image->kernel);
    op.cmdline = (char *)image->cmdline;
    if (image->memory >= 0) {
        op.has_memory_fd = true;
        op.memory_fd = put(&fds, image->memory);
    }
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = CUBE__VMM__V1__REQUEST__OP_BOOT;
    req.boot = &op;
    if (call(vm, &req, &fds, ANSWER_MS, NULL, e) < 0)
        return err_wrap(e, "booting %s", *sandbox_id ? sandbox_id : vm->name);
    handed_over(vm, gen);
    return 0;
}

int vm_restore(struct vm *vm, const char *sandbox_id, uint64_t gen, const struct vm_image *image,
               struct err *e)
{
    _cleanup_close_ int console = vm_console_open(vm, e);
    if (console < 0 || fit_limits(vm, image, e) < 0)
        return -1;
    struct fds fds = {.count = 0};
    struct wiring w;
    wire(&w, vm, sandbox_id, gen, image, console, &fds);
    Cube__Vmm__V1__Restore op = CUBE__VMM__V1__RESTORE__INIT;
    op.wiring = &w.w;
    op.state_fd = put(&fds, image->state);
    op.memory_fd = put(&fds, image->memory);
    uint32_t deltas[4];
    for (int i = 0; i < image->delta_count; i++)
        deltas[i] = put(&fds, image->deltas[i]);
    op.n_delta_fds = (size_t)image->delta_count;
    op.delta_fds = deltas;
    if (image->working_set >= 0) {
        op.has_working_set = true;
        op.working_set_fd = put(&fds, image->working_set);
    }
    op.start_frozen = image->start_frozen;
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = CUBE__VMM__V1__REQUEST__OP_RESTORE;
    req.restore = &op;
    if (call(vm, &req, &fds, ANSWER_MS, NULL, e) < 0)
        return err_wrap(e, "restoring %s", *sandbox_id ? sandbox_id : vm->name);
    handed_over(vm, gen);
    return 0;
}

int vm_snapshot(struct vm *vm, const struct vm_snapshot *s, Cube__Vmm__V1__SnapshotDone *out, struct err *e)
{
    struct fds fds = {.count = 0};
    Cube__Vmm__V1__Snapshot op = CUBE__VMM__V1__SNAPSHOT__INIT;
    op.state_fd = put(&fds, s->state);
    op.memory_fd = put(&fds, s->memory);
    op.delta = s->delta;
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = CUBE__VMM__V1__REQUEST__OP_SNAPSHOT;
    req.snapshot = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(vm, &req, &fds, SNAPSHOT_MS, &reply, e) < 0)
        return err_wrap(e, "writing the memory of %s", vm->name);
    const Cube__Vmm__V1__Reply *r = (const Cube__Vmm__V1__Reply *)reply.message;
    if (r->result_case != CUBE__VMM__V1__REPLY__RESULT_SNAPSHOT)
        return err_set(e, ERR_INTERNAL, "%s answered something else to Snapshot", vm->name);
    *out = *r->snapshot;
    return 0;
}

int vm_working_set(struct vm *vm, int fd, struct err *e)
{
    struct fds fds = {.count = 0};
    Cube__Vmm__V1__WorkingSet op = CUBE__VMM__V1__WORKING_SET__INIT;
    op.fd = put(&fds, fd);
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = CUBE__VMM__V1__REQUEST__OP_WORKING_SET;
    req.working_set = &op;
    return call(vm, &req, &fds, ANSWER_MS, NULL, e);
}

int vm_set_frozen(struct vm *vm, bool frozen, struct err *e)
{
    Cube__Vmm__V1__Freeze freeze = CUBE__VMM__V1__FREEZE__INIT;
    Cube__Vmm__V1__Thaw thaw = CUBE__VMM__V1__THAW__INIT;
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = frozen ? CUBE__VMM__V1__REQUEST__OP_FREEZE : CUBE__VMM__V1__REQUEST__OP_THAW;
    if (frozen)
        req.freeze = &freeze;
    else
        req.thaw = &thaw;
    return call(vm, &req, NULL, ANSWER_MS, NULL, e);
}

int vm_stats(struct vm *vm, Cube__Vmm__V1__Stats *out, struct err *e)
{
    Cube__Vmm__V1__GetStats op = CUBE__VMM__V1__GET_STATS__INIT;
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = CUBE__VMM__V1__REQUEST__OP_GET_STATS;
    req.get_stats = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(vm, &req, NULL, ANSWER_MS, &reply, e) < 0)
        return -1;
    const Cube__Vmm__V1__Reply *r = (const Cube__Vmm__V1__Reply *)reply.message;
    if (r->result_case != CUBE__VMM__V1__REPLY__RESULT_STATS)
        return err_set(e, ERR_INTERNAL, "%s answered something else to GetStats", vm->name);
    *out = *r->stats;
    return 0;
}
