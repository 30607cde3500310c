/* virtio-balloon (VIRTIO 1.2 §5.5), for free-page reporting only: what the guest does not use goes back to
 * the host. */
#pragma once

#include "node/vmm/virtio.h"
#include "node/vmm/worker.h"

#include <linux/virtio_balloon.h>

struct balloon {
    struct virtio_dev dev;
    struct virtio_balloon_config config; /* num_pages stays 0: the guest is never asked to shrink */
    struct watch kick[3];
    struct worker *worker;
    uint64_t reported_bytes;
};

int balloon_init(struct balloon *b, const struct guest_mem *mem, struct worker *w, struct err *e);
void balloon_free(struct balloon *b);
