/* Files that a VMM opens: memory deltas, working sets, disk layers. Any bytes: an error or a table that keeps
 * its promises. */
#include "node/vmm/layer.h"
#include "node/vmm/memfile.h"

#include "node/vmm/crc.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int file_of(const uint8_t *p, size_t n)
{
    int fd = memfd_create("input", MFD_CLOEXEC);

    if (fd < 0 || (n && pwrite(fd, p, n, 0) != (ssize_t)n))
        abort();
    return fd;
}

static void check_table(const struct mem_extents *x, uint64_t bytes)
{
    uint64_t end = 0;

    for (uint64_t i = 0; i < x->n; i++) {
        uint64_t len = x->v[i].length & ~1ull;
        if (x->v[i].offset < end || len == 0 || x->v[i].offset + len > bytes)
            abort();
        end = x->v[i].offset + len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mem_extents x;
    struct err e = {0};
    uint64_t off;

    if (size < 2 || size > 1 << 16)
        return 0;
    uint8_t what = *data++;
    size--;
    uint8_t *copy = malloc(size);
    memcpy(copy, data, size);
    /* A checksum is no barrier for a fuzzer: put the right one in. */
    if ((what & 3) < 2 && (what & 4) && size >= sizeof(struct memfile_header)) {
        struct memfile_header h;
        memcpy(&h, copy, sizeof h);
        memcpy(h.magic, what & 1 ? "CUBEWST1" : "CUBEMDL1", 8);
        h.version = 1;
        h.page = 4096;
        h.memory_bytes = 64 << 20;
        h.nextents %= 64;
        size_t table = h.nextents * sizeof(struct mem_extent);
        if (table <= size - sizeof h)
            h.table_crc = crc32c(0, copy + sizeof h, table);
        h.crc = crc32c(0, &h, offsetof(struct memfile_header, crc));
        memcpy(copy, &h, sizeof h);
    }
    int fd = file_of(copy, size);
    if ((what & 3) < 2) {
        if (memfile_read_table(fd, what & 1, 64 << 20, &x, &off, &e) == 0) {
            check_table(&x, 64 << 20);
            mem_extents_free(&x);
            if (!(what & 1)) {
                int out = memfd_create("out", MFD_CLOEXEC), fds[2] = {fd, fd};
                memfile_merge(fds, 2, 64 << 20, out, &e);
                close(out);
            }
        }
        close(fd);
    } else {
        struct layer l;
        uint8_t buf[1024];
        struct iovec v = {buf, sizeof buf};
        int base = file_of(data, size < 600 ? size : 600);
        if (what & 4 && size >= sizeof(struct layer_header)) {
            struct layer_header h;
            memcpy(&h, copy, sizeof h);
            h.crc = crc32c(0, &h, offsetof(struct layer_header, crc));
            (void)!pwrite(fd, &h, sizeof h, 0);
        }
        if (layer_open(&l, base, fd, 1 << 20, "", &e) == 0) {
            layer_read(&l, 0, sizeof buf, &v, 1);
            layer_write(&l, 65536 - 512, sizeof buf, &v, 1);
            layer_discard(&l, 512, 200000, what & 8);
            layer_flush(&l);
        }
        layer_close(&l);
    }
    free(copy);
    return 0;
}
