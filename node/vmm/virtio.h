/* What all virtio devices share: feature negotiation, status, queues, the MMIO register block (VIRTIO 1.2
 * §4.2). */
#pragma once

#include "node/vmm/virtq.h"

#include <pthread.h>
#include <stdatomic.h>

#define VIRTIO_QUEUES_MAX 3
#define VIRTIO_MMIO_SIZE 0x1000u
/** Vendor IDs: the first tells the paravirtual guest kernel that it needs not read the interrupt status (two
 * exits per interrupt, 35–100 µs each, on such hosts; guest-kernel/experiments.md §4). */
#define VIRTIO_VENDOR_PVM 0x4d5650u
#define VIRTIO_VENDOR_CUBE 0x45425543u

struct virtio_dev;

/** What a device kind does. All calls come with `dev->lock` held. */
struct virtio_ops {
    const char *name;
    uint32_t id;                                         /* VIRTIO 1.2 §5 */
    void (*run_queue)(struct virtio_dev *d, unsigned q); /* worker thread: something may be in queue `q` */
    void (*reset)(struct virtio_dev *d);                 /* the driver reset the device; may be NULL */
    void (*driver_ok)(struct virtio_dev *d); /* the driver is ready, or a restore finished; may be NULL */
};

/** Base of every device. Queues are touched by the worker thread, registers by vCPU threads: both hold
 * `lock`. */
struct virtio_dev {
    const struct virtio_ops *ops;
    const struct guest_mem *mem;
    pthread_mutex_t lock;
    uint32_t vendor;
    uint64_t features; /* offered */
    uint64_t acked;    /* accepted by the driver */
    uint32_t features_sel, acked_sel, queue_sel;
    uint32_t status;
    atomic_uint isr;
    unsigned nqueues;
    struct virtq q[VIRTIO_QUEUES_MAX];
    int irq_fd;                     /* eventfd that raises the device's interrupt */
    int kick_fd[VIRTIO_QUEUES_MAX]; /* eventfds that the driver's notifications arrive on */
    const void *config;             /* configuration space, read only */
    uint32_t config_generation;     /* counts its changes */
    uint32_t config_len;
};

/** Registers of one device that a snapshot keeps; part of state format 1, so of fixed size and order. */
struct virtio_state {
    uint32_t id, status;
    uint64_t features, acked;
    uint32_t features_sel, acked_sel, queue_sel, nqueues;
    struct {
        uint64_t desc, driver, device;
        uint16_t size, ready, next_avail, next_used, signalled, signalled_valid, broken, zero;
    } q[VIRTIO_QUEUES_MAX];
};

/** Sets up the base: event descriptors, queues of `queue_size` entries, VERSION_1 | EVENT_IDX | INDIRECT_DESC
 * | `features`. */
int virtio_init(struct virtio_dev *d, const struct virtio_ops *ops, const struct guest_mem *mem,
                unsigned nqueues, uint16_t queue_size, uint64_t features, struct err *e);
void virtio_free(struct virtio_dev *d);

/** The driver's register accesses; `off` < 0x1000, `len` 1, 2, 4 or 8. Takes the lock. */
void virtio_mmio_read(struct virtio_dev *d, uint64_t off, void *data, unsigned len);
void virtio_mmio_write(struct virtio_dev *d, uint64_t off, const void *data, unsigned len);

static inline bool virtio_running(const struct virtio_dev *d)
{
    return (d->status & 4) && !(d->status & 0x40);
}
static inline bool virtio_has(const struct virtio_dev *d, unsigned bit)
{
    return d->acked & (1ull << bit);
}

/** Interrupts the guest when it wants to know what was pushed to `q`. */
void virtio_interrupt(struct virtio_dev *d, struct virtq *q);
/** Interrupts unconditionally (after a restore). */
void virtio_pulse(struct virtio_dev *d);
/** What the driver reads as configuration is another one now (the caller changed it under `lock`): tells it.
 */
void virtio_config_changed(struct virtio_dev *d);
/** The guest broke its rings: ask for a reset and stop serving it. */
void virtio_needs_reset(struct virtio_dev *d);

void virtio_save(const struct virtio_dev *d, struct virtio_state *s);
/** Takes a saved state over, checked like a driver's own set-up. */
int virtio_load(struct virtio_dev *d, const struct virtio_state *s, struct err *e);
