/* Free-page reporting. The guest lists ranges it does not use; their host pages are dropped. What they hold
 * afterwards is undefined (zeros, or what the snapshot had there), which is what the device promises without
 * page poisoning. */
#include "node/vmm/balloon.h"

#include <linux/virtio_ids.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define QUEUE_SIZE 64
#define QUEUE_REPORTING 2 /* the third: no statistics and no hinting queue is offered */

static void run_queue(struct virtio_dev *d, unsigned qi)
{
    struct balloon *b = (struct balloon *)d;
    struct virtq *q = &d->q[qi];
    struct virtq_chain c;
    unsigned budget = QUEUE_SIZE;

    if (!virtio_running(d))
        return;
    do {
        for (; budget; budget--) {
            int rc = virtq_pop(q, &c);
            if (rc == 0)
                break;
            if (rc < 0) {
                if (q->broken)
                    virtio_needs_reset(d);
                return;
            }
            for (unsigned i = 0; qi == QUEUE_REPORTING && i < c.nin; i++) {
                mem_discard(d->mem, virtq_in(&c)[i].iov_base, virtq_in(&c)[i].iov_len);
                b->reported_bytes += virtq_in(&c)[i].iov_len;
            }
            virtq_push(q, c.head, 0);
        }
    } while (budget && virtq_want_kick(q));
    virtio_interrupt(d, q);
    uint64_t one = 1;
    if (!budget && write(d->kick_fd[qi], &one, sizeof one) < 0)
        return;
}

static void on_kick(struct balloon *b, unsigned qi)
{
    uint64_t n;

    if (read(b->kick[qi].fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&b->dev.lock);
    run_queue(&b->dev, qi);
    pthread_mutex_unlock(&b->dev.lock);
}

static void on_kick_inflate(struct watch *x, uint32_t events)
{
    on_kick((struct balloon *)((char *)x - offsetof(struct balloon, kick[0])), 0);
}

static void on_kick_deflate(struct watch *x, uint32_t events)
{
    on_kick((struct balloon *)((char *)x - offsetof(struct balloon, kick[1])), 1);
}

static void on_kick_reporting(struct watch *x, uint32_t events)
{
    on_kick((struct balloon *)((char *)x - offsetof(struct balloon, kick[2])), QUEUE_REPORTING);
}

static const struct virtio_ops balloon_ops = {
    .name = "balloon", .id = VIRTIO_ID_BALLOON, .run_queue = run_queue};

int balloon_init(struct balloon *b, const struct guest_mem *mem, struct worker *w, struct err *e)
{
    void (*const on[])(struct watch *, uint32_t) = {on_kick_inflate, on_kick_deflate, on_kick_reporting};

    memset(b, 0, sizeof *b);
    b->worker = w;
    if (virtio_init(&b->dev, &balloon_ops, mem, 3, QUEUE_SIZE, 1ull << VIRTIO_BALLOON_F_REPORTING, e) < 0)
        return -1;
    b->dev.config = &b->config;
    b->dev.config_len = sizeof b->config;
    for (unsigned i = 0; i < 3; i++) {
        b->kick[i] = (struct watch){b->dev.kick_fd[i], on[i]};
        if (worker_watch(w, &b->kick[i], EPOLLIN) < 0)
            return err_sys(e, ERR_INTERNAL, "set up the balloon device");
    }
    return 0;
}

void balloon_free(struct balloon *b)
{
    for (unsigned i = 0; i < 3; i++)
        worker_unwatch(b->worker, &b->kick[i]);
    virtio_free(&b->dev);
}
