/* Snapshot of a running guest: state, RAM (all, or what is the process's own), disk bitmap. The guest stands
 * still from the first register read to the last page written; files are the node's, who also makes them
 * durable. */
#include "node/vmm/control.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "node/vmm/pagescan.h"
#include "node/vmm/state.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BATCH_BYTES (1u << 20) /* of a delta, after which writing to the disk starts */
#define BATCH_PARTS 1024       /* IOV_MAX */
#define HUGE_PAGES_USED 256    /* of 512 */

static int write_at(int fd, const void *p, uint64_t n, uint64_t off, struct err *e)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t w = pwrite(fd, (const uint8_t *)p + done, n - done, (off_t)(off + done));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return err_sys(e, ERR_INTERNAL, "write the snapshot");
        done += (uint64_t)w;
    }
    return 0;
}

static bool page_is_zero(const uint8_t *p)
{
    const uint64_t *w = (const uint64_t *)p;

    for (unsigned i = 0; i < MEM_PAGE / 8; i += 8)
        if (w[i] | w[i + 1] | w[i + 2] | w[i + 3] | w[i + 4] | w[i + 5] | w[i + 6] | w[i + 7])
            return false;
    return true;
}

/* Whether a huge page of RAM is worth being written whole: then it also is one huge page of the page cache
 * (file systems with large folios), which a clone maps with one fault. The price is its zero pages, once for
 * all clones. */
static bool huge_is_full(const struct vm *vm, uint64_t off)
{
    unsigned used = 0;

    for (uint64_t p = 0; p < MEM_HUGE; p += MEM_PAGE)
        used += !page_is_zero(vm->mem.base + off + p);
    return used >= HUGE_PAGES_USED;
}

/* Writes [off, end), inside one huge page of RAM, to the same place of the file, leaving holes for zero
 * pages. */
static int block_write(struct vm *vm, int fd, uint64_t off, uint64_t end, uint64_t *written, struct err *e)
{
    bool whole = end - off == MEM_HUGE && huge_is_full(vm, off);

    while (off < end) {
        uint64_t from = off;
        while (off < end && (whole || !page_is_zero(vm->mem.base + off)))
            off += MEM_PAGE;
        if (off > from && write_at(fd, vm->mem.base + from, off - from, from, e) < 0)
            return -1;
        *written += off - from;
        while (off < end && page_is_zero(vm->mem.base + off))
            off += MEM_PAGE;
    }
    return 0;
}

static int range_write_sparse(struct vm *vm, int fd, uint64_t off, uint64_t end, uint64_t *written,
                              struct err *e)
{
    for (uint64_t next; off < end; off = next) {
        next = (off | (MEM_HUGE - 1)) + 1;
        if (next > end)
            next = end;
        if (block_write(vm, fd, off, next, written, e) < 0)
            return -1;
        /* Anonymous RAM and its copy in the page cache count against one limit: the copy shall be clean soon.
         */
        sync_file_range(fd, (off_t)off, (off_t)(next - off), SYNC_FILE_RANGE_WRITE);
    }
    return 0;
}

/* Whether the file is the one that RAM is mapped from: then everything is in it already. */
static bool is_ram_file(const struct vm *vm, int fd)
{
    struct stat st;

    return vm->mem.shared && fstat(fd, &st) == 0 && st.st_dev == vm->mem.file_dev &&
           st.st_ino == vm->mem.file_ino;
}

static int memory_full(struct vm *vm, int fd, uint64_t *written, struct err *e)
{
    struct mem_extents x = {0};
    int rc = 0;

    if (is_ram_file(vm, fd)) {
        *written = vm->mem.size;
        return 0;
    }

    if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)vm->mem.size) < 0)
        return err_sys(e, ERR_INTERNAL, "size the memory file");
    /* Of anonymous RAM only what was touched is worth a look; over a file every page counts. */
    if (vm->restored || vm->mem.shared ||
        pagescan(vm->pagemap_fd, vm->mem.base, vm->mem.size, PAGESCAN_OWN, &x, NULL) < 0)
        rc = range_write_sparse(vm, fd, 0, vm->mem.size, written, e);
    uint64_t done = 0;
    for (uint64_t i = 0; rc == 0 && i < x.n; i++) { /* the huge pages that have touched ones */
        uint64_t end = (x.v[i].offset + x.v[i].length + MEM_HUGE - 1) & ~(MEM_HUGE - 1);
        uint64_t from = x.v[i].offset & ~(MEM_HUGE - 1);
        from = from < done ? done : from;
        done = end < vm->mem.size ? end : vm->mem.size;
        if (from < done)
            rc = range_write_sparse(vm, fd, from, done, written, e);
    }
    mem_extents_free(&x);
    return rc;
}

/* Extents on their way to a file, many in one call: most are a page or two. */
struct batch {
    struct iovec part[BATCH_PARTS];
    int n, fd;
    uint64_t bytes, at, started; /* collected; where they go; up to where the disk was told to begin */
};

