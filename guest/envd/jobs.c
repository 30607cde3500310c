/* The worker pool. Invariant: a job is in exactly one place (queue, a worker, the done list), so its fields
 * need no lock. Threads are started on demand and end after a while, so that an idle daemon owns one thread
 * and its stack. */
#include "guest/envd/jobs.h"
#include "guest/common/loop.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 8 /* more than cores: a file system that hangs (FUSE) holds only those that ask it */
#define STACK_SIZE (512 * 1024)
#define IDLE_S 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static struct job *queue_head, **queue_tail = &queue_head;
static struct job *done_head, **done_tail = &done_head;
static int threads, idle, queued;
static struct ev done_ev = {.fd = -1};

static __thread char *buffer;

char *job_buffer(void)
{
    if (!buffer) {
        buffer = mmap(NULL, JOB_BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buffer == MAP_FAILED)
            buffer = NULL;
    }
    return buffer;
}

static void job_finish(struct job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&lock);
    bool first = !done_head;
    *done_tail = job;
    done_tail = &job->next;
    pthread_mutex_unlock(&lock);
    uint64_t one = 1;
    if (first && write(done_ev.fd, &one, sizeof(one)) < 0)
        return; /* only EAGAIN at a full counter: the loop is awake already */
}

static void *worker_main(void *arg)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!queue_head) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += IDLE_S;
            idle++;
            int rc = pthread_cond_timedwait(&wake, &lock, &until);
            idle--;
            if (rc && !queue_head) {
                threads--;
                pthread_mutex_unlock(&lock);
                if (buffer)
                    munmap(buffer, JOB_BUFFER);
                return NULL;
            }
        }
        struct job *job = queue_head;
        queue_head = job->next;
        if (!queue_head)
            queue_tail = &queue_head;
        queued--;
        pthread_mutex_unlock(&lock);
        job->run(job);
        job_finish(job);
        pthread_mutex_lock(&lock);
    }
}

static int thread_start(void)
{
    pthread_attr_t attr;
    pthread_t t;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    int rc = pthread_create(&t, &attr, worker_main, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

void jobs_submit(struct job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&lock);
    *queue_tail = job;
    queue_tail = &job->next;
    queued++;
    bool grow = queued > idle && threads < THREADS_MAX;
    if (grow)
        threads++;
    bool alone = false;
    if (grow && thread_start() != 0) {
        threads--;
        alone = threads == 0;
    }
    if (alone) { /* the caller is the only thread: take the one job back and do it here */
        queue_head = NULL;
        queue_tail = &queue_head;
        queued = 0;
    } else {
        pthread_cond_signal(&wake);
    }
    pthread_mutex_unlock(&lock);
    if (alone) {
        job->run(job);
        job_finish(job);
    }
}

static void on_done(void *owner, uint32_t events)
{
    uint64_t n;
    if (read(done_ev.fd, &n, sizeof(n)) < 0)
        return;
    pthread_mutex_lock(&lock);
    struct job *list = done_head;
    done_head = NULL;
    done_tail = &done_head;
    pthread_mutex_unlock(&lock);
    while (list) {
        struct job *job = list;
        list = job->next;
        job->done(job);
    }
}

int jobs_open(void)
{
    done_ev = (struct ev){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .cb = on_done};
    return done_ev.fd < 0 ? -1 : ev_watch(&done_ev, EPOLLIN);
}
