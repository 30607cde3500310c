/* Restore: memory under the prepared slot, state into KVM and devices, go. This is what a sandbox's creation
 * waits for. */
#include "node/vmm/control.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "node/vmm/memfile.h"
#include "node/vmm/state.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DELTAS_MAX 4
#define MAPPED_EXTENTS_MAX 16384 /* of the 65,530 mappings a process may have */

static int delta_apply(struct vm *vm, int fd, unsigned *mapped, struct err *e)
{
    struct mem_extents x;
    uint64_t pos;

    if (memfile_read_table(fd, false, vm->mem.size, &x, &pos, e) < 0)
        return -1;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < x.n; i++) {
        uint8_t *to = vm->mem.base + x.v[i].offset;
        uint64_t len = x.v[i].length;

        if (len >= MEMFILE_MAP_MIN && *mapped < MAPPED_EXTENTS_MAX) {
            void *p = mmap(to, len, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE, fd,
                           (off_t)pos);
            if (p == MAP_FAILED)
                rc = err_sys(e, ERR_INTERNAL, "map a memory extent");
            ++*mapped;
        } else {
            for (uint64_t done = 0; rc == 0 && done < len;) {
                ssize_t r = pread(fd, to + done, len - done, (off_t)(pos + done));
                if (r < 0 && errno == EINTR)
                    continue;
                if (r <= 0)
                    rc = err_sys(e, ERR_INTERNAL, "read a memory extent");
                else
                    done += (uint64_t)r;
            }
        }
        pos += len;
    }
    mem_extents_free(&x);
    return rc;
}

static int memory_restore(struct vm *vm, const Cube__Vmm__V1__Restore *r, struct control_fds *fds,
                          struct err *e)
{
    _cleanup_close_ int base = control_take(fds, r->memory_fd, "memory file", e);
    unsigned mapped = 0;

    if (base < 0 || mem_map_file(&vm->mem, base, false, e) < 0)
        return -1;
    if (r->n_delta_fds > DELTAS_MAX)
        return err_set(e, ERR_INVALID, "%zu memory deltas: at most %d", r->n_delta_fds, DELTAS_MAX);
    for (unsigned i = 0; i < r->n_delta_fds; i++) {
        _cleanup_close_ int fd = control_take(fds, r->delta_fds[i], "memory delta", e);
        if (fd < 0 || delta_apply(vm, fd, &mapped, e) < 0)
            return err_wrap(e, "memory delta %u", i);
    }
    return 0;
}

/* Pages that earlier clones used, mapped ahead of the guest's faults. What they wrote is copied before the
 * guest runs (it would have to wait for each of those pages), what they read is mapped beside it; measured to
 * be better than all before or all after. Only a help: errors are left to the faults themselves. */
static void working_set_map(struct vm *vm, const struct mem_extents *x, bool written)
{
    for (uint64_t i = 0; i < x->n; i++)
        if ((x->v[i].length & 1) == written)
            madvise(vm->mem.base + x->v[i].offset, x->v[i].length & ~1ull,
                    written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

static int working_set_read(struct vm *vm, const Cube__Vmm__V1__Restore *r, struct control_fds *fds,
                            struct mem_extents *x, struct err *e)
{
    uint64_t unused;

    if (!r->has_working_set)
        return 0;
    _cleanup_close_ int fd = control_take(fds, r->working_set_fd, "working set", e);
    return fd < 0 ? -1 : memfile_read_table(fd, true, vm->mem.size, x, &unused, e);
}

static int state_read(struct vm *vm, int fd, void **data, size_t *n, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "stat of the state file");
    if (st.st_size <= 0 || st.st_size > STATE_BYTES_MAX)
        return err_set(e, ERR_INVALID, "snapshot state: %lld bytes", (long long)st.st_size);
    *n = (size_t)st.st_size;
    *data = malloc(*n);
    if (!*data)
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (pread(fd, *data, *n, 0) != (ssize_t)*n)
        return err_sys(e, ERR_INVALID, "read the state file");
    return state_check(vm, *data, *n, e);
}

static int restore_all(struct vm *vm, const Cube__Vmm__V1__Restore *r, struct control_fds *fds,
                       struct mem_extents *working_set, Cube__Vmm__V1__Started *out, struct err *e)
{
    _cleanup_free_ void *state = NULL;
    int64_t t0 = clock_mono_us();
    size_t n = 0;

    if (wiring_apply(vm, r->wiring, fds, e) < 0)
        return -1;
    int64_t t1 = clock_mono_us();
    _cleanup_close_ int state_fd = control_take(fds, r->state_fd, "state file", e);
    if (state_fd < 0 || state_read(vm, state_fd, &state, &n, e) < 0)
        return -1;
    if (memory_restore(vm, r, fds, e) < 0 || working_set_read(vm, r, fds, working_set, e) < 0)
        return -1;
    vm->restored = true;
    working_set_map(vm, working_set, true);
    int64_t t2 = clock_mono_us();
    if (r->start_frozen)
        vm_stop(vm); /* the device threads, too */
    if (state_load(vm, state, n, &out->vcpu_us, e) < 0)
        return -1;
    vm->booted = true;
    jail_control_thread();
    if (!r->start_frozen)
        vm_go(vm);
    out->devices_us = t1 - t0;
    out->memory_us = t2 - t1;
    out->took_us = clock_mono_us() - t0;
    return 0;
}

int op_restore(struct vm *vm, const Cube__Vmm__V1__Restore *r, struct control_fds *fds,
               Cube__Vmm__V1__Started *out, struct err *e)
{
    return restore_all(vm, r, fds, &vm->working_set, out, e);
}

void op_restore_after(struct vm *vm)
{
    if (!vm->restored || vm->end != VM_ALIVE)
        return;
    vm_route_messages(vm);
    working_set_map(vm, &vm->working_set, false);
    mem_extents_free(&vm->working_set);
}
