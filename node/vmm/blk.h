/* virtio-blk (VIRTIO 1.2 §5.2) over a copy-on-write disk. */
#pragma once

#include "node/vmm/bucket.h"
#include "node/vmm/layer.h"
#include "node/vmm/virtio.h"
#include "node/vmm/worker.h"

#include <linux/virtio_blk.h>

struct blk {
    struct virtio_dev dev;
    struct layer disk;
    struct virtio_blk_config config;
    char serial[VIRTIO_BLK_ID_BYTES];
    struct bucket bytes, ops;
    struct watch kick, timer; /* timer: when the rate limit lets the next request pass */
    struct worker *worker;
    uint64_t read_bytes, write_bytes;
};

/** Registers of the device and its thread; the disk comes with `blk_attach`. */
int blk_init(struct blk *b, const struct guest_mem *mem, struct worker *w, struct err *e);

/** Puts a disk (opened by the caller, taken over) under the device before the guest starts. Rates of 0 are no
 * limit. */
void blk_attach(struct blk *b, struct layer *disk, const char *serial, uint64_t bytes_per_s,
                uint64_t ops_per_s);

/** Makes the disk longer and tells the guest. Any thread. */
int blk_grow(struct blk *b, uint64_t disk_bytes, struct err *e);
void blk_free(struct blk *b);
