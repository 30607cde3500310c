/* A disk of a VM: a read-only base image shared by many, and a private copy-on-write layer over it
 * (internal.md §7). */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>
#include <sys/uio.h>

#define LAYER_MAGIC "CUBELAY1"
#define LAYER_VERSION 1u
#define LAYER_CHUNK_SHIFT 16 /* 64 KiB */
#define LAYER_CHUNK (1u << LAYER_CHUNK_SHIFT)
#define LAYER_DISK_MAX (1ull << 44)

/** First 4 KiB of a layer file; little-endian. Chunk n of the disk is at `data_off` + n * 64 KiB of the
 * (sparse) file when bit n of the bitmap is set, else it comes from the base (zeros beyond the base's end).
 */
struct layer_header {
    char magic[8];
    uint32_t version;
    uint32_t chunk_shift;
    uint64_t disk_bytes;
    uint64_t bitmap_off, bitmap_bytes;
    uint64_t data_off;
    char parent[64]; /* what the base is, as the node names it; "" = not said */
    uint32_t crc;    /* CRC-32C of the bytes before */
};

struct layer {
    int base_fd;
    uint64_t base_bytes;
    int fd; /* -1: the disk is read-only and has no layer */
    uint64_t disk_bytes, data_off, bitmap_off, nchunks;
    uint8_t *bitmap;
    uint64_t dirty_from, dirty_to; /* bytes of the bitmap not yet in the file; from ≥ to = none */
    bool unsynced;                 /* data written since the last flush */
    uint64_t chunks;               /* chunks in the layer */
};

/** Opens base and layer; takes both descriptors over. An empty layer file is initialised for a disk of
 * `disk_bytes` (a multiple of 512, at least the base's size); of one in use the header is checked, and
 * `parent` compared unless it is "". */
int layer_open(struct layer *l, int base_fd, int layer_fd, uint64_t disk_bytes, const char *parent,
               struct err *e);
void layer_close(struct layer *l);

/** Makes the disk `disk_bytes` long (a multiple of 512, not less than now); what is new reads as zeros. A
 * layer keeps its place for data, so it can grow as far as its bitmap's first 60 KiB reach: to 30 GiB. */
int layer_grow(struct layer *l, uint64_t disk_bytes, struct err *e);

/** Transfer `len` bytes at byte `off` of the disk; the range was checked by the caller. Return 0 or -errno.
 */
int layer_read(struct layer *l, uint64_t off, uint64_t len, const struct iovec *iov, unsigned n);
int layer_write(struct layer *l, uint64_t off, uint64_t len, const struct iovec *iov, unsigned n);

/** Makes the range read as zeros (`zero`) or drops it when that saves space (content undefined). */
int layer_discard(struct layer *l, uint64_t off, uint64_t len, bool zero);

/** Makes everything written so far durable: data first, then the bitmap that points at it. Return 0 or
 * -errno. */
int layer_flush(struct layer *l);

/** Writes the bitmap to the file without waiting for the disk, so that a reader of the file sees a whole
 * layer. */
int layer_publish(struct layer *l);
