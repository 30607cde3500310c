/* See driver.h. */
#include "tests/unit/vmm/driver.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void driver_ram(struct driver *d)
{
    struct err e = {0};

    memset(d, 0, sizeof *d);
    if (mem_reserve(&d->mem, DRIVER_RAM_MIB, &e) < 0)
        abort();
    d->brk = 0x10000;
}

void driver_ram_free(struct driver *d)
{
    mem_release(&d->mem);
}

uint64_t driver_alloc(struct driver *d, uint64_t bytes)
{
    uint64_t at = d->brk;

    d->brk += (bytes + 4095) & ~4095ull;
    if (d->brk > d->mem.size)
        abort();
    memset(d->mem.base + at, 0, bytes);
    return at;
}

void *driver_at(struct driver *d, uint64_t gpa)
{
    return d->mem.base + gpa;
}

void driver_write(struct driver *d, uint64_t off, uint32_t v)
{
    virtio_mmio_write(d->dev, off, &v, 4);
}

uint32_t driver_read(struct driver *d, uint64_t off)
{
    uint32_t v;

    virtio_mmio_read(d->dev, off, &v, 4);
    return v;
}

static void queue_setup(struct driver *d, unsigned i, uint16_t size)
{
    struct driver_queue *q = &d->q[i];

    *q = (struct driver_queue){.desc = driver_alloc(d, 16ul * size),
                               .avail = driver_alloc(d, 6 + 2ul * size),
                               .used = driver_alloc(d, 6 + 8ul * size),
                               .size = size};
    driver_write(d, VIRTIO_MMIO_QUEUE_SEL, i);
    driver_write(d, VIRTIO_MMIO_QUEUE_NUM, size);
    driver_write(d, VIRTIO_MMIO_QUEUE_DESC_LOW, (uint32_t)q->desc);
    driver_write(d, VIRTIO_MMIO_QUEUE_DESC_HIGH, (uint32_t)(q->desc >> 32));
    driver_write(d, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (uint32_t)q->avail);
    driver_write(d, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, (uint32_t)(q->avail >> 32));
    driver_write(d, VIRTIO_MMIO_QUEUE_USED_LOW, (uint32_t)q->used);
    driver_write(d, VIRTIO_MMIO_QUEUE_USED_HIGH, (uint32_t)(q->used >> 32));
    driver_write(d, VIRTIO_MMIO_QUEUE_READY, 1);
}

void driver_start(struct driver *d, struct virtio_dev *dev, uint64_t without, uint16_t size)
{
    d->dev = dev;
    driver_write(d, VIRTIO_MMIO_STATUS, 0);
    driver_write(d, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER);
    for (uint32_t half = 0; half < 2; half++) {
        driver_write(d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
        uint32_t f = driver_read(d, VIRTIO_MMIO_DEVICE_FEATURES) & ~(uint32_t)(without >> (32 * half));
        driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
        driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES, f);
    }
    driver_write(d, VIRTIO_MMIO_STATUS, 1 | 2 | VIRTIO_CONFIG_S_FEATURES_OK);
    for (unsigned i = 0; i < dev->nqueues; i++)
        queue_setup(d, i, size);
    driver_write(d, VIRTIO_MMIO_STATUS, 1 | 2 | VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK);
}

uint16_t driver_add(struct driver *d, unsigned qi, const struct part *p, unsigned n)
{
    struct driver_queue *q = &d->q[qi];
    struct vring_desc *desc = driver_at(d, q->desc);
    uint16_t *avail = driver_at(d, q->avail);
    uint16_t head = q->next_desc;

    for (unsigned i = 0; i < n; i++) {
        uint16_t at = (uint16_t)((head + i) % q->size), next = (uint16_t)((head + i + 1) % q->size);
        desc[at] = (struct vring_desc){
            p[i].gpa, p[i].len,
            (uint16_t)((p[i].in ? VRING_DESC_F_WRITE : 0) | (i + 1 < n ? VRING_DESC_F_NEXT : 0)), next};
    }
    q->next_desc = (uint16_t)((head + n) % q->size);
    avail[2 + q->avail_idx % q->size] = head;
    q->avail_idx++;
    __atomic_store_n(&avail[1], q->avail_idx, __ATOMIC_RELEASE);
    return head;
}

void driver_kick(struct driver *d, unsigned q)
{
    pthread_mutex_lock(&d->dev->lock);
    d->dev->ops->run_queue(d->dev, q);
    pthread_mutex_unlock(&d->dev->lock);
}

bool driver_used(struct driver *d, unsigned qi, uint16_t *head, uint32_t *len)
{
    struct driver_queue *q = &d->q[qi];
    uint8_t *used = driver_at(d, q->used);
    uint16_t idx;
    uint32_t id;

    memcpy(&idx, used + 2, 2);
    if (idx == q->used_seen)
        return false;
    memcpy(&id, used + 4 + 8ul * (q->used_seen % q->size), 4);
    memcpy(len, used + 8 + 8ul * (q->used_seen % q->size), 4);
    *head = (uint16_t)id;
    q->used_seen++;
    return true;
}

uint64_t driver_interrupts(struct driver *d)
{
    uint64_t n = 0;

    return read(d->dev->irq_fd, &n, sizeof n) == sizeof n ? n : 0;
}
