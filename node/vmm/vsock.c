/* The packets of virtio-vsock. Invariant: nothing that a guest writes into a header selects anything but one
 * of its own connections; what it may make us keep is bounded by the credit that we announced. */
#include "node/vmm/vsock.h"

#include "lib/base/ids.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define QUEUE_SIZE 128
#define Q_RX 0
#define Q_TX 1
#define RESETS_SPARE 64u /* room that must be free before another packet of the guest is looked at */

static struct virtio_vsock_hdr header(const struct vsock_conn *c, uint16_t op)
{
    return (struct virtio_vsock_hdr){.src_cid = VSOCK_CID_HOST,
                                     .dst_cid = VSOCK_CID_GUEST,
                                     .src_port = c->host_port,
                                     .dst_port = c->guest_port,
                                     .type = VIRTIO_VSOCK_TYPE_STREAM,
                                     .op = op,
                                     .buf_alloc = VSOCK_BUF_BYTES,
                                     .fwd_cnt = c->fwd_cnt};
}

/* Takes a receive buffer of the guest that can hold a header; 0 when there is none. */
static int buffer_take(struct vsock *v, struct virtq_chain *c)
{
    int rc = virtq_pop(&v->dev.q[Q_RX], c);

    if (rc == 0)
        return 0;
    if (rc < 0 || c->in_len < sizeof(struct virtio_vsock_hdr)) {
        virtio_needs_reset(&v->dev);
        return 0;
    }
    return 1;
}

static void buffer_give(struct vsock *v, struct virtq_chain *c, const struct virtio_vsock_hdr *h)
{
    iov_write(virtq_in(c), c->nin, 0, h, sizeof *h);
    virtq_push(&v->dev.q[Q_RX], c->head, (uint32_t)sizeof *h + h->len);
}

static bool control_send(struct vsock *v, const struct virtio_vsock_hdr *h)
{
    struct virtq_chain c;

    if (!buffer_take(v, &c))
        return false;
    buffer_give(v, &c, h);
    return true;
}

/* The same for a connection: only what is in a buffer of the guest has told it how much was passed on. */
static bool conn_control_send(struct vsock *v, struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
    if (!control_send(v, h))
        return false;
    c->fwd_told = h->fwd_cnt;
    return true;
}

static bool resets_send(struct vsock *v)
{
    unsigned done = 0;

    while (done < v->nresets) {
        struct virtio_vsock_hdr h = {.src_cid = VSOCK_CID_HOST,
                                     .dst_cid = VSOCK_CID_GUEST,
                                     .type = VIRTIO_VSOCK_TYPE_STREAM,
                                     .src_port = v->resets[done].host,
                                     .dst_port = v->resets[done].guest,
                                     .op = VIRTIO_VSOCK_OP_RST};
        if (!control_send(v, &h))
            break;
        done++;
    }
    v->nresets -= done;
    memmove(v->resets, v->resets + done, v->nresets * sizeof v->resets[0]);
    return v->nresets == 0;
}

/* One packet of data (or the gateway's prefix). 1 = sent, 0 = nothing to send now, -1 = no buffer of the
 * guest. */
static int data_send(struct vsock *v, struct vsock_conn *c)
{
    struct virtio_vsock_hdr h = header(c, VIRTIO_VSOCK_OP_RW);
    struct iovec part[VIRTQ_IOV_MAX];
    struct virtq_chain chain;
    uint32_t credit = c->peer_buf - (c->tx_cnt - c->peer_fwd);

    if (c->tx_cnt - c->peer_fwd >= c->peer_buf)
        return 0; /* the guest's CREDIT_UPDATE brings us back */
    if (!buffer_take(v, &chain))
        return -1;
    uint32_t room = chain.in_len - (uint32_t)sizeof h;
    room = room < credit ? room : credit;
    ssize_t n;
    if (c->prefix_len) {
        n = c->prefix_len <= room ? c->prefix_len : 0;
        iov_write(virtq_in(&chain), chain.nin, sizeof h, c->prefix, (size_t)n);
        c->prefix_len -= (uint8_t)n;
    } else {
        unsigned k = iov_slice(virtq_in(&chain), chain.nin, sizeof h, room, part);
        do
            n = k ? readv(c->io.fd, part, (int)k) : -1;
        while (k && n < 0 && errno == EINTR);
        if (k && n < 0 && errno != EAGAIN)
            n = 0; /* ECONNRESET and the like end the stream */
        if (n < 0 || !k)
            c->readable = false;
        if (k && n == 0) {
            c->host_eof = true;
            c->say |= VSOCK_SAY_SHUTDOWN;
        }
    }
    if (n <= 0) {
        virtq_unpop(&v->dev.q[Q_RX], 1);
        return 0;
    }
    h.len = (uint32_t)n;
    c->tx_cnt += (uint32_t)n;
    v->to_guest_bytes += (uint64_t)n;
    c->fwd_told = h.fwd_cnt;
    buffer_give(v, &chain, &h);
    return 1;
}

