/* virtio-net. Frames go between the rings and the TAP without a copy of ours. Invariant: one read of the TAP
 * has room for the largest segment the offloads allow, so no frame is cut; one turn moves a bounded number of
 * frames. */
#include "node/vmm/net.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_ids.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define QUEUE_SIZE 256
#define Q_RX 0
#define Q_TX 1
#define HDR_BYTES sizeof(struct virtio_net_hdr_mrg_rxbuf)
#define FRAME_MAX (65536u + 14 + HDR_BYTES)
#define CHAINS_MAX                                                                                           \
    64 /* buffers gathered for one frame; Linux gives some of 1.5 KiB, and 43 of those hold 64 KiB */
#define FRAME_PLAIN 1526u /* header, Ethernet, 1,500 bytes: without large receive offload */
#define TURN_FRAMES 64

static void kick_self(struct net *n, unsigned qi)
{
    uint64_t one = 1;

    (void)!write(n->kick[qi].fd, &one, sizeof one);
}

static void arm_timer(struct net *n)
{
    int64_t a = bucket_wait_us(&n->out), b = bucket_wait_us(&n->in);
    int64_t us = a > b ? a : b;
    struct itimerspec t = {.it_value = {us / 1000000, (us % 1000000) * 1000 + 1}};

    timerfd_settime(n->timer.fd, 0, &t, NULL);
}

/* The guest's frame: a header of 12 bytes, then the packet; both as the TAP wants them. */
static void frame_send(struct net *n, struct virtq_chain *c)
{
    if (c->out_len <= HDR_BYTES || c->out_len > FRAME_MAX)
        return; /* dropped, like a frame that a wire cannot carry; so is one that finds the TAP full */
    ssize_t w;
    do
        w = writev(n->tap.fd, c->iov, (int)c->nout);
    while (w < 0 && errno == EINTR);
    if (w > 0) {
        n->tx_bytes += (uint64_t)w;
        bucket_take(&n->out, (uint64_t)w);
    }
}

static void tx_drain(struct net *n)
{
    struct virtq *q = &n->dev.q[Q_TX];
    unsigned budget = TURN_FRAMES;
    struct virtq_chain c;

    do {
        virtq_no_kick(q);
        for (; budget; budget--) {
            if (!bucket_open(&n->out, n->out.rate ? clock_mono_us() : 0)) {
                arm_timer(n);
                virtio_interrupt(&n->dev, q);
                return;
            }
            int rc = virtq_pop(q, &c);
            if (rc == 0)
                break;
            if (rc < 0) {
                virtio_needs_reset(&n->dev);
                return;
            }
            frame_send(n, &c);
            virtq_push(q, c.head, 0);
        }
    } while (budget && virtq_want_kick(q));
    virtio_interrupt(&n->dev, q);
    if (!budget)
        kick_self(n, Q_TX);
}

/* Buffers taken from the ring for the next frames, oldest first; what is left over goes back at the end of
 * the turn. */
struct gathered {
    unsigned nchains, niov;
    uint32_t bytes;
    uint16_t head[CHAINS_MAX];
    uint16_t parts[CHAINS_MAX]; /* entries of `iov` */
    uint32_t len[CHAINS_MAX];
    struct iovec iov[VIRTQ_IOV_MAX];
};

/* Collects until the largest frame has room. False: the guest has not enough buffers. */
static bool buffers_gather(struct net *n, struct gathered *g)
{
    bool mergeable = virtio_has(&n->dev, VIRTIO_NET_F_MRG_RXBUF);
    bool large = virtio_has(&n->dev, VIRTIO_NET_F_GUEST_TSO4) || virtio_has(&n->dev, VIRTIO_NET_F_GUEST_TSO6);
    uint32_t want = large && mergeable ? FRAME_MAX : FRAME_PLAIN;
    struct virtq *q = &n->dev.q[Q_RX];
    struct virtq_chain c;

    while (g->bytes < want && g->nchains < CHAINS_MAX && (mergeable || g->nchains == 0)) {
        int rc = virtq_pop(q, &c);
        if (rc < 0 || (rc > 0 && (c.nin == 0 || virtq_in(&c)[0].iov_len < HDR_BYTES))) {
            virtio_needs_reset(&n->dev);
            return false;
        }
        if (rc == 0)
            break;
        if (g->niov + c.nin > VIRTQ_IOV_MAX) {
            virtq_unpop(q, 1);
            return g->nchains > 0;
        }
        memcpy(g->iov + g->niov, virtq_in(&c), c.nin * sizeof g->iov[0]);
        g->niov += c.nin;
        g->head[g->nchains] = c.head;
        g->parts[g->nchains] = (uint16_t)c.nin;
        g->len[g->nchains++] = c.in_len;
        g->bytes += c.in_len;
    }
    return g->nchains == CHAINS_MAX || g->bytes >= want;
}