static int batch_write(struct batch *b, struct err *e)
{
    struct iovec *p = b->part;

    while (b->n) {
        ssize_t w = pwritev(b->fd, p, b->n, (off_t)b->at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return err_sys(e, ERR_INTERNAL, "write the snapshot");
        b->at += (uint64_t)w;
        while (b->n && (size_t)w >= p->iov_len) {
            w -= (ssize_t)p->iov_len;
            p++;
            b->n--;
        }
        if (b->n) {
            p->iov_base = (uint8_t *)p->iov_base + w;
            p->iov_len -= (size_t)w;
        }
    }
    b->bytes = 0;
    if (b->at > b->started) /* the disk works while we copy on */
        sync_file_range(b->fd, (off_t)b->started, (off_t)(b->at - b->started), SYNC_FILE_RANGE_WRITE);
    b->started = b->at;
    return 0;
}

static int batch_add(struct batch *b, uint8_t *p, uint64_t len, struct err *e)
{
    while (len) {
        uint64_t n = len < BATCH_BYTES - b->bytes ? len : BATCH_BYTES - b->bytes;

        b->part[b->n++] = (struct iovec){p, n};
        b->bytes += n;
        p += n;
        len -= n;
        if ((b->n == BATCH_PARTS || b->bytes == BATCH_BYTES) && batch_write(b, e) < 0)
            return -1;
    }
    return 0;
}

static int memory_delta(struct vm *vm, int fd, uint64_t *written, struct err *e)
{
    static struct batch b; /* only the control thread writes snapshots */
    struct mem_extents x = {0};
    int rc = -1;

    if (!vm->restored)
        return err_set(e, ERR_CONFLICT, "a guest that was booted has nothing that a delta could refer to");
    if (pagescan(vm->pagemap_fd, vm->mem.base, vm->mem.size, PAGESCAN_OWN, &x, e) == 0) {
        int64_t off = ftruncate(fd, 0) < 0 ? err_sys(e, ERR_INTERNAL, "empty the memory file")
                                           : memfile_write_table(fd, false, vm->mem.size, &x, e);
        rc = off < 0 ? -1 : 0;
        b = (struct batch){.fd = fd, .at = (uint64_t)off};
        for (uint64_t i = 0; rc == 0 && i < x.n; i++)
            rc = batch_add(&b, vm->mem.base + x.v[i].offset, x.v[i].length, e);
        rc = rc == 0 ? batch_write(&b, e) : rc;
        *written += rc == 0 ? mem_extents_bytes(&x) : 0;
        /* A delta without pages still is as long as its header says. */
        if (rc == 0 && ftruncate(fd, (off_t)b.at) < 0)
            rc = err_sys(e, ERR_INTERNAL, "size the memory file");
    }
    mem_extents_free(&x);
    return rc;
}

static int write_all(struct vm *vm, const Cube__Vmm__V1__Snapshot *s, int state_fd, int memory_fd,
                     uint64_t *written, struct err *e)
{
    _cleanup_buf_ struct buf state = {0};

    if (state_save(vm, &state, e) < 0)
        return -1;
    if (ftruncate(state_fd, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "empty the state file");
    if (write_at(state_fd, state.data, state.len, 0, e) < 0)
        return -1;
    if ((s->delta ? memory_delta(vm, memory_fd, written, e) : memory_full(vm, memory_fd, written, e)) < 0)
        return -1;
    int rc = layer_publish(&vm->disk[0].disk);
    if (rc < 0) {
        errno = -rc;
        return err_sys(e, ERR_INTERNAL, "write the bitmap of the disk layer");
    }
    return 0;
}

static int working_set_write(struct vm *vm, int fd, struct err *e)
{
    struct mem_extents x = {0};
    int rc = pagescan(vm->pagemap_fd, vm->mem.base, vm->mem.size, PAGESCAN_TOUCHED, &x, e);

    if (rc == 0)
        rc = ftruncate(fd, 0) < 0 ? err_sys(e, ERR_INTERNAL, "empty the working set file")
                                  : (memfile_write_table(fd, true, vm->mem.size, &x, e) < 0 ? -1 : 0);
    mem_extents_free(&x);
    return rc;
}

int op_working_set(struct vm *vm, const Cube__Vmm__V1__WorkingSet *w, struct control_fds *fds, struct err *e)
{
    _cleanup_close_ int fd = control_take(fds, w->fd, "working set", e);

    if (fd < 0)
        return -1;
    if (!vm->restored)
        return err_set(e, ERR_CONFLICT, "only a restored guest has a working set");
    return working_set_write(vm, fd, e);
}

int op_snapshot(struct vm *vm, const Cube__Vmm__V1__Snapshot *s, struct control_fds *fds,
                Cube__Vmm__V1__SnapshotDone *out, struct err *e)
{
    _cleanup_close_ int state_fd = control_take(fds, s->state_fd, "state file", e);
    _cleanup_close_ int memory_fd = state_fd < 0 ? -1 : control_take(fds, s->memory_fd, "memory file", e);
    _cleanup_close_ int ws_fd = -1;
    bool was_running = vm->running;

    if (memory_fd < 0)
        return -1;
    if (s->has_working_set && (ws_fd = control_take(fds, s->working_set_fd, "working set", e)) < 0)
        return -1;
    int64_t t0 = clock_mono_us();
    vm_stop(vm);
    int rc = vm->end != VM_ALIVE ? err_set(e, ERR_CONFLICT, "the guest has ended") : 0;
    if (rc == 0)
        rc = write_all(vm, s, state_fd, memory_fd, &out->memory_bytes, e);
    if (rc == 0 && ws_fd >= 0)
        rc = working_set_write(vm, ws_fd, e);
    out->frozen_us = clock_mono_us() - t0;
    out->pages = out->memory_bytes / MEM_PAGE;
    /* A failed snapshot leaves the guest as it was: running. */
    if (rc < 0 ? was_running : s->resume)
        vm_go(vm);
    out->frozen = !vm->running;
    return rc;
}