/* What the connection has to say besides data. False: no buffer. */
static bool says_send(struct vsock *v, struct vsock_conn *c)
{
    if (c->say & VSOCK_SAY_REQUEST) {
        struct virtio_vsock_hdr h = header(c, VIRTIO_VSOCK_OP_REQUEST);
        if (!conn_control_send(v, c, &h))
            return false;
        c->say &= ~VSOCK_SAY_REQUEST;
    }
    if (c->say & VSOCK_SAY_CREDIT) {
        if (c->fwd_cnt - c->fwd_told >= VSOCK_CREDIT_STEP) {
            struct virtio_vsock_hdr h = header(c, VIRTIO_VSOCK_OP_CREDIT_UPDATE);
            if (!conn_control_send(v, c, &h))
                return false;
        }
        c->say &= ~VSOCK_SAY_CREDIT;
    }
    return true;
}

static bool shutdown_send(struct vsock *v, struct vsock_conn *c)
{
    struct virtio_vsock_hdr h = header(c, VIRTIO_VSOCK_OP_SHUTDOWN);

    h.flags = VIRTIO_VSOCK_SHUTDOWN_SEND;
    if (c->host_gone || c->state == VSOCK_ENDING)
        h.flags |= VIRTIO_VSOCK_SHUTDOWN_RCV;
    if (!conn_control_send(v, c, &h))
        return false;
    c->say &= ~VSOCK_SAY_SHUTDOWN;
    c->shut_sent = true;
    return true;
}

/* One turn of a connection. False: the guest has no buffers left. */
static bool conn_turn(struct vsock *v, struct vsock_conn *c)
{
    if (!says_send(v, c))
        return false;
    if (c->state == VSOCK_OPEN && (c->prefix_len || (c->readable && !c->host_eof))) {
        int rc = data_send(v, c);
        if (rc < 0)
            return false;
        if (rc > 0) {
            vsock_conn_ready(c);
            return true;
        }
    }
    if (c->state == VSOCK_OPEN && c->host_gone && c->host_eof) {
        /* Its last bytes are in the guest; nobody is left to read what the guest sends. */
        c->state = VSOCK_ENDING;
        c->buf_len = 0;
        c->say |= VSOCK_SAY_SHUTDOWN;
        worker_unwatch(v->worker, &c->io);
        close(c->io.fd);
        c->io.fd = -1;
    }
    if (c->say & VSOCK_SAY_SHUTDOWN)
        return shutdown_send(v, c);
    return true;
}

/* Returns false when the turn's budget is spent and there is more to do. */
static bool rx_fill(struct vsock *v)
{
    unsigned budget = 2 * QUEUE_SIZE;

    virtq_no_kick(&v->dev.q[Q_RX]);
    if (!resets_send(v))
        return true;
    while (v->ready_head && budget--) {
        struct vsock_conn *c = v->ready_head;

        v->ready_head = c->next_ready;
        if (!v->ready_head)
            v->ready_tail = NULL;
        c->queued = false;
        if (!conn_turn(v, c)) {
            vsock_conn_ready(c);
            return true;
        }
    }
    if (!v->ready_head)
        return true;
    uint64_t one = 1; /* let the other devices of this thread have their turn */
    return write(v->kick[Q_RX].fd, &one, sizeof one) < 0;
}

static struct vsock_conn *conn_find(struct vsock *v, const struct virtio_vsock_hdr *h)
{
    struct vsock_conn *c = v->conns[h->dst_port % VSOCK_CONNS_MAX];

    return c && c->host_port == h->dst_port && c->guest_port == h->src_port && c->state != VSOCK_PORT_WANTED
               ? c
               : NULL;
}

static void packet_data(struct vsock *v, struct vsock_conn *c, struct virtq_chain *chain, uint32_t len)
{
    struct iovec part[VIRTQ_IOV_MAX];
    unsigned k = iov_slice(chain->iov, chain->nout, sizeof(struct virtio_vsock_hdr), len, part);

    if (len && !vsock_conn_receive(c, part, k, len))
        vsock_conn_reset(c);
}

