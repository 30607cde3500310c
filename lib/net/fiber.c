/* Owns the stacks of fibers and the switch between them and the loop. Invariant: a fiber runs only from the
 * loop's own stack (never from another fiber), so a callback that sets an event only queues the waiter and
 * returns; and a waiter checks its condition again after each wake, so a late timer or a second wake is
 * harmless. */
#include "lib/net/fiber.h"

#include "lib/base/crash.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
/* What only a fiber's stack holds is not lost. */
#define STACK_MADE(f) __lsan_register_root_region((f)->stack + GUARD_BYTES, STACK_BYTES)
#define STACK_GONE(f) __lsan_unregister_root_region((f)->stack + GUARD_BYTES, STACK_BYTES)
#define SWITCH_START(save, bottom, size) __sanitizer_start_switch_fiber((save), (bottom), (size))
#define SWITCH_FINISH(save, bottom, size) __sanitizer_finish_switch_fiber((save), (bottom), (size))
#else
#define STACK_MADE(f) ((void)(f))
#define STACK_GONE(f) ((void)(f))
#define SWITCH_START(save, bottom, size) ((void)(save))
#define SWITCH_FINISH(save, bottom, size) ((void)(save))
#endif

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#define STACK_BYTES (256u << 10)
#define GUARD_BYTES 4096u
#define SPARE_STACKS 64

struct fiber {
    ucontext_t context;
    struct loop_task resume; /* queued = will run soon */
    void (*run)(void *arg);
    void *arg;
    char *stack; /* guard page first */
    bool ended;
    struct fiber *next_spare;
    void *fake_stack;
    void *tsan; /* ThreadSanitizer's view of this stack */
};

struct fiber_waiter {
    struct fiber_event granted;
    struct fiber_waiter *next;
};

struct job {
    int (*work)(void *arg);
    void *arg;
    int result;
    struct fiber_event done;
    struct job *next;
};

static struct loop *loop;
static ucontext_t loop_context;
static struct fiber *current;
static struct fiber *spares;
static unsigned spare_count, live_count;
#ifdef __SANITIZE_ADDRESS__
static const void *loop_stack;
static size_t loop_stack_size;
static void *loop_fake;
#endif
#ifdef __SANITIZE_THREAD__
static void *loop_tsan;
#endif

static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t jobs_more = PTHREAD_COND_INITIALIZER;
static struct job *jobs_first, **jobs_last = &jobs_first;
static pthread_t *workers;
static unsigned worker_count;
static bool workers_end;

bool fiber_inside(void)
{
    return current != NULL;
}

unsigned fiber_count(void)
{
    return live_count;
}

static void on_stack(unsigned low, unsigned high)
{
    struct fiber *f = (struct fiber *)(((uintptr_t)high << 32) | low);
#ifdef __SANITIZE_ADDRESS__
    SWITCH_FINISH(NULL, &loop_stack, &loop_stack_size);
#endif
    f->run(f->arg);
    f->ended = true;
    SWITCH_START(NULL, loop_stack, loop_stack_size);
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(loop_tsan, 0);
#endif
    setcontext(&loop_context);
    abort();
}

static void fiber_release(struct fiber *f)
{
    live_count--;
    STACK_GONE(f);
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(f->tsan);
#endif
    if (spare_count < SPARE_STACKS) {
        f->next_spare = spares;
        spares = f;
        spare_count++;
        return;
    }
    munmap(f->stack, GUARD_BYTES + STACK_BYTES);
    free(f);
}

static void fiber_enter(struct fiber *f)
{
    current = f;
#ifdef __SANITIZE_ADDRESS__
    SWITCH_START(&loop_fake, f->stack + GUARD_BYTES, STACK_BYTES);
#endif
#ifdef __SANITIZE_THREAD__
    loop_tsan = __tsan_get_current_fiber();
    if (!f->tsan)
        f->tsan = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    swapcontext(&loop_context, &f->context);
#ifdef __SANITIZE_ADDRESS__
    SWITCH_FINISH(loop_fake, NULL, NULL);
#endif
    current = NULL;
    if (f->ended && !f->resume.queued)
        fiber_release(f);
}

static void on_resume(struct loop_task *t)
{
    struct fiber *f = (struct fiber *)((char *)t - offsetof(struct fiber, resume));
    if (f->ended)
        fiber_release(f); /* woken once more on its way out */
    else
        fiber_enter(f);
}

static void fiber_wake(struct fiber *f)
{
    if (!f->resume.queued)
        loop_defer(loop, &f->resume);
}

static void fiber_park(void)
{
    struct fiber *f = current;
#ifdef __SANITIZE_ADDRESS__
    SWITCH_START(&f->fake_stack, loop_stack, loop_stack_size);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(loop_tsan, 0);
#endif
    swapcontext(&f->context, &loop_context);
#ifdef __SANITIZE_ADDRESS__
    SWITCH_FINISH(f->fake_stack, &loop_stack, &loop_stack_size);
#endif
}

/* Not inlined: getcontext() "returns twice", and its caller keeps no variable that changes. */
__attribute__((noinline)) static struct fiber *fiber_get(void)
{
    struct fiber *f = spares;
    if (f) {
        spares = f->next_spare;
        spare_count--;
        char *stack = f->stack;
        *f = (struct fiber){.stack = stack};
        STACK_MADE(f);
        return f;
    }
    f = calloc(1, sizeof *f);
    if (!f)
        abort();
    f->stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, GUARD_BYTES, PROT_NONE) < 0)
        abort();
    STACK_MADE(f);
    return f;
}

