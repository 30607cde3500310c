/* The common half of the devices and their MMIO registers. Invariant: a queue is `ready` only between a
 * checked set-up and the next reset; the driver can change neither features nor addresses of a queue in use.
 */
#include "node/vmm/virtio.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int virtio_init(struct virtio_dev *d, const struct virtio_ops *ops, const struct guest_mem *mem,
                unsigned nqueues, uint16_t queue_size, uint64_t features, struct err *e)
{
    d->ops = ops;
    d->mem = mem;
    d->vendor = VIRTIO_VENDOR_CUBE;
    d->features = features | 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_RING_F_EVENT_IDX |
                  1ull << VIRTIO_RING_F_INDIRECT_DESC;
    d->nqueues = nqueues;
    pthread_mutex_init(&d->lock, NULL);
    d->irq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->irq_fd < 0)
        return err_sys(e, ERR_INTERNAL, "eventfd of device %s", ops->name);
    for (unsigned i = 0; i < nqueues; i++) {
        virtq_init(&d->q[i], mem, queue_size);
        d->kick_fd[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (d->kick_fd[i] < 0)
            return err_sys(e, ERR_INTERNAL, "eventfd of device %s", ops->name);
    }
    return 0;
}

void virtio_free(struct virtio_dev *d)
{
    if (!d->ops)
        return;
    for (unsigned i = 0; i < d->nqueues; i++)
        close(d->kick_fd[i]);
    close(d->irq_fd);
    pthread_mutex_destroy(&d->lock);
    d->ops = NULL;
}

void virtio_pulse(struct virtio_dev *d)
{
    uint64_t one = 1;

    atomic_fetch_or(&d->isr, VIRTIO_MMIO_INT_VRING);
    ssize_t n = write(d->irq_fd, &one, sizeof one); /* fails only when 2^64-2 interrupts are pending */
    (void)n;
}

void virtio_interrupt(struct virtio_dev *d, struct virtq *q)
{
    if (virtq_should_interrupt(q))
        virtio_pulse(d);
}

/* A driver that knows the vendor looks at the status only when the mark in memory says so. */
static void config_mark(struct virtio_dev *d)
{
    if (d->vendor == VIRTIO_VENDOR_PVM)
        virtq_mark_config(&d->q[0], atomic_load(&d->isr) & VIRTIO_MMIO_INT_CONFIG);
}

void virtio_config_changed(struct virtio_dev *d)
{
    d->config_generation++;
    atomic_fetch_or(&d->isr, VIRTIO_MMIO_INT_CONFIG);
    config_mark(d);
    virtio_pulse(d);
}

void virtio_needs_reset(struct virtio_dev *d)
{
    if (d->status & VIRTIO_CONFIG_S_NEEDS_RESET)
        return;
    d->status |= VIRTIO_CONFIG_S_NEEDS_RESET;
    virtio_config_changed(d);
}

static void device_reset(struct virtio_dev *d)
{
    d->status = 0;
    d->acked = 0;
    d->features_sel = d->acked_sel = d->queue_sel = 0;
    atomic_store(&d->isr, 0);
    for (unsigned i = 0; i < d->nqueues; i++)
        virtq_reset(&d->q[i]);
    if (d->ops->reset)
        d->ops->reset(d);
}

static void queues_apply_features(struct virtio_dev *d)
{
    for (unsigned i = 0; i < d->nqueues; i++)
        d->q[i].event_idx = virtio_has(d, VIRTIO_RING_F_EVENT_IDX);
}

/* VIRTIO 1.2 §3.1.1: the driver sets bits one after the other; FEATURES_OK sticks only when the set is
 * acceptable. */