static void packet_handle(struct vsock *v, struct virtq_chain *chain)
{
    struct virtio_vsock_hdr h;

    if (iov_read(chain->iov, chain->nout, 0, &h, sizeof h) != sizeof h)
        return;
    if (h.dst_cid != VSOCK_CID_HOST || h.src_cid != VSOCK_CID_GUEST)
        return;
    struct vsock_conn *c = h.type == VIRTIO_VSOCK_TYPE_STREAM ? conn_find(v, &h) : NULL;
    if (!c) {
        if (h.op != VIRTIO_VSOCK_OP_RST)
            vsock_reset_say(v, h.dst_port, h.src_port);
        return;
    }
    c->peer_buf = h.buf_alloc;
    c->peer_fwd = h.fwd_cnt;
    switch (h.op) {
    case VIRTIO_VSOCK_OP_RESPONSE:
        if (c->state == VSOCK_CONNECTING)
            vsock_conn_opened(c);
        else
            vsock_conn_reset(c);
        return;
    case VIRTIO_VSOCK_OP_RST:
        vsock_conn_refused(c);
        return;
    case VIRTIO_VSOCK_OP_SHUTDOWN:
        vsock_conn_shutdown(c, h.flags);
        return;
    case VIRTIO_VSOCK_OP_RW:
        if (h.len > chain->out_len - sizeof h)
            vsock_conn_reset(c);
        else
            packet_data(v, c, chain, h.len);
        return;
    case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
        vsock_conn_ready(c);
        return;
    case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
        c->say |= VSOCK_SAY_CREDIT;
        c->fwd_told = c->fwd_cnt - VSOCK_CREDIT_STEP; /* so that it is announced whatever the step */
        vsock_conn_ready(c);
        return;
    default:
        vsock_conn_reset(c);
    }
}

static void tx_drain(struct vsock *v)
{
    struct virtq *q = &v->dev.q[Q_TX];
    unsigned budget = QUEUE_SIZE, served = 0;

    v->tx_blocked = false;
    do {
        virtq_no_kick(q);
        for (; budget; budget--, served++) {
            struct virtq_chain chain;

            if (v->nresets + 2 > RESETS_SPARE) { /* the guest must take its RSTs first */
                v->tx_blocked = true;
                break;
            }
            int rc = virtq_pop(q, &chain);
            if (rc == 0)
                break;
            if (rc < 0) {
                virtio_needs_reset(&v->dev);
                return;
            }
            packet_handle(v, &chain);
            virtq_push(q, chain.head, 0);
        }
    } while (budget && !v->tx_blocked && virtq_want_kick(q));
    if (served)
        virtio_interrupt(&v->dev, q);
    uint64_t one = 1;
    if (!budget && write(v->kick[Q_TX].fd, &one, sizeof one) < 0)
        return;
}

void vsock_pump(struct vsock *v)
{
    struct virtq *rx = &v->dev.q[Q_RX];
    bool done;

    if (!virtio_running(&v->dev) || v->drop_wanted)
        return;
    do {
        done = rx_fill(v);
        virtio_interrupt(&v->dev, rx);
        if (v->tx_blocked && v->nresets == 0)
            tx_drain(v);
        if (!virtio_running(&v->dev))
            return;
        /* A kick is of use only while something waits for buffers. */
    } while (done && (v->nresets || v->ready_head) && virtq_want_kick(rx));
}

static void run_queue(struct virtio_dev *d, unsigned qi)
{
    struct vsock *v = (struct vsock *)d;

    if (!virtio_running(d) || v->drop_wanted)
        return;
    if (qi == Q_TX)
        tx_drain(v);
    vsock_pump(v);
}

/* Only the worker frees connections: it may hold an event of one in its hands while a vCPU thread resets the
 * device. */
static void drop_all(struct vsock *v)
{
    v->drop_wanted = false;
    for (unsigned i = 0; i < VSOCK_CONNS_MAX; i++)
        if (v->conns[i])
            vsock_conn_free(v->conns[i]);
}

static void device_reset(struct virtio_dev *d)
{
    struct vsock *v = (struct vsock *)d;
    uint64_t one = 1;

    vsock_listen(v, false);
    v->nresets = 0;
    v->tx_blocked = false;
    v->drop_wanted = write(v->kick[Q_RX].fd, &one, sizeof one) > 0 || v->nconns;
}

static void driver_ok(struct virtio_dev *d)
{
    vsock_listen((struct vsock *)d, true);
}

