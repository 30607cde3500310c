/* virtio-blk. Requests are served in order by the disk thread through the host's page cache. Invariant: a
 * request touches only sectors below the capacity and always gets a status byte, or the device asks for a
 * reset. */
#include "node/vmm/blk.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define SEG_MAX 126u
#define DISCARD_SECTORS_MAX (1u << 21) /* 1 GiB in one request */
#define DISCARD_SEGMENTS_MAX 16u
#define QUEUE_SIZE 128
#define REQUEST_MAX (64u << 20) /* of data; a pause waits for the request in hand */

static uint8_t status_of(int rc)
{
    return rc == 0 ? VIRTIO_BLK_S_OK : VIRTIO_BLK_S_IOERR;
}

static bool inside(const struct blk *b, uint64_t sector, uint64_t bytes)
{
    uint64_t cap = b->config.capacity;

    return bytes % 512 == 0 && sector <= cap && bytes / 512 <= cap - sector;
}

static bool range_ok(const struct blk *b, uint64_t sector, uint64_t bytes)
{
    return bytes <= REQUEST_MAX && inside(b, sector, bytes);
}

static uint8_t do_read(struct blk *b, struct virtq_chain *c, uint64_t sector, uint32_t *written)
{
    struct iovec part[VIRTQ_IOV_MAX];
    uint64_t len = c->in_len - 1u;

    if (!range_ok(b, sector, len))
        return VIRTIO_BLK_S_IOERR;
    unsigned k = iov_slice(virtq_in(c), c->nin, 0, len, part);
    int rc = layer_read(&b->disk, sector * 512, len, part, k);
    if (rc == 0) {
        *written += (uint32_t)len;
        b->read_bytes += len;
    }
    return status_of(rc);
}

static uint8_t do_write(struct blk *b, struct virtq_chain *c, uint64_t sector)
{
    struct iovec part[VIRTQ_IOV_MAX];
    uint64_t len = c->out_len - sizeof(struct virtio_blk_outhdr);

    if (!range_ok(b, sector, len))
        return VIRTIO_BLK_S_IOERR;
    unsigned k = iov_slice(c->iov, c->nout, sizeof(struct virtio_blk_outhdr), len, part);
    int rc = layer_write(&b->disk, sector * 512, len, part, k);
    if (rc == 0)
        b->write_bytes += len;
    return status_of(rc);
}

static uint8_t do_discard(struct blk *b, struct virtq_chain *c, bool zero)
{
    struct virtio_blk_discard_write_zeroes seg[DISCARD_SEGMENTS_MAX];
    uint64_t len = c->out_len - sizeof(struct virtio_blk_outhdr);

    if (len == 0 || len % sizeof seg[0] || len > sizeof seg)
        return VIRTIO_BLK_S_IOERR;
    iov_read(c->iov, c->nout, sizeof(struct virtio_blk_outhdr), seg, len);
    for (unsigned i = 0; i < len / sizeof seg[0]; i++) {
        uint64_t bytes = (uint64_t)seg[i].num_sectors * 512;

        if (seg[i].num_sectors > DISCARD_SECTORS_MAX || !inside(b, seg[i].sector, bytes))
            return VIRTIO_BLK_S_IOERR;
        if (bytes && layer_discard(&b->disk, seg[i].sector * 512, bytes, zero) < 0)
            return VIRTIO_BLK_S_IOERR;
    }
    return VIRTIO_BLK_S_OK;
}

static uint8_t do_get_id(struct blk *b, struct virtq_chain *c, uint32_t *written)
{
    *written += (uint32_t)iov_write(virtq_in(c), c->nin, 0, b->serial,
                                    c->in_len - 1u < sizeof b->serial ? c->in_len - 1u : sizeof b->serial);
    return VIRTIO_BLK_S_OK;
}

static uint8_t request_run(struct blk *b, struct virtq_chain *c, const struct virtio_blk_outhdr *h,
                           uint32_t *written)
{
    bool writable = !virtio_has(&b->dev, VIRTIO_BLK_F_RO) && b->disk.fd >= 0;

    switch (h->type) {
    case VIRTIO_BLK_T_IN:
        return do_read(b, c, h->sector, written);
    case VIRTIO_BLK_T_OUT:
        return writable ? do_write(b, c, h->sector) : VIRTIO_BLK_S_IOERR;
    case VIRTIO_BLK_T_FLUSH:
        return status_of(layer_flush(&b->disk));
    case VIRTIO_BLK_T_GET_ID:
        return do_get_id(b, c, written);
    case VIRTIO_BLK_T_DISCARD:
    case VIRTIO_BLK_T_WRITE_ZEROES:
        return writable ? do_discard(b, c, h->type == VIRTIO_BLK_T_WRITE_ZEROES) : VIRTIO_BLK_S_IOERR;
    default:
        return VIRTIO_BLK_S_UNSUPP;
    }
}

/* One request: header and data from the driver, data and a last byte of status to it. False: it has not that
 * shape. */
static bool request_serve(struct blk *b, struct virtq_chain *c)
{
    struct virtio_blk_outhdr h;
    uint32_t written = 1;

    if (c->in_len < 1 || iov_read(c->iov, c->nout, 0, &h, sizeof h) != sizeof h)
        return false;
    uint8_t status = request_run(b, c, &h, &written);
    iov_write(virtq_in(c), c->nin, c->in_len - 1u, &status, 1);
    bucket_take(&b->ops, 1);
    bucket_take(&b->bytes, (uint64_t)c->in_len + c->out_len);
    virtq_push(&b->dev.q[0], c->head, written);
    return true;
}

