/* The copy-on-write layer. Invariant: the bitmap in the file never names a chunk whose data was not written
 * before; it may lag behind memory until the next flush, which is what a disk with a volatile cache may do.
 */
#include "node/vmm/layer.h"

#include "node/vmm/crc.h"
#include "node/vmm/iov.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 4096u
#define IOV_MAX_IO 270
#define FILL_PIECE (8u << 10)

static bool chunk_present(const struct layer *l, uint64_t c)
{
    return l->bitmap && (l->bitmap[c >> 3] & 1u << (c & 7));
}

static void chunk_mark(struct layer *l, uint64_t c)
{
    uint64_t at = c >> 3;

    if (!chunk_present(l, c))
        l->chunks++;
    l->bitmap[at] |= (uint8_t)(1u << (c & 7));
    if (l->dirty_from >= l->dirty_to) {
        l->dirty_from = at;
        l->dirty_to = at + 1;
        return;
    }
    if (at < l->dirty_from)
        l->dirty_from = at;
    if (at >= l->dirty_to)
        l->dirty_to = at + 1;
}

/* pread and pwrite of the whole length; a short read at the end of a file is filled with zeros. */
static int read_all(int fd, uint64_t off, const struct iovec *iov, unsigned n, uint64_t len)
{
    struct iovec v[IOV_MAX_IO];
    uint64_t done = 0;

    while (done < len) {
        unsigned k = iov_slice(iov, n, done, len - done, v);
        ssize_t r = preadv(fd, v, (int)k, (off_t)(off + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0) {
            for (unsigned i = 0; i < k; i++)
                memset(v[i].iov_base, 0, v[i].iov_len);
            return 0;
        }
        done += (uint64_t)r;
    }
    return 0;
}

static int write_all(int fd, uint64_t off, const struct iovec *iov, unsigned n, uint64_t len)
{
    struct iovec v[IOV_MAX_IO];
    uint64_t done = 0;

    while (done < len) {
        unsigned k = iov_slice(iov, n, done, len - done, v);
        ssize_t r = pwritev(fd, v, (int)k, (off_t)(off + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            return -ENOSPC;
        done += (uint64_t)r;
    }
    return 0;
}

static uint32_t header_crc(const struct layer_header *h)
{
    return crc32c(0, h, offsetof(struct layer_header, crc));
}

static uint64_t data_offset(uint64_t nchunks)
{
    return (HEADER_BYTES + (nchunks + 7) / 8 + LAYER_CHUNK - 1) & ~(uint64_t)(LAYER_CHUNK - 1);
}

static int layer_create(struct layer *l, const char *parent, struct err *e)
{
    struct layer_header h = {.magic = LAYER_MAGIC,
                             .version = LAYER_VERSION,
                             .chunk_shift = LAYER_CHUNK_SHIFT,
                             .disk_bytes = l->disk_bytes,
                             .bitmap_off = l->bitmap_off,
                             .bitmap_bytes = (l->nchunks + 7) / 8,
                             .data_off = l->data_off};

    snprintf(h.parent, sizeof h.parent, "%s", parent);
    h.crc = header_crc(&h);
    if (ftruncate(l->fd, (off_t)(l->data_off + (l->nchunks << LAYER_CHUNK_SHIFT))) < 0 ||
        pwrite(l->fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
        return err_sys(e, ERR_INTERNAL, "initialise the disk layer");
    return 0;
}

static int layer_check(struct layer *l, const struct layer_header *h, const char *parent, struct err *e)
{
    if (memcmp(h->magic, LAYER_MAGIC, 8) || h->crc != header_crc(h))
        return err_set(e, ERR_INVALID, "disk layer: the header is damaged");
    if (h->version != LAYER_VERSION || h->chunk_shift != LAYER_CHUNK_SHIFT)
        return err_set(e, ERR_INVALID, "disk layer: version %u is not supported", h->version);
    if (h->disk_bytes != l->disk_bytes || h->bitmap_off != l->bitmap_off || h->data_off != l->data_off ||
        h->bitmap_bytes != (l->nchunks + 7) / 8)
        return err_set(e, ERR_INVALID, "disk layer: made for a disk of %llu bytes, not %llu",
                       (unsigned long long)h->disk_bytes, (unsigned long long)l->disk_bytes);
    if (parent[0] && h->parent[0] && strncmp(parent, h->parent, sizeof h->parent))
        return err_set(e, ERR_INVALID, "disk layer: belongs to base %.63s, not %s", h->parent, parent);
    return 0;
}

static int layer_attach(struct layer *l, const char *parent, struct err *e)
{
    struct layer_header h;
    struct stat st;

    if (fstat(l->fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "stat of the disk layer");
    uint64_t bitmap_bytes = (l->nchunks + 7) / 8;
    l->bitmap_off = HEADER_BYTES;
    l->data_off = data_offset(l->nchunks);
    l->bitmap = calloc(1, bitmap_bytes);
    if (!l->bitmap)
        return err_set(e, ERR_INTERNAL, "disk layer: out of memory");
    if (st.st_size == 0)
        return layer_create(l, parent, e);
    if (pread(l->fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
        return err_set(e, ERR_INVALID, "disk layer: the file is truncated");
    if (layer_check(l, &h, parent, e) < 0)
        return -1;
    if (pread(l->fd, l->bitmap, bitmap_bytes, (off_t)l->bitmap_off) != (ssize_t)bitmap_bytes)
        return err_set(e, ERR_INVALID, "disk layer: the file is truncated");
    for (uint64_t c = 0; c < l->nchunks; c++)
        l->chunks += chunk_present(l, c);
    return 0;
}

int layer_open(struct layer *l, int base_fd, int layer_fd, uint64_t disk_bytes, const char *parent,
               struct err *e)
{
    /* Not fstat: a base may be a block device. Nobody reads at the offset that this leaves. */
    off_t base_bytes = lseek(base_fd, 0, SEEK_END);

    *l = (struct layer){.base_fd = base_fd, .fd = layer_fd, .disk_bytes = disk_bytes};
    if (base_bytes < 0)
        return err_sys(e, ERR_INTERNAL, "size of the base image");
    l->base_bytes = (uint64_t)base_bytes;
    if (disk_bytes == 0)
        l->disk_bytes = disk_bytes = l->base_bytes & ~511ull;
    if (disk_bytes < 512 || disk_bytes % 512 || disk_bytes > LAYER_DISK_MAX ||
        disk_bytes + 511 < l->base_bytes)
        return err_set(e, ERR_INVALID, "disk of %llu bytes over a base of %llu",
                       (unsigned long long)disk_bytes, (unsigned long long)l->base_bytes);
    l->nchunks = (disk_bytes + LAYER_CHUNK - 1) >> LAYER_CHUNK_SHIFT;
    return layer_fd < 0 ? 0 : layer_attach(l, parent ? parent : "", e);
}

/* The file grows before the header says so: whenever this is cut short, the layer on disk is a whole one. */
static int layer_file_grow(struct layer *l, uint64_t disk_bytes, uint64_t nchunks, struct err *e)
{
    uint64_t bitmap_bytes = (nchunks + 7) / 8, old = (l->nchunks + 7) / 8;
    struct layer_header h;

    if (data_offset(nchunks) != l->data_off)
        return err_set(e, ERR_UNSUPPORTED, "disk layer: cannot grow to %llu bytes in place",
                       (unsigned long long)disk_bytes);
    uint8_t *bitmap = calloc(1, bitmap_bytes);
    if (!bitmap)
        return err_set(e, ERR_INTERNAL, "disk layer: out of memory");
    if (pread(l->fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
        ftruncate(l->fd, (off_t)(l->data_off + (nchunks << LAYER_CHUNK_SHIFT))) < 0) {
        free(bitmap);
        return err_sys(e, ERR_INTERNAL, "grow the disk layer");
    }
    h.disk_bytes = disk_bytes;
    h.bitmap_bytes = bitmap_bytes;
    h.crc = header_crc(&h);
    if (pwrite(l->fd, &h, sizeof h, 0) != (ssize_t)sizeof h) {
        free(bitmap);
        return err_sys(e, ERR_INTERNAL, "write the header of the disk layer");
    }
    memcpy(bitmap, l->bitmap, old);
    free(l->bitmap);
    l->bitmap = bitmap;
    return 0;
}

int layer_grow(struct layer *l, uint64_t disk_bytes, struct err *e)
{
    uint64_t nchunks = (disk_bytes + LAYER_CHUNK - 1) >> LAYER_CHUNK_SHIFT;

    if (disk_bytes % 512 || disk_bytes < l->disk_bytes || disk_bytes > LAYER_DISK_MAX)
        return err_set(e, ERR_INVALID, "a disk of %llu bytes cannot become one of %llu",
                       (unsigned long long)l->disk_bytes, (unsigned long long)disk_bytes);
    if (l->fd >= 0 && layer_file_grow(l, disk_bytes, nchunks, e) < 0)
        return -1;
    l->disk_bytes = disk_bytes;
    l->nchunks = nchunks;
    return 0;
}

void layer_close(struct layer *l)
{
    if (l->base_fd >= 0)
        close(l->base_fd);
    if (l->fd >= 0)
        close(l->fd);
    free(l->bitmap);
    *l = (struct layer){.base_fd = -1, .fd = -1};
}

/* Bytes from `off` on, at most `len`, that lie in chunks of the same kind (all in the layer, or none). */
static uint64_t same_run(const struct layer *l, uint64_t off, uint64_t len, bool *present)
{
    uint64_t c = off >> LAYER_CHUNK_SHIFT;
    uint64_t end = ((c + 1) << LAYER_CHUNK_SHIFT);

    *present = chunk_present(l, c);
    while (end - off < len && chunk_present(l, ++c) == *present)
        end += LAYER_CHUNK;
    return end - off < len ? end - off : len;
}

int layer_read(struct layer *l, uint64_t off, uint64_t len, const struct iovec *iov, unsigned n)
{
    struct iovec part[IOV_MAX_IO];

    for (uint64_t done = 0; done < len;) {
        bool present;
        uint64_t run = same_run(l, off + done, len - done, &present);
        unsigned k = iov_slice(iov, n, done, run, part);
        int rc = present ? read_all(l->fd, l->data_off + off + done, part, k, run)
                         : read_all(l->base_fd, off + done, part, k, run);
        if (rc < 0)
            return rc;
        done += run;
    }
    return 0;
}

/* The first write to a part of a chunk brings the rest of it from the base. */
static int chunk_fill(struct layer *l, uint64_t c)
{
    uint8_t piece[FILL_PIECE]; /* a chunk's worth of memory would stay with every sandbox */
    struct iovec v = {piece, sizeof piece};
    uint64_t off = c << LAYER_CHUNK_SHIFT;
    int rc = 0;

    if (off >= l->base_bytes) { /* zeros; a write that failed half-way may have left something */
        int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        return fallocate(l->fd, how, (off_t)(l->data_off + off), LAYER_CHUNK) < 0 ? -errno : 0;
    }
    for (uint64_t end = off + LAYER_CHUNK; rc == 0 && off < end; off += sizeof piece) {
        rc = read_all(l->base_fd, off, &v, 1, sizeof piece);
        rc = rc < 0 ? rc : write_all(l->fd, l->data_off + off, &v, 1, sizeof piece);
    }
    return rc;
}

static int write_new_chunks(struct layer *l, uint64_t off, uint64_t len)
{
    uint64_t first = off >> LAYER_CHUNK_SHIFT, last = (off + len - 1) >> LAYER_CHUNK_SHIFT;
    int rc = 0;

    if ((off & (LAYER_CHUNK - 1)) && !chunk_present(l, first))
        rc = chunk_fill(l, first);
    if (rc < 0)
        return rc;
    bool tail = (off + len) & (LAYER_CHUNK - 1);
    if (tail && !chunk_present(l, last) && !(last == first && (off & (LAYER_CHUNK - 1))))
        rc = chunk_fill(l, last);
    return rc;
}

int layer_write(struct layer *l, uint64_t off, uint64_t len, const struct iovec *iov, unsigned n)
{
    if (l->fd < 0)
        return -EROFS;
    if (len == 0)
        return 0;
    int rc = write_new_chunks(l, off, len);
    if (rc < 0)
        return rc;
    rc = write_all(l->fd, l->data_off + off, iov, n, len);
    if (rc < 0)
        return rc;
    l->unsynced = true;
    for (uint64_t c = off >> LAYER_CHUNK_SHIFT; c <= (off + len - 1) >> LAYER_CHUNK_SHIFT; c++)
        if (!chunk_present(l, c))
            chunk_mark(l, c);
    return 0;
}

/* Whole chunks become holes of the layer (a marked chunk that is a hole reads as zeros). */
static int chunks_punch(struct layer *l, uint64_t off, uint64_t len, bool zero)
{
    for (uint64_t o = off; o < off + len; o += LAYER_CHUNK) {
        uint64_t c = o >> LAYER_CHUNK_SHIFT;
        bool present = chunk_present(l, c);

        if (!present && (!zero || o >= l->base_bytes))
            continue;
        /* Also one that was never marked: a write that failed half-way may have left something. */
        if (fallocate(l->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(l->data_off + o),
                      LAYER_CHUNK) < 0)
            return -errno;
        l->unsynced = true;
        chunk_mark(l, c);
    }
    return 0;
}

static int write_zeros(struct layer *l, uint64_t off, uint64_t len)
{
    static const uint8_t zeros[4096];

    while (len) {
        struct iovec v = {(void *)zeros, len < sizeof zeros ? len : sizeof zeros};
        int rc = layer_write(l, off, v.iov_len, &v, 1);
        if (rc < 0)
            return rc;
        off += v.iov_len;
        len -= v.iov_len;
    }
    return 0;
}

int layer_discard(struct layer *l, uint64_t off, uint64_t len, bool zero)
{
    if (l->fd < 0)
        return -EROFS;
    uint64_t from = (off + LAYER_CHUNK - 1) & ~(uint64_t)(LAYER_CHUNK - 1);
    uint64_t to = (off + len) & ~(uint64_t)(LAYER_CHUNK - 1);

    if (off + len == l->disk_bytes) /* the last chunk may be shorter than 64 KiB */
        to = l->nchunks << LAYER_CHUNK_SHIFT;
    if (from >= to)
        return zero ? write_zeros(l, off, len) : 0;
    int rc = chunks_punch(l, from, to - from, zero);
    if (rc < 0 || !zero)
        return rc;
    if (off < from)
        rc = write_zeros(l, off, from - off);
    if (rc == 0 && to < off + len)
        rc = write_zeros(l, to, off + len - to);
    return rc;
}

int layer_publish(struct layer *l)
{
    if (l->fd < 0 || l->dirty_from >= l->dirty_to)
        return 0;
    struct iovec v = {l->bitmap + l->dirty_from, l->dirty_to - l->dirty_from};
    int rc = write_all(l->fd, l->bitmap_off + l->dirty_from, &v, 1, v.iov_len);
    if (rc == 0)
        l->dirty_from = l->dirty_to = 0;
    return rc;
}

int layer_flush(struct layer *l)
{
    if (l->fd < 0)
        return 0;
    if (l->unsynced && fdatasync(l->fd) < 0)
        return -errno;
    l->unsynced = false;
    if (l->dirty_from >= l->dirty_to)
        return 0;
    int rc = layer_publish(l);
    if (rc < 0)
        return rc;
    return fdatasync(l->fd) < 0 ? -errno : 0;
}
