/* virtio-net (VIRTIO 1.2 §5.1) on a TAP descriptor: the guest's way out. Offloads are passed through (vnet
 * header). */
#pragma once

#include "node/vmm/bucket.h"
#include "node/vmm/virtio.h"
#include "node/vmm/worker.h"

#include <linux/virtio_net.h>

struct net {
    struct virtio_dev dev;
    struct virtio_net_config config;
    struct worker *worker;
    struct watch kick[2], tap, timer;
    bool tap_ready; /* the TAP had something at the last look (it is watched edge-triggered) */
    struct bucket out, in;
    uint64_t rx_bytes, tx_bytes; /* as the guest sees them */
};

int net_init(struct net *n, const struct guest_mem *mem, struct worker *w, struct err *e);

/** Puts a TAP (made with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR; taken over) and a MAC under the device. 0 = no
 * rate limit. */
int net_attach(struct net *n, int tap_fd, const uint8_t mac[6], uint64_t bytes_per_s, struct err *e);
void net_free(struct net *n);