static void on_kick(struct vsock *v, unsigned qi)
{
    uint64_t n;

    if (read(v->kick[qi].fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&v->dev.lock);
    if (v->drop_wanted)
        drop_all(v);
    run_queue(&v->dev, qi);
    pthread_mutex_unlock(&v->dev.lock);
}

static void on_kick_rx(struct watch *x, uint32_t events)
{
    on_kick((struct vsock *)((char *)x - offsetof(struct vsock, kick[0])), Q_RX);
}

static void on_kick_tx(struct watch *x, uint32_t events)
{
    on_kick((struct vsock *)((char *)x - offsetof(struct vsock, kick[1])), Q_TX);
}

static void on_kick_event(struct watch *x, uint32_t events)
{
    uint64_t n;

    if (read(x->fd, &n, sizeof n) < 0) /* the event queue: we never have events to tell */
        return;
}

static void on_ctl(struct watch *x, uint32_t events)
{
    struct vsock *v = (struct vsock *)((char *)x - offsetof(struct vsock, ctl));

    pthread_mutex_lock(&v->dev.lock);
    if (v->drop_wanted)
        drop_all(v);
    vsock_accept(v, x, VSOCK_CTL);
    vsock_pump(v);
    pthread_mutex_unlock(&v->dev.lock);
}

static void on_in(struct watch *x, uint32_t events)
{
    struct vsock *v = (struct vsock *)((char *)x - offsetof(struct vsock, in));

    pthread_mutex_lock(&v->dev.lock);
    if (v->drop_wanted)
        drop_all(v);
    vsock_accept(v, x, VSOCK_IN);
    vsock_pump(v);
    pthread_mutex_unlock(&v->dev.lock);
}

static void on_timer(struct watch *x, uint32_t events)
{
    struct vsock *v = (struct vsock *)((char *)x - offsetof(struct vsock, timer));
    uint64_t n;

    if (read(x->fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&v->dev.lock);
    vsock_tick(v);
    vsock_pump(v);
    pthread_mutex_unlock(&v->dev.lock);
}

static const struct virtio_ops vsock_ops = {.name = "vsock",
                                            .id = VIRTIO_ID_VSOCK,
                                            .run_queue = run_queue,
                                            .reset = device_reset,
                                            .driver_ok = driver_ok};

int vsock_init(struct vsock *v, const struct guest_mem *mem, struct worker *w, struct err *e)
{
    void (*const on[])(struct watch *, uint32_t) = {on_kick_rx, on_kick_tx, on_kick_event};

    memset(v, 0, sizeof *v);
    v->worker = w;
    v->ctl.fd = v->in.fd = -1;
    v->config.guest_cid = VSOCK_CID_GUEST;
    v->late_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (v->late_fd < 0)
        return err_sys(e, ERR_INTERNAL, "set up the vsock device");
    random_bytes(&v->port_epoch, sizeof v->port_epoch);
    if (virtio_init(&v->dev, &vsock_ops, mem, 3, QUEUE_SIZE, 0, e) < 0)
        return -1;
    v->dev.config = &v->config;
    v->dev.config_len = sizeof v->config;
    v->timer = (struct watch){timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), on_timer};
    if (v->timer.fd < 0 || worker_watch(w, &v->timer, EPOLLIN) < 0)
        return err_sys(e, ERR_INTERNAL, "set up the vsock device");
    for (unsigned i = 0; i < 3; i++) {
        v->kick[i] = (struct watch){v->dev.kick_fd[i], on[i]};
        if (worker_watch(w, &v->kick[i], EPOLLIN) < 0)
            return err_sys(e, ERR_INTERNAL, "set up the vsock device");
    }
    return 0;
}

void vsock_attach(struct vsock *v, int ctl_fd, int in_fd)
{
    v->ctl = (struct watch){ctl_fd, on_ctl};
    v->in = (struct watch){in_fd, on_in};
}

void vsock_free(struct vsock *v)
{
    vsock_listen(v, false);
    v->dev.status = 0;
    drop_all(v);
    for (unsigned i = 0; i < 3; i++)
        worker_unwatch(v->worker, &v->kick[i]);
    worker_unwatch(v->worker, &v->timer);
    close(v->timer.fd);
    close(v->late_fd);
    if (v->ctl.fd >= 0)
        close(v->ctl.fd);
    if (v->in.fd >= 0)
        close(v->in.fd);
    virtio_free(&v->dev);
}

unsigned vsock_save(const struct vsock *v, struct vsock_ports *out)
{
    unsigned n = 0;

    for (unsigned i = 0; i < VSOCK_CONNS_MAX; i++) {
        const struct vsock_conn *c = v->conns[i];
        if (c && c->state != VSOCK_PORT_WANTED)
            out[n++] = (struct vsock_ports){c->host_port, c->guest_port};
    }
    /* Resets that the guest has not taken yet are still due. */
    for (unsigned i = 0; i < v->nresets && n < VSOCK_CONNS_MAX; i++)
        out[n++] = v->resets[i];
    return n;
}

int vsock_load(struct vsock *v, const struct vsock_ports *ports, unsigned n, struct err *e)
{
    if (n > VSOCK_CONNS_MAX)
        return err_set(e, ERR_INVALID, "snapshot: %u vsock connections", n);
    for (unsigned i = 0; i < n; i++)
        vsock_reset_say(v, ports[i].host, ports[i].guest);
    return 0;
}
