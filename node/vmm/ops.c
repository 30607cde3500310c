/* Boot, wiring and statistics. A guest gets nothing that the request did not bring: descriptors, sizes,
 * names. */
#include "node/vmm/control.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int disk_wire(struct vm *vm, unsigned i, const Cube__Vmm__V1__Disk *d, struct control_fds *fds,
                     struct err *e)
{
    _cleanup_close_ int base = control_take(fds, d->base_fd, "base image", e);
    struct layer l;

    if (base < 0)
        return -1;
    int layer = d->read_only ? -1 : control_take(fds, d->layer_fd, "disk layer", e);
    if (!d->read_only && layer < 0)
        return -1;
    if (layer_open(&l, fd_steal(&base), layer, d->size_bytes, d->parent, e) < 0) {
        layer_close(&l);
        return err_wrap(e, "disk %u", i);
    }
    blk_attach(&vm->disk[i], &l, d->serial, d->bytes_per_s, d->ops_per_s);
    vm->present[SLOT_ROOT + i] = true;
    return 0;
}

static int net_wire(struct vm *vm, const Cube__Vmm__V1__Net *n, struct control_fds *fds, struct err *e)
{
    if (n->mac.len != 6)
        return err_set(e, ERR_INVALID, "a MAC of %zu bytes", n->mac.len);
    _cleanup_close_ int tap = control_take(fds, n->tap_fd, "TAP", e);
    if (tap < 0 || net_attach(&vm->net, tap, n->mac.data, n->bytes_per_s, e) < 0)
        return -1;
    fd_steal(&tap);
    vm->present[SLOT_NET] = true;
    return 0;
}

int wiring_apply(struct vm *vm, const Cube__Vmm__V1__Wiring *w, struct control_fds *fds, struct err *e)
{
    if (!w)
        return err_set(e, ERR_INVALID, "the request has no wiring");
    if (w->n_disks > 2)
        return err_set(e, ERR_INVALID, "%zu disks: at most 2", w->n_disks);
    if (vm_resize(vm, w->memory_mib, w->vcpus, e) < 0)
        return -1;
    snprintf(vm->sandbox_id, sizeof vm->sandbox_id, "%s", w->sandbox_id);
    vm->gen = w->gen;
    for (unsigned i = 0; i < w->n_disks; i++)
        if (disk_wire(vm, i, w->disks[i], fds, e) < 0)
            return -1;
    if (w->net && w->net->present && net_wire(vm, w->net, fds, e) < 0)
        return -1;
    int ctl = control_take(fds, w->ctl_fd, "ctl socket", e);
    int in = ctl < 0 ? -1 : control_take(fds, w->in_fd, "in socket", e);
    if (ctl >= 0)
        vsock_attach(&vm->vsock, ctl, in);
    if (in < 0)
        return -1;
    fcntl(ctl, F_SETFL, O_NONBLOCK);
    fcntl(in, F_SETFL, O_NONBLOCK);
    vm->serial.log_fd = control_take(fds, w->console_fd, "console log", e);
    if (vm->serial.log_fd < 0)
        return -1;
    vm->present[SLOT_VSOCK] = vm->present[SLOT_RNG] = vm->present[SLOT_BALLOON] = true;
    return 0;
}

int op_boot(struct vm *vm, const Cube__Vmm__V1__Boot *b, struct control_fds *fds, Cube__Vmm__V1__Started *out,
            struct err *e)
{
    int64_t t0 = clock_mono_us();

    if (wiring_apply(vm, b->wiring, fds, e) < 0)
        return -1;
    int64_t t1 = clock_mono_us();
    if (b->has_memory_fd) {
        _cleanup_close_ int mem = control_take(fds, b->memory_fd, "memory file", e);
        if (mem < 0 || mem_map_file(&vm->mem, mem, true, e) < 0)
            return -1;
    }
    _cleanup_close_ int kernel = control_take(fds, b->kernel_fd, "kernel", e);
    if (kernel < 0 || vm_load_kernel(vm, kernel, b->cmdline, e) < 0)
        return -1;
    vm->booted = true;
    int64_t t2 = clock_mono_us();
    jail_control_thread();
    vm_go(vm);
    out->devices_us = t1 - t0;
    out->memory_us = t2 - t1;
    out->took_us = clock_mono_us() - t0;
    return 0;
}

int op_resize(struct vm *vm, const Cube__Vmm__V1__Resize *r, struct err *e)
{
    if (r->disk > 1 || !vm->present[SLOT_ROOT + r->disk])
        return err_set(e, ERR_INVALID, "the guest has no disk %u", r->disk);
    return blk_grow(&vm->disk[r->disk], r->size_bytes, e);
}

void op_stats(struct vm *vm, Cube__Vmm__V1__Stats *s)
{
    struct rusage u;
    char line[128] = "";
    unsigned long long total = 0, rss = 0;

    if (vm->statm_fd >= 0 && pread(vm->statm_fd, line, sizeof line - 1, 0) > 0 &&
        sscanf(line, "%llu %llu", &total, &rss) == 2)
        s->rss_bytes = rss * MEM_PAGE;
    getrusage(RUSAGE_SELF, &u);
    s->cpu_us = (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
                (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    s->net_rx_bytes = vm->net.rx_bytes;
    s->net_tx_bytes = vm->net.tx_bytes;
    s->disk_read_bytes = vm->disk[0].read_bytes + vm->disk[1].read_bytes;
    s->disk_write_bytes = vm->disk[0].write_bytes + vm->disk[1].write_bytes;
    s->vsock_connections = vm->vsock.nconns;
    s->layer_bytes = vm->disk[0].disk.chunks * LAYER_CHUNK;
    s->console_bytes = vm->serial.logged;
    s->console_dropped = vm->serial.dropped;
    s->vsock_in_bytes = vm->vsock.to_guest_bytes;
    s->vsock_out_bytes = vm->vsock.from_guest_bytes;
    s->reported_free_bytes = vm->balloon.reported_bytes;
}