/* Drops the first `k` chains of the list. */
static void gathered_shift(struct gathered *g, unsigned k)
{
    unsigned parts = 0;

    for (unsigned i = 0; i < k; i++) {
        parts += g->parts[i];
        g->bytes -= g->len[i];
    }
    g->nchains -= k;
    g->niov -= parts;
    memmove(g->head, g->head + k, g->nchains * sizeof g->head[0]);
    memmove(g->parts, g->parts + k, g->nchains * sizeof g->parts[0]);
    memmove(g->len, g->len + k, g->nchains * sizeof g->len[0]);
    memmove(g->iov, g->iov + parts, g->niov * sizeof g->iov[0]);
}

/* A frame of `len` bytes lies in the first buffers: the guest gets those. */
static void buffers_return(struct net *n, struct gathered *g, uint32_t len)
{
    uint8_t *header = g->iov[0].iov_base;
    struct virtq *q = &n->dev.q[Q_RX];
    uint16_t used = 0;

    while (len && used < g->nchains) {
        uint32_t part = len < g->len[used] ? len : g->len[used];
        virtq_fill(q, used, g->head[used], part);
        len -= part;
        used++;
    }
    memcpy(header + offsetof(struct virtio_net_hdr_mrg_rxbuf, num_buffers), &used, sizeof used);
    gathered_shift(g, used);
    virtq_publish(q, used);
}

/* Moves frames until the TAP, the ring, the rate or the turn's budget (then true) is exhausted. */
static bool frames_receive(struct net *n, struct gathered *g)
{
    struct virtq *q = &n->dev.q[Q_RX];

    for (unsigned budget = TURN_FRAMES; budget; budget--) {
        if (!bucket_open(&n->in, n->in.rate ? clock_mono_us() : 0)) {
            arm_timer(n);
            return false;
        }
        /* What is in the ring may not be enough: then only a longer ring is news. */
        if (!buffers_gather(n, g) &&
            (!virtio_running(&n->dev) || !virtq_want_more(q) || !buffers_gather(n, g)))
            return false;
        ssize_t r;
        do
            r = readv(n->tap.fd, g->iov, (int)g->niov);
        while (r < 0 && errno == EINTR);
        if (r <= (ssize_t)HDR_BYTES) {
            n->tap_ready = false;
            return false;
        }
        n->rx_bytes += (uint64_t)r;
        bucket_take(&n->in, (uint64_t)r);
        buffers_return(n, g, (uint32_t)r);
    }
    return true;
}

static void rx_fill(struct net *n)
{
    struct virtq *q = &n->dev.q[Q_RX];
    struct gathered g;

    if (!n->tap_ready)
        return;
    g.nchains = g.niov = 0;
    g.bytes = 0;
    bool more = frames_receive(n, &g);
    virtq_unpop(q, g.nchains);
    virtio_interrupt(&n->dev, q);
    if (more)
        kick_self(n, Q_RX);
}

static void run_queue(struct virtio_dev *d, unsigned qi)
{
    struct net *n = (struct net *)d;

    if (!virtio_running(d) || n->tap.fd < 0)
        return;
    if (qi == Q_TX)
        tx_drain(n);
    else
        rx_fill(n);
}

static void on_event(struct net *n, unsigned qi, int fd)
{
    uint64_t v;

    if (read(fd, &v, sizeof v) < 0)
        return;
    pthread_mutex_lock(&n->dev.lock);
    run_queue(&n->dev, qi);
    pthread_mutex_unlock(&n->dev.lock);
}

