/* A split virtqueue (VIRTIO 1.2 §2.7) seen from the device. Everything in the rings is written by a hostile
 * guest. */
#pragma once

#include "node/vmm/iov.h"
#include "node/vmm/mem.h"

#define VIRTQ_SIZE_MAX 256         /* entries that a device offers at most */
#define VIRTQ_IOV_MAX 260          /* descriptors of one chain; more is a broken guest */
#define VIRTQ_BYTES_MAX (1u << 30) /* bytes of one chain; a report of free pages has 32 blocks of 4 MiB */

struct virtq {
    const struct guest_mem *mem;
    uint16_t max;  /* offered */
    uint16_t size; /* chosen by the driver, a power of two ≤ max */
    bool ready;
    bool broken;    /* the rings made no sense: the device asks for a reset and touches the queue no more */
    bool event_idx; /* VIRTIO_F_EVENT_IDX was negotiated */
    uint64_t desc, driver, device; /* guest-physical addresses of the three areas */

    /* Host addresses, valid while `ready`. */
    uint8_t *desc_p, *avail_p, *used_p;
    uint16_t next_avail; /* index of the next entry of the available ring to take */
    uint16_t next_used;  /* our used index */
    uint16_t signalled;  /* used index at the last interrupt */
    bool signalled_valid;
};

/** One request: `out` descriptors (the guest's data) come first in `iov`, then `in` descriptors (for us to
 * fill). All lie in guest RAM, which the guest may change at any time: read once, then decide. */
struct virtq_chain {
    uint16_t head;
    unsigned nout, nin;
    uint32_t out_len, in_len; /* bytes */
    struct iovec iov[VIRTQ_IOV_MAX];
};

static inline struct iovec *virtq_in(struct virtq_chain *c)
{
    return c->iov + c->nout;
}

void virtq_init(struct virtq *q, const struct guest_mem *mem, uint16_t max);
void virtq_reset(struct virtq *q);

/** Checks size, alignment and that the three areas are RAM; then `ready`. Returns false (and stays not ready)
 * otherwise. */
bool virtq_enable(struct virtq *q);

/** Takes the next request: 1 = `c` is filled, 0 = the ring is empty, -1 = the queue is broken. */
int virtq_pop(struct virtq *q, struct virtq_chain *c);

/** Puts the last `n` popped chains back, newest first, when the device cannot serve them now. */
void virtq_unpop(struct virtq *q, unsigned n);

/** Whether the ring has something to take. */
bool virtq_pending(const struct virtq *q);

/** Returns a request with `len` bytes written to its `in` part. */
void virtq_push(struct virtq *q, uint16_t head, uint32_t len);

/** Fills a used entry `at` places ahead without making it visible; `virtq_publish` shows `n` at once
 * (mergeable net buffers). */
void virtq_fill(struct virtq *q, unsigned at, uint16_t head, uint32_t len);
void virtq_publish(struct virtq *q, unsigned n);

/** Whether the guest wants an interrupt for what was pushed since the last one; records it as sent. */
bool virtq_should_interrupt(struct virtq *q);

/** Sets or clears the mark "the configuration changed" in the used flags, for a driver that does not read the
 * interrupt status (docs/kernel.md). Only for queues with EVENT_IDX: without it the flags say something else.
 */
void virtq_mark_config(struct virtq *q, bool changed);

struct virtq_view {
    uint16_t avail, taken, used;      /* free-running indices: the driver's, ours, ours */
    uint16_t used_event, avail_event; /* entries after which driver and device want to hear from the other */
};

/** Where both sides of a queue stand, for the log. False when the queue is not in use. */
bool virtq_look(const struct virtq *q, struct virtq_view *out);

/** Asks for a kick at the next entry; returns true when there is one already (take it instead of waiting). */
bool virtq_want_kick(struct virtq *q);

/** As `virtq_want_kick`, but what is in the ring now is known and not enough: asks for news after it. True
 * when there is some. */
bool virtq_want_more(struct virtq *q);

/** Asks for no kicks while the device is looking at the ring anyway. */
void virtq_no_kick(struct virtq *q);
