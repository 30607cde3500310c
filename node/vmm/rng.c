/* virtio-rng. A request gets at most 4 KiB; a guest that asks for ever costs its own CPU share only, because
 * a turn serves a bounded number of requests. */
#include "node/vmm/rng.h"

#include "lib/base/ids.h"

#include <linux/virtio_ids.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define REQUEST_MAX 4096u
#define QUEUE_SIZE 8

static void run_queue(struct virtio_dev *d, unsigned qi)
{
    struct virtq *q = &d->q[0];
    struct virtq_chain c;
    unsigned budget = QUEUE_SIZE;

    if (!virtio_running(d))
        return;
    do {
        for (; budget; budget--) {
            uint8_t bytes[REQUEST_MAX];
            int rc = virtq_pop(q, &c);
            if (rc == 0)
                break;
            if (rc < 0) {
                virtio_needs_reset(d);
                return;
            }
            uint32_t len = c.in_len < REQUEST_MAX ? c.in_len : REQUEST_MAX;
            random_bytes(bytes, len);
            virtq_push(q, c.head, (uint32_t)iov_write(virtq_in(&c), c.nin, 0, bytes, len));
            explicit_bzero(bytes, len);
        }
    } while (budget && virtq_want_kick(q));
    virtio_interrupt(d, q);
    uint64_t one = 1;
    if (!budget && write(d->kick_fd[0], &one, sizeof one) < 0)
        return;
}

static void on_kick(struct watch *x, uint32_t events)
{
    struct rng *r = (struct rng *)((char *)x - offsetof(struct rng, kick));
    uint64_t n;

    if (read(x->fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&r->dev.lock);
    run_queue(&r->dev, 0);
    pthread_mutex_unlock(&r->dev.lock);
}

static const struct virtio_ops rng_ops = {.name = "rng", .id = VIRTIO_ID_RNG, .run_queue = run_queue};

int rng_init(struct rng *r, const struct guest_mem *mem, struct worker *w, struct err *e)
{
    memset(r, 0, sizeof *r);
    r->worker = w;
    if (virtio_init(&r->dev, &rng_ops, mem, 1, QUEUE_SIZE, 0, e) < 0)
        return -1;
    r->kick = (struct watch){r->dev.kick_fd[0], on_kick};
    return worker_watch(w, &r->kick, EPOLLIN) < 0 ? err_sys(e, ERR_INTERNAL, "set up the random device") : 0;
}

void rng_free(struct rng *r)
{
    worker_unwatch(r->worker, &r->kick);
    virtio_free(&r->dev);
}
