/* A virtio driver for tests: guest RAM in this process, queues set up through the device's registers, chains
 * added by hand. */
#pragma once

#include "node/vmm/virtio.h"

#include <linux/virtio_ring.h>

#define DRIVER_RAM_MIB 64u
#define DRIVER_QUEUE 16u

struct driver_queue {
    uint64_t desc, avail, used; /* guest-physical */
    uint16_t size, next_desc, avail_idx, used_seen;
};

struct driver {
    struct guest_mem mem;
    struct virtio_dev *dev;
    uint64_t brk; /* next free guest-physical byte */
    struct driver_queue q[VIRTIO_QUEUES_MAX];
};

void driver_ram(struct driver *d);
void driver_ram_free(struct driver *d);
uint64_t driver_alloc(struct driver *d, uint64_t bytes); /* 4 KiB aligned */
void *driver_at(struct driver *d, uint64_t gpa);

void driver_write(struct driver *d, uint64_t off, uint32_t v);
uint32_t driver_read(struct driver *d, uint64_t off);

/** Reset, features (the offered ones without those in `without`), queues of `size`, DRIVER_OK. */
void driver_start(struct driver *d, struct virtio_dev *dev, uint64_t without, uint16_t size);

struct part {
    uint64_t gpa;
    uint32_t len;
    bool in; /* for the device to write */
};
/** Adds a chain of `n` parts, makes it available; returns its head. Does not notify. */
uint16_t driver_add(struct driver *d, unsigned q, const struct part *p, unsigned n);
/** Runs the device's queue as its thread would after a kick. */
void driver_kick(struct driver *d, unsigned q);
/** The next used entry: true and its head and length. */
bool driver_used(struct driver *d, unsigned q, uint16_t *head, uint32_t *len);
/** Interrupts that came since the last call. */
uint64_t driver_interrupts(struct driver *d);