static void arm_timer(struct blk *b)
{
    int64_t a = bucket_wait_us(&b->bytes), o = bucket_wait_us(&b->ops);
    int64_t us = a > o ? a : o;
    struct itimerspec t = {.it_value = {us / 1000000, (us % 1000000) * 1000 + 1}};

    timerfd_settime(b->timer.fd, 0, &t, NULL);
}

static void run_queue(struct virtio_dev *d, unsigned qi)
{
    struct blk *b = (struct blk *)d;
    struct virtq *q = &d->q[0];
    struct virtq_chain c;
    unsigned budget = 2 * QUEUE_SIZE;

    if (!virtio_running(d) || b->disk.base_fd < 0)
        return;
    do {
        virtq_no_kick(q);
        while (budget) {
            int64_t now = b->ops.rate || b->bytes.rate ? clock_mono_us() : 0;
            if (!bucket_open(&b->ops, now) || !bucket_open(&b->bytes, now)) {
                arm_timer(b);
                virtio_interrupt(d, q);
                return;
            }
            int rc = virtq_pop(q, &c);
            if (rc == 0)
                break;
            if (rc < 0 || !request_serve(b, &c)) {
                virtio_needs_reset(d);
                return;
            }
            budget--;
            /* Tell early: the guest can take up finished work while the next request is served. */
            virtio_interrupt(d, q);
        }
    } while (budget && virtq_want_kick(q));
    if (!budget) { /* a guest that never stops submitting shares the thread with the other disk */
        uint64_t one = 1;
        if (write(d->kick_fd[0], &one, sizeof one) < 0)
            return;
    }
}

static void on_event(struct blk *b, int fd)
{
    uint64_t n;

    if (read(fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&b->dev.lock);
    run_queue(&b->dev, 0);
    pthread_mutex_unlock(&b->dev.lock);
}

static void on_kick(struct watch *x, uint32_t events)
{
    on_event((struct blk *)((char *)x - offsetof(struct blk, kick)), x->fd);
}

static void on_timer(struct watch *x, uint32_t events)
{
    on_event((struct blk *)((char *)x - offsetof(struct blk, timer)), x->fd);
}

static const struct virtio_ops blk_ops = {.name = "blk", .id = VIRTIO_ID_BLOCK, .run_queue = run_queue};

int blk_init(struct blk *b, const struct guest_mem *mem, struct worker *w, struct err *e)
{
    memset(b, 0, sizeof *b);
    b->disk = (struct layer){.base_fd = -1, .fd = -1};
    b->worker = w;
    if (virtio_init(&b->dev, &blk_ops, mem, 1, QUEUE_SIZE, 0, e) < 0)
        return -1;
    b->dev.config = &b->config;
    b->dev.config_len = sizeof b->config;
    b->kick = (struct watch){b->dev.kick_fd[0], on_kick};
    b->timer = (struct watch){timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), on_timer};
    if (b->timer.fd < 0 || worker_watch(w, &b->kick, EPOLLIN) < 0 || worker_watch(w, &b->timer, EPOLLIN) < 0)
        return err_sys(e, ERR_INTERNAL, "set up the disk device");
    return 0;
}

void blk_attach(struct blk *b, struct layer *disk, const char *serial, uint64_t bytes_per_s,
                uint64_t ops_per_s)
{
    b->disk = *disk;
    *disk = (struct layer){.base_fd = -1, .fd = -1};
    b->dev.features |=
        1ull << VIRTIO_BLK_F_SEG_MAX | 1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_BLK_SIZE;
    if (b->disk.fd < 0)
        b->dev.features |= 1ull << VIRTIO_BLK_F_RO;
    else
        b->dev.features |= 1ull << VIRTIO_BLK_F_DISCARD | 1ull << VIRTIO_BLK_F_WRITE_ZEROES;
    b->config.capacity = b->disk.disk_bytes / 512;
    b->config.seg_max = SEG_MAX;
    b->config.blk_size = 512;
    b->config.max_discard_sectors = b->config.max_write_zeroes_sectors = DISCARD_SECTORS_MAX;
    b->config.max_discard_seg = b->config.max_write_zeroes_seg = DISCARD_SEGMENTS_MAX;
    b->config.discard_sector_alignment = LAYER_CHUNK / 512;
    b->config.write_zeroes_may_unmap = 1;
    memcpy(b->serial, serial, strnlen(serial, sizeof b->serial));
    int64_t now = clock_mono_us();
    bucket_init(&b->bytes, bytes_per_s, 1u << 20, now);
    bucket_init(&b->ops, ops_per_s, 64, now);
}

int blk_grow(struct blk *b, uint64_t disk_bytes, struct err *e)
{
    pthread_mutex_lock(&b->dev.lock);
    int rc = layer_grow(&b->disk, disk_bytes, e);
    if (rc == 0) {
        b->config.capacity = b->disk.disk_bytes / 512;
        virtio_config_changed(&b->dev);
    }
    pthread_mutex_unlock(&b->dev.lock);
    return rc;
}

void blk_free(struct blk *b)
{
    worker_unwatch(b->worker, &b->kick);
    worker_unwatch(b->worker, &b->timer);
    close(b->timer.fd);
    layer_close(&b->disk);
    virtio_free(&b->dev);
}
