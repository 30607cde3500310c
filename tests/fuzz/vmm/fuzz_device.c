/* Drives one device with what a hostile guest could do: any register write, any bytes in RAM, kicks at any
 * time, traffic from the host in between. The first byte of the input chooses the device; the rest is a
 * program of small operations.
 *
 * Structure helps coverage: the fuzzer starts from a device that is set up, and RAM operations aim at the
 * rings. */
#include "node/vmm/balloon.h"
#include "node/vmm/blk.h"
#include "node/vmm/net.h"
#include "node/vmm/rng.h"
#include "node/vmm/vsock.h"
#include "tests/unit/vmm/driver.h"

#include <fcntl.h>
#include <linux/virtio_mmio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *p;
    size_t left;
};

static uint32_t take(struct input *in, unsigned bytes)
{
    uint32_t v = 0;

    for (unsigned i = 0; i < bytes && in->left; i++, in->left--)
        v |= (uint32_t)*in->p++ << (8 * i);
    return v;
}

static struct driver d;
static struct worker w;
static union {
    struct blk blk;
    struct vsock vsock;
    struct net net;
    struct rng rng;
    struct balloon balloon;
} dev;
static int clients[8], listeners[2], wire;

static int listener(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (s < 0 || bind(s, (void *)&a, sizeof a.sun_family) < 0 || listen(s, 16) < 0)
        abort();
    return s;
}

static struct virtio_dev *device_make(unsigned kind)
{
    struct err e = {0};
    struct layer l;
    int pair[2];

