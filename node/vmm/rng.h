/* virtio-rng (VIRTIO 1.2 §5.4): random bytes of the host's kernel. */
#pragma once

#include "node/vmm/virtio.h"
#include "node/vmm/worker.h"

struct rng {
    struct virtio_dev dev;
    struct watch kick;
    struct worker *worker;
};

int rng_init(struct rng *r, const struct guest_mem *mem, struct worker *w, struct err *e);
void rng_free(struct rng *r);
