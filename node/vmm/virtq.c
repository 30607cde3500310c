/* The rings of a virtqueue. Invariant: no pointer leaves this file that was not checked to lie wholly in
 * guest RAM, no loop runs longer than the queue has entries, and every ring field is read exactly once before
 * it is used. */
#include "node/vmm/virtq.h"

#include <linux/virtio_ring.h>
#include <string.h>

/* Linux' ring structures have fixed layouts (VIRTIO 1.2 §2.7.5–2.7.8): avail = flags, idx, ring[],
 * used_event; used = flags, idx, {id, len}[], avail_event. */
static uint16_t load16(const void *p)
{
    return __atomic_load_n((const uint16_t *)p, __ATOMIC_ACQUIRE);
}

static void store16(void *p, uint16_t v)
{
    __atomic_store_n((uint16_t *)p, v, __ATOMIC_RELEASE);
}

/* Must be what the guest kernel's virtio_mmio looks for (guest/kernel/patches, the one named virtio_mmio). */
#define USED_F_CONFIG 0x8000

void virtq_mark_config(struct virtq *q, bool changed)
{
    if (q->ready && q->event_idx)
        store16(q->used_p, changed ? USED_F_CONFIG : 0);
}

void virtq_init(struct virtq *q, const struct guest_mem *mem, uint16_t max)
{
    *q = (struct virtq){.mem = mem, .max = max, .size = max};
}

void virtq_reset(struct virtq *q)
{
    virtq_init(q, q->mem, q->max);
}

bool virtq_enable(struct virtq *q)
{
    q->ready = false;
    if (q->size == 0 || q->size > q->max || (q->size & (q->size - 1)))
        return false;
    if ((q->desc & 15) || (q->driver & 1) || (q->device & 3))
        return false;
    q->desc_p = mem_at(q->mem, q->desc, 16ull * q->size);
    q->avail_p = mem_at(q->mem, q->driver, 6 + 2ull * q->size);
    q->used_p = mem_at(q->mem, q->device, 6 + 8ull * q->size);
    q->ready = q->desc_p && q->avail_p && q->used_p;
    return q->ready;
}

static int queue_broke(struct virtq *q)
{
    q->broken = true;
    return -1;
}

bool virtq_pending(const struct virtq *q)
{
    return q->ready && !q->broken && load16(q->avail_p + 2) != q->next_avail;
}

bool virtq_look(const struct virtq *q, struct virtq_view *out)
{
    if (!q->ready || q->broken)
        return false;
    *out = (struct virtq_view){.avail = load16(q->avail_p + 2),
                               .taken = q->next_avail,
                               .used = q->next_used,
                               .used_event = load16(q->avail_p + 4 + 2 * q->size),
                               .avail_event = load16(q->used_p + 4 + 8 * q->size)};
    return true;
}

static bool chain_add(struct virtq *q, struct virtq_chain *c, const struct vring_desc *d)
{
    bool in = d->flags & VRING_DESC_F_WRITE;

    if (d->len == 0)
        return true;
    if ((!in && c->nin) || c->nout + c->nin >= VIRTQ_IOV_MAX)
        return false;
    if ((uint64_t)c->out_len + c->in_len + d->len > VIRTQ_BYTES_MAX)
        return false;
    void *p = mem_at(q->mem, d->addr, d->len);
    if (!p)
        return false;
    c->iov[c->nout + c->nin] = (struct iovec){p, d->len};
    if (in) {
        c->nin++;
        c->in_len += d->len;
    } else {
        c->nout++;
        c->out_len += d->len;
    }
    return true;
}

/* Walks one table of `n` descriptors from entry `i`. An indirect table may stand only as the last of the
 * outer chain and may hold no further one (VIRTIO 1.2 §2.7.5.3.1). */
static bool chain_walk(struct virtq *q, struct virtq_chain *c, const uint8_t *table, unsigned n, unsigned i,
                       bool inner)
{
    for (unsigned steps = 0; steps < n; steps++) {
        struct vring_desc d;

        if (i >= n)
            return false;
        memcpy(&d, table + 16ul * i, sizeof d);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        if (d.flags & VRING_DESC_F_INDIRECT) {
            if (inner || (d.flags & VRING_DESC_F_NEXT) || d.len == 0 || d.len % 16 ||
                d.len / 16 > VIRTQ_IOV_MAX)
                return false;
            const uint8_t *t = mem_at(q->mem, d.addr, d.len);
            return t && chain_walk(q, c, t, d.len / 16, 0, true);
        }
        if (!chain_add(q, c, &d))
            return false;
        if (!(d.flags & VRING_DESC_F_NEXT))
            return true;
        i = d.next;
    }
    return false; /* longer than the table: a loop */
}

int virtq_pop(struct virtq *q, struct virtq_chain *c)
{
    if (q->broken)
        return -1;
    if (!q->ready)
        return 0;
    uint16_t ahead = (uint16_t)(load16(q->avail_p + 2) - q->next_avail);
    if (ahead == 0)
        return 0;
    if (ahead > q->size)
        return queue_broke(q);

    uint16_t head = load16(q->avail_p + 4 + 2ul * (q->next_avail & (q->size - 1)));
    if (head >= q->size)
        return queue_broke(q);
    c->head = head;
    c->nout = c->nin = 0;
    c->out_len = c->in_len = 0;
    if (!chain_walk(q, c, q->desc_p, q->size, head, false))
        return queue_broke(q);
    q->next_avail++;
    return 1;
}

void virtq_unpop(struct virtq *q, unsigned n)
{
    q->next_avail -= (uint16_t)n;
}

void virtq_fill(struct virtq *q, unsigned at, uint16_t head, uint32_t len)
{
    uint8_t *slot = q->used_p + 4 + 8ul * ((uint16_t)(q->next_used + at) & (q->size - 1));
    uint32_t id = head;

    memcpy(slot, &id, 4);
    memcpy(slot + 4, &len, 4);
}

void virtq_publish(struct virtq *q, unsigned n)
{
    q->next_used += (uint16_t)n;
    store16(q->used_p + 2, q->next_used);
}

void virtq_push(struct virtq *q, uint16_t head, uint32_t len)
{
    virtq_fill(q, 0, head, len);
    virtq_publish(q, 1);
}

bool virtq_should_interrupt(struct virtq *q)
{
    if (!q->ready)
        return false;
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the used index before the guest's wish */
    uint16_t now = q->next_used, old = q->signalled;
    bool first = !q->signalled_valid;

    if (!first && now == old)
        return false;
    if (!q->event_idx)
        first = !(load16(q->avail_p) & VRING_AVAIL_F_NO_INTERRUPT);
    else if (!first)
        first = vring_need_event(load16(q->avail_p + 4 + 2ul * q->size), now, old);
    q->signalled = now;
    q->signalled_valid = true;
    return first;
}

bool virtq_want_kick(struct virtq *q)
{
    if (!q->ready || q->broken)
        return false;
    if (q->event_idx)
        store16(q->used_p + 4 + 8ul * q->size, q->next_avail);
    else
        store16(q->used_p, 0);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return virtq_pending(q);
}

bool virtq_want_more(struct virtq *q)
{
    if (!q->ready || q->broken)
        return false;
    uint16_t seen = load16(q->avail_p + 2);
    if (q->event_idx)
        store16(q->used_p + 4 + 8ul * q->size, seen);
    else
        store16(q->used_p, 0);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return load16(q->avail_p + 2) != seen;
}

void virtq_no_kick(struct virtq *q)
{
    if (q->ready && !q->event_idx)
        store16(q->used_p, VRING_USED_F_NO_NOTIFY);
}