    switch (kind) {
    case 0: {
        int base = memfd_create("base", MFD_CLOEXEC), layer = memfd_create("layer", MFD_CLOEXEC);
        if (ftruncate(base, 300000) < 0 || blk_init(&dev.blk, &d.mem, &w, &e) < 0 ||
            layer_open(&l, base, layer, 1 << 20, "", &e) < 0)
            abort();
        blk_attach(&dev.blk, &l, "root", 0, 0);
        return &dev.blk.dev;
    }
    case 1:
        if (vsock_init(&dev.vsock, &d.mem, &w, &e) < 0)
            abort();
        listeners[0] = listener();
        listeners[1] = listener();
        vsock_attach(&dev.vsock, dup(listeners[0]), dup(listeners[1]));
        return &dev.vsock.dev;
    case 2:
        /* A pair of datagram sockets is a wire that keeps frames apart, as a TAP does. */
        if (net_init(&dev.net, &d.mem, &w, &e) < 0 ||
            socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
            abort();
        wire = pair[0];
        dev.net.tap.fd = pair[1];
        dev.net.tap_ready = true;
        return &dev.net.dev;
    case 3:
        if (rng_init(&dev.rng, &d.mem, &w, &e) < 0)
            abort();
        return &dev.rng.dev;
    default:
        if (balloon_init(&dev.balloon, &d.mem, &w, &e) < 0)
            abort();
        return &dev.balloon.dev;
    }
}

static void device_free(unsigned kind)
{
    switch (kind) {
    case 0:
        blk_free(&dev.blk);
        break;
    case 1:
        vsock_free(&dev.vsock);
        close(listeners[0]);
        close(listeners[1]);
        break;
    case 2:
        net_free(&dev.net);
        close(wire);
        break;
    case 3:
        rng_free(&dev.rng);
        break;
    default:
        balloon_free(&dev.balloon);
    }
    close(w.epoll_fd);
    close(w.wake_fd);
}

/* The host's side: connections that come, speak, read and go; frames on the wire. */
static void host_act(unsigned kind, struct input *in)
{
    static const uint8_t bytes[3000];
    static uint8_t sink[4096];
    uint8_t what = (uint8_t)take(in, 1);
    int *c = &clients[what % 8];

    if (kind == 2) {
        (void)!send(wire, bytes, 12 + take(in, 2) % 2900, MSG_DONTWAIT);
        (void)!recv(wire, sink, sizeof sink, MSG_DONTWAIT);
        dev.net.tap_ready = true;
        return;
    }
    if (kind != 1)
        return;
    if (*c < 0) {
        struct sockaddr_un a;
        socklen_t len = sizeof a;
        *c = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        getsockname(listeners[what >> 7], (void *)&a, &len);
        if (connect(*c, (void *)&a, len) < 0) {
            close(*c);
            *c = -1;
        } else {
            (void)!send(*c, "\xc3\x3f", what & 64 ? 2 : 1, MSG_NOSIGNAL);
        }
        return;
    }
    switch ((what >> 3) & 3) {
    case 0:
        (void)!send(*c, bytes, take(in, 2) % sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
    case 1:
        (void)!recv(*c, sink, sizeof sink, MSG_DONTWAIT);
        break;
    case 2:
        shutdown(*c, SHUT_WR);
        break;
    default:
        close(*c);
        *c = -1;
    }
}

/* Descriptors, ring entries and headers that mean something now and then. */
static void ram_write(struct input *in)
{
    struct driver_queue *q = &d.q[take(in, 1) % VIRTIO_QUEUES_MAX];
    uint8_t what = (uint8_t)take(in, 1);
    uint64_t where;

    if (!q->size)
        return;
    switch (what & 3) {
    case 0: {
        struct vring_desc x = {0x200000 + (take(in, 2) << 4), take(in, 2), (uint16_t)take(in, 1),
                               (uint16_t)take(in, 1)};
        if (what & 4)
            x.addr = (uint64_t)take(in, 4) << (what >> 4);
        where = q->desc + 16ul * (take(in, 1) % q->size);
        memcpy(driver_at(&d, where), &x, sizeof x);
        return;
    }
    case 1: { /* one more available entry, or an index from nowhere */
        uint16_t *avail = driver_at(&d, q->avail);
        avail[2 + q->avail_idx % q->size] = (uint16_t)take(in, 1);
        avail[1] = what & 64 ? (uint16_t)take(in, 2) : ++q->avail_idx;
        return;
    }
    case 2: { /* a vsock header that fits a connection */
        struct virtio_vsock_hdr h = {.src_cid = VSOCK_CID_GUEST,
                                     .dst_cid = VSOCK_CID_HOST,
                                     .type = 1,
                                     .len = take(in, 2),
                                     .op = (uint16_t)(take(in, 1) % 9),
                                     .flags = take(in, 1),
                                     .buf_alloc = take(in, 4),
                                     .fwd_cnt = take(in, 4),
                                     .src_port = (what & 16) ? VSOCK_PORT_CTL : VSOCK_PORT_ENVD};
        if (d.dev->ops->id == 19)
            for (unsigned i = 0; i < 8; i++)
                if (dev.vsock.conns[i] && (what >> 5) % 8 == i) {
                    h.dst_port = dev.vsock.conns[i]->host_port;
                    h.src_port = dev.vsock.conns[i]->guest_port;
                }
        memcpy(driver_at(&d, 0x200000 + (take(in, 2) << 4)), &h, sizeof h);
        return;
    }
    default: {
        uint32_t n = take(in, 1) % 32;
        where = 0x200000 + (take(in, 2) << 4);
        for (uint32_t i = 0; i < n; i++)
            *((uint8_t *)driver_at(&d, where) + i) = (uint8_t)take(in, 1);
    }
    }
}

/* A request of the right shape with fields of the fuzzer's: gets behind the first checks. */
static void request_make(unsigned kind, struct input *in)
{
    uint8_t shape = (uint8_t)take(in, 1);
    uint64_t at = 0x300000 + ((uint64_t)(shape & 7) << 16);
    struct part p[6];
    unsigned n = 0, q = 0;

    switch (kind) {
    case 0: {
        struct virtio_blk_outhdr h = {.type = take(in, 1) % 15, .sector = take(in, 2)};
        bool to_guest = (h.type == VIRTIO_BLK_T_IN || h.type == VIRTIO_BLK_T_GET_ID) != ((shape & 128) != 0);
        uint32_t len = (shape & 64) ? take(in, 2) : (take(in, 1) & 63) * 512;
        memcpy(driver_at(&d, at), &h, sizeof h);
        if (h.type == VIRTIO_BLK_T_DISCARD || h.type == VIRTIO_BLK_T_WRITE_ZEROES) {
            struct virtio_blk_discard_write_zeroes z = {take(in, 2), take(in, 2), take(in, 1)};
            memcpy((uint8_t *)driver_at(&d, at) + 512, &z, sizeof z);
            len = sizeof z;
        }
        p[n++] = (struct part){at, sizeof h, false};
        if (len > 1000 && (shape & 32))
            p[n++] = (struct part){at + 2048, 1000, to_guest};
        p[n++] = (struct part){at + 512, len, to_guest};
        p[n++] = (struct part){at + 60000, 1, !(shape & 16) || len > 9};
        break;
    }
    case 1:
        q = (shape >> 3) & 1;
        if (q == 0) {
            p[n++] = (struct part){at, take(in, 2), true};
        } else {
            struct virtio_vsock_hdr h = {.src_cid = VSOCK_CID_GUEST,
                                         .dst_cid = VSOCK_CID_HOST,
                                         .type = 1,
                                         .op = (uint16_t)(take(in, 1) % 9),
                                         .flags = take(in, 1) & 3,
                                         .buf_alloc = take(in, 3),
                                         .fwd_cnt = take(in, 2),
                                         .len = take(in, 2),
                                         .src_port = 7,
                                         .dst_port = 7};
            struct vsock_conn *c = dev.vsock.conns[shape >> 5];
            if (c) {
                h.dst_port = c->host_port;
                h.src_port = c->guest_port;
            }
            memcpy(driver_at(&d, at), &h, sizeof h);
            p[n++] = (struct part){at, sizeof h, false};
            if (h.len)
                p[n++] = (struct part){at + 4096, shape & 16 ? h.len : take(in, 2), false};
        }
        break;
    case 2:
        q = (shape >> 3) & 1;
        p[n++] = (struct part){at, q ? 12 : take(in, 2), !q};
        if (shape & 16)
            p[n++] = (struct part){at + 4096, take(in, 2), !q};
        break;
    case 3:
        p[n++] = (struct part){at, take(in, 2), true};
        break;
    default:
        q = (shape >> 3) % 3;
        p[n++] = (struct part){0x1000000 + ((uint64_t)shape << 12), take(in, 3), true};
    }
    driver_add(&d, q, p, n);
    driver_kick(&d, q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct err e = {0};

    if (size < 4 || size > 4096)
        return 0;
    unsigned kind = take(&in, 1) % 5;
    driver_ram(&d);
    for (unsigned i = 0; i < 8; i++)
        clients[i] = -1;
    if (worker_init(&w, &e) < 0)
        abort();
    struct virtio_dev *v = device_make(kind);
    driver_start(&d, v, take(&in, 4), 16);
    while (in.left) {
        uint8_t op = (uint8_t)take(&in, 1);
        switch (op & 7) {
        case 0: { /* any register, any width */
            uint8_t raw[8] = {0};
            uint32_t off = take(&in, 2) % VIRTIO_MMIO_SIZE, value = take(&in, 4);
            memcpy(raw, &value, 4);
            virtio_mmio_write(v, op & 8 ? off & 0xfc : off, raw, op & 16 ? 1u << ((op >> 5) & 3) : 4);
            break;
        }
        case 1: {
            uint8_t raw[8];
            virtio_mmio_read(v, take(&in, 2) % VIRTIO_MMIO_SIZE, raw, 1u << ((op >> 5) & 3));
            break;
        }
        case 2:
            host_act(kind, &in);
            break;
        case 3:
            if ((op >> 3) % 4 < v->nqueues)
                driver_kick(&d, (op >> 3) % 4);
            break;
        case 4:
            for (int i = 0; i < 4; i++)
                worker_turn(&w, 0);
            break;
        case 5:
            if (op & 64) { /* save and load, as a snapshot would */
                struct virtio_state s;
                virtio_save(v, &s);
                if (op & 32)
                    *((uint8_t *)&s + take(&in, 2) % sizeof s) = (uint8_t)take(&in, 1);
                virtio_load(v, &s, &e);
            }
            break;
        case 6:
            request_make(kind, &in);
            break;
        default:
            ram_write(&in);
        }
    }
    for (unsigned i = 0; i < 8; i++)
        if (clients[i] >= 0)
            close(clients[i]);
    for (int i = 0; i < 4; i++)
        worker_turn(&w, 0);
    device_free(kind);
    driver_ram_free(&d);
    return 0;
}