static void status_write(struct virtio_dev *d, uint32_t v)
{
    if (v == 0) {
        device_reset(d);
        return;
    }
    uint32_t old = d->status;
    v &= VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_DRIVER_OK |
         VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_FAILED;
    if ((v & VIRTIO_CONFIG_S_FEATURES_OK) && !(old & VIRTIO_CONFIG_S_FEATURES_OK)) {
        if ((d->acked & ~d->features) || !virtio_has(d, VIRTIO_F_VERSION_1))
            v &= ~VIRTIO_CONFIG_S_FEATURES_OK;
        else
            queues_apply_features(d);
    }
    if (!(v & VIRTIO_CONFIG_S_FEATURES_OK))
        v &= ~VIRTIO_CONFIG_S_DRIVER_OK;
    d->status = v | (old & VIRTIO_CONFIG_S_NEEDS_RESET);
    if ((v & VIRTIO_CONFIG_S_DRIVER_OK) && !(old & VIRTIO_CONFIG_S_DRIVER_OK) && d->ops->driver_ok)
        d->ops->driver_ok(d);
}

static struct virtq *selected(struct virtio_dev *d)
{
    return d->queue_sel < d->nqueues ? &d->q[d->queue_sel] : NULL;
}

static uint32_t register_read(struct virtio_dev *d, uint64_t off)
{
    struct virtq *q = selected(d);

    switch (off) {
    case VIRTIO_MMIO_MAGIC_VALUE:
        return 0x74726976;
    case VIRTIO_MMIO_VERSION:
        return 2;
    case VIRTIO_MMIO_DEVICE_ID:
        return d->ops->id;
    case VIRTIO_MMIO_VENDOR_ID:
        return d->vendor;
    case VIRTIO_MMIO_DEVICE_FEATURES:
        return d->features_sel > 1 ? 0 : (uint32_t)(d->features >> (32 * d->features_sel));
    case VIRTIO_MMIO_QUEUE_NUM_MAX:
        return q ? q->max : 0;
    case VIRTIO_MMIO_QUEUE_READY:
        return q && q->ready;
    case VIRTIO_MMIO_INTERRUPT_STATUS:
        return atomic_load(&d->isr);
    case VIRTIO_MMIO_STATUS:
        return d->status;
    case VIRTIO_MMIO_SHM_LEN_LOW: /* no shared memory: length −1 (§4.2.2) */
    case VIRTIO_MMIO_SHM_LEN_HIGH:
        return 0xffffffff;
    case VIRTIO_MMIO_CONFIG_GENERATION:
        return d->config_generation;
    default:
        return 0;
    }
}

void virtio_mmio_read(struct virtio_dev *d, uint64_t off, void *data, unsigned len)
{
    memset(data, 0, len);
    if (off >= VIRTIO_MMIO_CONFIG) {
        uint64_t at = off - VIRTIO_MMIO_CONFIG;
        if (at < d->config_len)
            memcpy(data, (const uint8_t *)d->config + at,
                   len < d->config_len - at ? len : d->config_len - at);
        return;
    }
    if (len != 4 || (off & 3))
        return;
    pthread_mutex_lock(&d->lock);
    uint32_t v = register_read(d, off);
    pthread_mutex_unlock(&d->lock);
    memcpy(data, &v, 4);
}

static void set_low(uint64_t *a, uint32_t v)
{
    *a = (*a & 0xffffffff00000000ull) | v;
}

static void set_high(uint64_t *a, uint32_t v)
{
    *a = (*a & 0xffffffffull) | (uint64_t)v << 32;
}

static void queue_write(struct virtio_dev *d, struct virtq *q, uint64_t off, uint32_t v)
{
    if (off == VIRTIO_MMIO_QUEUE_READY && v == 0) {
        q->ready = false;
        return;
    }
    if (q->ready || !(d->status & VIRTIO_CONFIG_S_FEATURES_OK))
        return;
    switch (off) {
    case VIRTIO_MMIO_QUEUE_NUM:
        q->size = v <= q->max ? (uint16_t)v : 0;
        break;
    case VIRTIO_MMIO_QUEUE_DESC_LOW:
        set_low(&q->desc, v);
        break;
    case VIRTIO_MMIO_QUEUE_DESC_HIGH:
        set_high(&q->desc, v);
        break;
    case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
        set_low(&q->driver, v);
        break;
    case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
        set_high(&q->driver, v);
        break;
    case VIRTIO_MMIO_QUEUE_USED_LOW:
        set_low(&q->device, v);
        break;
    case VIRTIO_MMIO_QUEUE_USED_HIGH:
        set_high(&q->device, v);
        break;
    case VIRTIO_MMIO_QUEUE_READY:
        virtq_enable(q);
        break;
    default:
        break;
    }
}