static void on_kick_rx(struct watch *x, uint32_t events)
{
    on_event((struct net *)((char *)x - offsetof(struct net, kick[0])), Q_RX, x->fd);
}

static void on_kick_tx(struct watch *x, uint32_t events)
{
    on_event((struct net *)((char *)x - offsetof(struct net, kick[1])), Q_TX, x->fd);
}

static void on_tap(struct watch *x, uint32_t events)
{
    struct net *n = (struct net *)((char *)x - offsetof(struct net, tap));

    pthread_mutex_lock(&n->dev.lock);
    n->tap_ready = true;
    run_queue(&n->dev, Q_RX);
    pthread_mutex_unlock(&n->dev.lock);
}

static void on_timer(struct watch *x, uint32_t events)
{
    struct net *n = (struct net *)((char *)x - offsetof(struct net, timer));
    uint64_t v;

    if (read(x->fd, &v, sizeof v) < 0)
        return;
    pthread_mutex_lock(&n->dev.lock);
    run_queue(&n->dev, Q_TX);
    run_queue(&n->dev, Q_RX);
    pthread_mutex_unlock(&n->dev.lock);
}

static const struct virtio_ops net_ops = {.name = "net", .id = VIRTIO_ID_NET, .run_queue = run_queue};

int net_init(struct net *n, const struct guest_mem *mem, struct worker *w, struct err *e)
{
    uint64_t f = 1ull << VIRTIO_NET_F_MAC | 1ull << VIRTIO_NET_F_MTU | 1ull << VIRTIO_NET_F_MRG_RXBUF |
                 1ull << VIRTIO_NET_F_CSUM | 1ull << VIRTIO_NET_F_GUEST_CSUM |
                 1ull << VIRTIO_NET_F_HOST_TSO4 | 1ull << VIRTIO_NET_F_HOST_TSO6 |
                 1ull << VIRTIO_NET_F_GUEST_TSO4 | 1ull << VIRTIO_NET_F_GUEST_TSO6;

    memset(n, 0, sizeof *n);
    n->worker = w;
    n->tap.fd = -1;
    n->config.mtu = 1450; /* internal.md §8 */
    if (virtio_init(&n->dev, &net_ops, mem, 2, QUEUE_SIZE, f, e) < 0)
        return -1;
    n->dev.config = &n->config;
    n->dev.config_len = sizeof n->config;
    n->kick[0] = (struct watch){n->dev.kick_fd[0], on_kick_rx};
    n->kick[1] = (struct watch){n->dev.kick_fd[1], on_kick_tx};
    n->timer = (struct watch){timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), on_timer};
    if (n->timer.fd < 0 || worker_watch(w, &n->kick[0], EPOLLIN) < 0 ||
        worker_watch(w, &n->kick[1], EPOLLIN) < 0 || worker_watch(w, &n->timer, EPOLLIN) < 0)
        return err_sys(e, ERR_INTERNAL, "set up the network device");
    return 0;
}

int net_attach(struct net *n, int tap_fd, const uint8_t mac[6], uint64_t bytes_per_s, struct err *e)
{
    int size = HDR_BYTES;

    if (ioctl(tap_fd, TUNSETVNETHDRSZ, &size) < 0 ||
        ioctl(tap_fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0)
        return err_sys(e, ERR_INVALID, "set the offloads of the TAP");
    if (fcntl(tap_fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
        return err_sys(e, ERR_INTERNAL, "make the TAP non-blocking");
    memcpy(n->config.mac, mac, 6);
    bucket_init(&n->out, bytes_per_s, 1u << 20, clock_mono_us());
    n->in = n->out;
    n->tap = (struct watch){tap_fd, on_tap};
    n->tap_ready = true;
    if (worker_watch(n->worker, &n->tap, EPOLLIN | EPOLLET) < 0)
        return err_sys(e, ERR_INTERNAL, "watch the TAP");
    return 0;
}

void net_free(struct net *n)
{
    worker_unwatch(n->worker, &n->kick[0]);
    worker_unwatch(n->worker, &n->kick[1]);
    worker_unwatch(n->worker, &n->timer);
    close(n->timer.fd);
    if (n->tap.fd >= 0) {
        worker_unwatch(n->worker, &n->tap);
        close(n->tap.fd);
    }
    virtio_free(&n->dev);
}