void fiber_spawn(void (*run)(void *arg), void *arg)
{
    struct fiber *f = fiber_get();
    live_count++;
    f->run = run;
    f->arg = arg;
    f->resume.run = on_resume;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack + GUARD_BYTES;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, (void (*)(void))on_stack, 2, (unsigned)(uintptr_t)f,
                (unsigned)((uintptr_t)f >> 32));
    if (current)
        fiber_wake(f); /* one fiber never enters another */
    else
        fiber_enter(f);
}

struct alarm {
    struct loop_timer timer;
    struct fiber *f;
    bool fired;
};

static void on_alarm(struct loop_timer *t)
{
    struct alarm *a = (struct alarm *)((char *)t - offsetof(struct alarm, timer));
    a->fired = true;
    fiber_wake(a->f);
}

bool fiber_event_wait(struct fiber_event *ev, int64_t timeout_ms)
{
    if (ev->set)
        return true;
    struct alarm a = {.timer.fire = on_alarm, .f = current};
    if (timeout_ms >= 0)
        loop_timer_start(loop, &a.timer, timeout_ms);
    ev->waiter = current;
    while (!ev->set && !a.fired)
        fiber_park();
    ev->waiter = NULL;
    loop_timer_stop(loop, &a.timer);
    return ev->set;
}

void fiber_event_set(struct fiber_event *ev)
{
    if (ev->set)
        return;
    ev->set = true;
    if (ev->waiter)
        fiber_wake(ev->waiter);
}

void fiber_sleep(int64_t ms)
{
    struct fiber_event never = {0};
    fiber_event_wait(&never, ms < 0 ? 0 : ms);
}

static void on_readable(void *data)
{
    fiber_event_set(data);
}

bool fiber_wait_readable(int fd, int64_t timeout_ms)
{
    struct fiber_event ready = {0};
    struct loop_watch *w = loop_watch_read(loop, fd, on_readable, &ready);
    if (!w)
        return false;
    bool ok = fiber_event_wait(&ready, timeout_ms);
    loop_watch_free(w);
    return ok;
}

void fiber_lock(struct fiber_lock *l)
{
    if (!l->held) {
        l->held = true;
        return;
    }
    struct fiber_waiter w = {0};
    if (!l->first)
        l->last = &l->first;
    *l->last = &w;
    l->last = &w.next;
    fiber_event_wait(&w.granted, -1);
}

bool fiber_lock_idle(const struct fiber_lock *l)
{
    return !l->held;
}

void fiber_unlock(struct fiber_lock *l)
{
    struct fiber_waiter *w = l->first;
    if (!w) {
        l->held = false;
        return;
    }
    l->first = w->next; /* the lock passes to it: `held` stays */
    if (!l->first)
        l->last = &l->first;
    fiber_event_set(&w->granted);
}

static void on_job_done(void *data)
{
    struct job *j = data;
    fiber_event_set(&j->done);
}

static void *worker(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&jobs_lock);
        while (!jobs_first && !workers_end)
            pthread_cond_wait(&jobs_more, &jobs_lock);
        if (workers_end)
            break;
        struct job *j = jobs_first;
        jobs_first = j->next;
        if (!jobs_first)
            jobs_last = &jobs_first;
        pthread_mutex_unlock(&jobs_lock);
        j->result = j->work(j->arg);
        loop_post(loop, on_job_done, j);
    }
    pthread_mutex_unlock(&jobs_lock);
    return NULL;
}

bool fiber_stop(int64_t timeout_ms)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&jobs_lock);
    workers_end = true;
    pthread_cond_broadcast(&jobs_more);
    pthread_mutex_unlock(&jobs_lock);
    while (worker_count && pthread_timedjoin_np(workers[worker_count - 1], NULL, &end) == 0)
        worker_count--;
    if (worker_count)
        return false;
    free(workers);
    workers = NULL;
    return true;
}

int fiber_start(struct loop *l, unsigned count, struct err *e)
{
    loop = l;
    workers_end = false;
    workers = calloc(count + 1, sizeof *workers);
    if (!workers)
        abort();
    sigset_t all, before;
    sigfillset(&all);
    crash_unblock(&all);
    pthread_sigmask(SIG_SETMASK, &all,
                    &before); /* signals are the loop's thread's, whenever it asks for them */
    int rc = 0;
    for (unsigned i = 0; i < count && rc == 0; i++) {
        rc = pthread_create(&workers[i], NULL, worker, NULL);
        worker_count += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? err_set(e, ERR_INTERNAL, "starting a worker thread: error %d", rc) : 0;
}

int fiber_offload(int (*work)(void *arg), void *arg)
{
    struct job j = {.work = work, .arg = arg};
    pthread_mutex_lock(&jobs_lock);
    *jobs_last = &j;
    jobs_last = &j.next;
    pthread_cond_signal(&jobs_more);
    pthread_mutex_unlock(&jobs_lock);
    fiber_event_wait(&j.done, -1);
    return j.result;
}