static void register_write(struct virtio_dev *d, uint64_t off, uint32_t v)
{
    switch (off) {
    case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
        d->features_sel = v;
        break;
    case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
        d->acked_sel = v;
        break;
    case VIRTIO_MMIO_DRIVER_FEATURES:
        if (d->status & VIRTIO_CONFIG_S_FEATURES_OK)
            break;
        if (d->acked_sel == 0)
            set_low(&d->acked, v);
        else if (d->acked_sel == 1)
            set_high(&d->acked, v);
        break;
    case VIRTIO_MMIO_QUEUE_SEL:
        d->queue_sel = v;
        break;
    case VIRTIO_MMIO_INTERRUPT_ACK:
        atomic_fetch_and(&d->isr, ~v);
        config_mark(d);
        break;
    case VIRTIO_MMIO_STATUS:
        status_write(d, v);
        break;
    default:
        if (selected(d))
            queue_write(d, selected(d), off, v);
    }
}

void virtio_mmio_write(struct virtio_dev *d, uint64_t off, const void *data, unsigned len)
{
    uint32_t v;

    if (off >= VIRTIO_MMIO_CONFIG || len != 4 || (off & 3)) /* no writable configuration */
        return;
    memcpy(&v, data, 4);
    if (off == VIRTIO_MMIO_QUEUE_NOTIFY) { /* normally an ioeventfd takes it before it gets here */
        uint64_t one = 1;
        if (v < d->nqueues && write(d->kick_fd[v], &one, sizeof one) < 0)
            return;
        return;
    }
    pthread_mutex_lock(&d->lock);
    register_write(d, off, v);
    pthread_mutex_unlock(&d->lock);
}

void virtio_save(const struct virtio_dev *d, struct virtio_state *s)
{
    *s = (struct virtio_state){.id = d->ops->id,
                               .status = d->status,
                               .features = d->features,
                               .acked = d->acked,
                               .features_sel = d->features_sel,
                               .acked_sel = d->acked_sel,
                               .queue_sel = d->queue_sel,
                               .nqueues = d->nqueues};
    for (unsigned i = 0; i < d->nqueues; i++) {
        const struct virtq *q = &d->q[i];

        s->q[i].desc = q->desc;
        s->q[i].driver = q->driver;
        s->q[i].device = q->device;
        s->q[i].size = q->size;
        s->q[i].ready = q->ready;
        s->q[i].broken = q->broken;
        s->q[i].next_avail = q->next_avail;
        s->q[i].next_used = q->next_used;
        s->q[i].signalled = q->signalled;
        s->q[i].signalled_valid = q->signalled_valid;
    }
}

int virtio_load(struct virtio_dev *d, const struct virtio_state *s, struct err *e)
{
    if (s->id != d->ops->id || s->nqueues != d->nqueues || (s->acked & ~d->features))
        return err_set(e, ERR_INVALID, "snapshot: device %s has other features or queues than the saved one",
                       d->ops->name);
    d->status = s->status;
    d->acked = s->acked;
    d->features_sel = s->features_sel;
    d->acked_sel = s->acked_sel;
    d->queue_sel = s->queue_sel;
    for (unsigned i = 0; i < d->nqueues; i++) {
        struct virtq *q = &d->q[i];

        virtq_reset(q);
        q->desc = s->q[i].desc;
        q->driver = s->q[i].driver;
        q->device = s->q[i].device;
        q->size = s->q[i].size;
        q->broken = s->q[i].broken;
        if (s->q[i].ready && !virtq_enable(q))
            return err_set(e, ERR_INVALID, "snapshot: queue %u of device %s is not in guest RAM", i,
                           d->ops->name);
        q->next_avail = s->q[i].next_avail;
        q->next_used = s->q[i].next_used;
        q->signalled = s->q[i].signalled;
        q->signalled_valid = s->q[i].signalled_valid;
    }
    queues_apply_features(d);
    return 0;
}
