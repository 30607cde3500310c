/* The process table. Invariants: a process is reaped only by us and only once, and signals go to its group
 * only before that, so no signal can reach a recycled pid; output is read only while no subscriber has unsent
 * bytes, so memory per stream is one burst; the end event is the last one, after the output. */
#include "guest/envd/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/envd/keeper.h"
#include "guest/envd/oplog.h"

#define CHUNK_MAX (32 * 1024)
#define CHUNK_PTY_MAX (16 * 1024)
#define READS_PER_EVENT 8
#define BURST_MAX (2 << 20) /* bytes read ahead of slow subscribers, all processes together */
#define SILENCE_MS                                                                                           \
    1000 /* how long a grandchild that holds a pipe can delay the end event after its last byte */
#define SIGNALLED_MS 20 /* the same after a signal: what the pipes hold already is still read */
#define REAP_WAIT_MS 1000
#define ENDED_MAX 512

static struct proc *procs;
static unsigned running, ended, end_kept_ms;
static char chunk[CHUNK_MAX]
    __attribute__((aligned(4096))); /* docs/benchmarks.md, "How guest-alone measures" */

void proc_keep_ends(unsigned ms)
{
    end_kept_ms = ms;
}

struct proc *proc_first(void)
{
    return procs;
}

unsigned proc_running(void)
{
    return running;
}

struct proc *proc_by_pid(pid_t pid)
{
    struct proc *found = NULL;
    for (struct proc *p = procs; p; p = p->next)
        if (p->pid == pid && (!found || p->state < found->state))
            found = p; /* a live one wins over an ended one that had the same number */
    return found;
}

struct proc *proc_by_tag(const char *tag)
{
    struct proc *found = NULL;
    for (struct proc *p = procs; p; p = p->next)
        if (p->has_tag && !strcmp(p->tag, tag) && (!found || p->state < found->state))
            found = p;
    return found;
}

void proc_free(struct proc *p)
{
    arena_free(&p->arena);
    loop_free_later(p);
}

/* An ended process is forgotten when nobody can ask for it any more and no grandchild writes into its pipes.
 */
static void forget(struct proc *p)
{
    if (p->retention.slot || p->out.fd >= 0 || p->err.fd >= 0)
        return;
    *p->prev = p->next;
    if (p->next)
        p->next->prev = p->prev;
    ended--;
    proc_free(p);
}

static void on_retention(void *owner)
{
    forget(owner);
}

static void retention_trim(void)
{
    struct proc *oldest = NULL;
    for (struct proc *p = procs; p; p = p->next)
        if (p->state == PROC_ENDED && p->retention.slot)
            oldest = p; /* new ones are put in front */
    if (oldest && ended > ENDED_MAX) {
        timer_clear(&oldest->retention);
        forget(oldest);
    }
}

static void inputs_fail(struct proc *p)
{
    while (p->inputs) {
        struct input *in = p->inputs;
        p->inputs = in->next;
        if (!p->inputs)
            p->inputs_tail = &p->inputs;
        in->done(in, ECANCELED);
    }
}

static bool subs_busy(const struct proc *p)
{
    for (const struct sub *s = p->subs; s; s = s->next)
        if (conn_pending(s->rpc->c))
            return true;
    return false;
}

static void output_watch(struct proc *p)
{
    uint32_t want = subs_busy(p) ? 0 : EPOLLIN;
    if (p->out.fd >= 0)
        ev_watch(&p->out, want);
    if (p->err.fd >= 0)
        ev_watch(&p->err, want);
}

static void sub_end(struct sub *s)
{
    timer_clear(&s->keepalive);
    timer_clear(&s->deadline);
    s->proc = NULL;
}

/* Only now may the pid be used again: until here a signal to the group could not miss. */
static void reap(struct proc *p)
{
    siginfo_t info;
    if (p->reaped)
        return;
    p->reaped = true;
    if (!p->adopted) /* cube-init reaped an adopted one when it told us */
        waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG);
}

/* What nobody can ask for any more: an ended process is not listed, but its tag still finds it. */
static void configuration_drop(struct proc *p)
{
    struct arena rest = {0};
    p->tag = p->has_tag ? arena_strndup(&rest, p->tag, strlen(p->tag)) : "";
    p->has_tag = p->has_tag && p->tag;
    p->cmd = p->cwd = "";
    p->args = (struct strings){0};
    p->envs = (struct pairs){0};
    arena_free(&p->arena);
    p->arena = rest;
}

static void finish(struct proc *p)
{
    reap(p);
    p->state = PROC_ENDED;
    ended++;
    running--;
    timer_clear(&p->deadline);
    timer_clear(&p->silence);
    oplog_exit(p);
    configuration_drop(p);
    if (end_kept_ms)
        keeper_ended(p, loop_now_ms() + end_kept_ms);
    else
        keeper_forget(p->pid);
    while (p->subs) {
        struct sub *s = p->subs;
        p->subs = s->next;
        sub_end(s);
        event_end(s->rpc, p->exit_code, p->by_signal);
        rpc_end(s->rpc);
    }
    inputs_fail(p);
    ev_close(&p->in);
    if (p->pty)
        ev_close(&p->out);
    timer_set(&p->retention, end_kept_ms);
    output_watch(p); /* what is still open is read and dropped, so that a background child gets no SIGPIPE */
    retention_trim();
}

/* After the exit: end when all output is there, or when it was silent long enough. */
static void maybe_finish(struct proc *p)
{
    if (p->state != PROC_EXITED)
        return;
    if (p->out.fd < 0 && p->err.fd < 0)
        finish(p);
}

static void on_silence(void *owner)
{
    struct proc *p = owner;
    if (p->state != PROC_EXITED)
        return;
    if (subs_busy(p))
        timer_set(&p->silence, SILENCE_MS); /* it is the reader who is slow */
    else
        finish(p);
}

void proc_ended(struct proc *p, int exit_code, bool by_signal, unsigned left_ms)
{
    p->state = PROC_ENDED;
    ended++;
    running--;
    p->adopted = p->reaped = true;
    p->exit_code = exit_code;
    p->by_signal = by_signal;
    configuration_drop(p);
    timer_set(&p->retention, left_ms);
    retention_trim();
}

static void deliver(struct proc *p, unsigned output, size_t n)
{
    for (struct sub *s = p->subs; s; s = s->next) {
        s->last_ms = loop_now_ms();
        event_data(s->rpc, output, chunk, n);
    }
    if (p->state == PROC_EXITED && p->silence.slot)
        timer_set(&p->silence, p->signalled ? SIGNALLED_MS : SILENCE_MS);
}

/* How many chunks go out with one send: many for one busy process (each send costs a packet and, in a VM, an
 * exit), one for each of many, whose unsent bytes must stay small together. */
static unsigned reads_at_once(void)
{
    unsigned n = BURST_MAX / CHUNK_MAX / (running ? running : 1);
    return n < 1 ? 1 : n > READS_PER_EVENT ? READS_PER_EVENT : n;
}

/* Reads a burst and delivers it. Returns whether the output is over. */
static bool burst_read(struct proc *p, int fd, unsigned output)
{
    size_t max = p->pty ? CHUNK_PTY_MAX : CHUNK_MAX;
    bool over = false;
    for (struct sub *s = p->subs; s; s = s->next)
        conn_cork(s->rpc->c);
    for (unsigned i = reads_at_once(); i && !over; i--) {
        ssize_t n = read(fd, chunk, max);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        over = n <= 0; /* EIO: the last holder of the terminal is gone */
        if (n > 0)
            deliver(p, output, (size_t)n);
    }
    for (struct sub *s = p->subs; s; s = s->next)
        conn_uncork(s->rpc->c);
    return over;
}

static void output_read(struct proc *p, struct ev *ev, unsigned output)
{
    if (!burst_read(p, ev->fd, output)) {
        output_watch(p);
        return;
    }
    ev_close(ev);
    if (p->pty)
        ev_close(&p->in);
    if (p->state == PROC_ENDED)
        forget(p);
    else
        maybe_finish(p);
}

static void on_out(void *owner, uint32_t events)
{
    struct proc *p = owner;
    output_read(p, &p->out, p->pty ? 3 : 1);
}

static void on_err(void *owner, uint32_t events)
{
    struct proc *p = owner;
    output_read(p, &p->err, 2);
}

/* Writes queued input as far as the pipe takes it. */
static void input_pump(struct proc *p)
{
    while (p->inputs) {
        struct input *in = p->inputs;
        while (in->n) {
            ssize_t n = write(p->in.fd, in->p, in->n);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0 && errno == EAGAIN) {
                ev_watch(&p->in, EPOLLOUT);
                return;
            }
            if (n < 0) {
                inputs_fail(p);
                ev_close(&p->in);
                return;
            }
            in->p += n;
            in->n -= (size_t)n;
        }
        p->inputs = in->next;
        if (!p->inputs)
            p->inputs_tail = &p->inputs;
        in->done(in, 0);
    }
    if (p->in.fd >= 0)
        ev_watch(&p->in, 0);
}

static void on_in(void *owner, uint32_t events)
{
    input_pump(owner);
}

void proc_input(struct proc *p, struct input *in)
{
    bool first = !p->inputs;
    in->next = NULL;
    *p->inputs_tail = in;
    p->inputs_tail = &in->next;
    if (first)
        input_pump(p);
}

void proc_input_cancel(struct proc *p, struct input *in)
{
    for (struct input **at = &p->inputs; *at; at = &(*at)->next)
        if (*at == in) {
            *at = in->next;
            if (!in->next)
                p->inputs_tail = at;
            return;
        }
}

void proc_stdin_close(struct proc *p)
{
    inputs_fail(p);
    if (p->in.fd >= 0)
        keeper_stdin_closed(p->pid);
    ev_close(&p->in);
}

int proc_signal(struct proc *p, int sig)
{
    if (p->reaped) {
        errno = ESRCH;
        return -1;
    }
    struct pollfd over = {.fd = p->exit.fd, .events = POLLIN};
    if (p->adopted &&
        poll(&over, 1, 0) != 0) { /* exited: cube-init may have reaped it, its pid is no longer ours */
        errno = ESRCH;
        return -1;
    }
    p->signalled = true;
    if (p->state == PROC_EXITED)
        timer_set(&p->silence, SIGNALLED_MS);
    return p->adopted ? keeper_signal(p->pid, sig) : spawn_kill_group(p->pid, sig);
}

bool proc_listed(const struct proc *p)
{
    return p->state == PROC_RUNNING || (p->state == PROC_EXITED && !p->signalled);
}

static void waiters_release(struct proc *p)
{
    while (p->waiters) {
        struct waiter *w = p->waiters;
        p->waiters = w->next;
        timer_clear(&w->timer);
        w->done(w);
    }
}

void proc_exited(struct proc *p, int code, int status)
{
    if (p->state != PROC_RUNNING)
        return;
    p->state = PROC_EXITED;
    p->by_signal = code != CLD_EXITED;
    p->exit_code = status;
    ev_close(&p->exit);
    if (p->signalled || p->adopted)
        reap(p);
    if (p->out.fd < 0 && p->err.fd < 0)
        finish(p);
    else
        timer_set(&p->silence, p->signalled ? SIGNALLED_MS : SILENCE_MS);
    waiters_release(p);
}

static void on_exit_ready(void *owner, uint32_t events)
{
    struct proc *p = owner;
    siginfo_t info = {0};
    if (waitid((idtype_t)3 /* P_PIDFD */, (id_t)p->exit.fd, &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
        if (info.si_pid)
            proc_exited(p, info.si_code, info.si_status);
        return;
    }
    if (errno == ECHILD) /* adopted: not our child; cube-init reaps it and tells us how it ended */
        ev_watch(&p->exit, 0);
}

static void on_wait_timeout(void *owner)
{
    struct waiter *w = owner;
    w->done(w);
}

void proc_wait_reaped(struct proc *p, struct waiter *w)
{
    if (p->state != PROC_RUNNING) {
        w->done(w);
        return;
    }
    w->next = p->waiters;
    p->waiters = w;
    w->timer = (struct timer){.cb = on_wait_timeout, .owner = w};
    timer_set(&w->timer, REAP_WAIT_MS);
}

void proc_wait_cancel(struct proc *p, struct waiter *w)
{
    timer_clear(&w->timer);
    for (struct waiter **at = &p->waiters; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            return;
        }
}

static void on_deadline(void *owner)
{
    struct proc *p = owner;
    struct sub *own = NULL;
    for (struct sub *s = p->subs; s; s = s->next)
        if (s->owner)
            own = s;
    if (p->state != PROC_ENDED)
        proc_signal(p, SIGKILL);
    if (own) {
        struct rpc *r = own->rpc;
        proc_unsubscribe(own);
        rpc_fail(r, RPC_DEADLINE_EXCEEDED, "context deadline exceeded");
    }
}

static void on_keepalive(void *owner)
{
    struct sub *s = owner;
    int64_t left = s->last_ms + s->rpc->keepalive_ms - loop_now_ms();
    if (left > 0) {
        timer_set(&s->keepalive, left);
        return;
    }
    s->last_ms = loop_now_ms();
    timer_set(&s->keepalive, s->rpc->keepalive_ms);
    event_keepalive(s->rpc);
    output_watch(
        s->proc); /* the write may have emptied the socket's buffer, and then nobody else wakes the reader */
}

static void on_sub_deadline(void *owner)
{
    struct sub *s = owner;
    struct rpc *r = s->rpc;
    proc_unsubscribe(s);
    rpc_fail(r, RPC_DEADLINE_EXCEEDED, "context deadline exceeded");
}

static void on_sub_gone(struct rpc *r)
{
    proc_unsubscribe(r->user);
}

static void on_sub_drain(struct rpc *r)
{
    struct sub *s = r->user;
    if (s->proc)
        output_watch(s->proc);
}

void proc_deadline(struct proc *p, int64_t at_ms)
{
    p->deadline_ms = at_ms;
    timer_set(&p->deadline, at_ms - loop_now_ms());
}

void proc_subscribe(struct proc *p, struct sub *s, struct rpc *r)
{
    *s = (struct sub){.rpc = r, .proc = p, .last_ms = loop_now_ms()};
    s->keepalive = (struct timer){.cb = on_keepalive, .owner = s};
    s->deadline = (struct timer){.cb = on_sub_deadline, .owner = s};
    r->user = s;
    event_start(r, p->pid);
    if (p->state == PROC_ENDED) {
        event_end(r, p->exit_code, p->by_signal);
        rpc_end(r);
        return;
    }
    r->on_gone = on_sub_gone;
    r->on_drain = on_sub_drain;
    s->next = p->subs;
    p->subs = s;
    timer_set(&s->keepalive, r->keepalive_ms);
    if (r->timeout_ms < 0)
        return;
    if (r->method->request == &msg_start) {
        s->owner = true;
        proc_deadline(p, p->deadline_ms);
    } else {
        timer_set(&s->deadline, r->timeout_ms);
    }
}

void proc_unsubscribe(struct sub *s)
{
    struct proc *p = s->proc;
    if (!p)
        return;
    for (struct sub **at = &p->subs; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    sub_end(s);
    output_watch(p);
}

struct proc *proc_new(const struct msg_start *req, const struct user *user)
{
    struct proc *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->inputs_tail = &p->inputs;
    p->deadline_ms = -1;
    p->exit.fd = p->in.fd = p->out.fd = p->err.fd = -1;
    const struct msg_process *m = &req->process;
    bool ok = (p->cmd = arena_strndup(&p->arena, m->cmd, strlen(m->cmd))) &&
              (p->cwd = arena_strndup(&p->arena, m->cwd, strlen(m->cwd))) &&
              (p->tag = arena_strndup(&p->arena, req->tag, strlen(req->tag)));
    p->has_cwd = m->has_cwd;
    p->has_tag = req->has_tag;
    p->pty = req->has_pty;
    p->stdin_on = req->has_pty || !req->has_stdin || req->stdin_on;
    memcpy(p->user, user->name, sizeof(p->user));
    p->args.v = arena_alloc(&p->arena, (m->args.n + 1) * sizeof(char *));
    p->envs.v = arena_alloc(&p->arena, (m->envs.n + 1) * sizeof(struct pair));
    ok = ok && p->args.v && p->envs.v;
    for (size_t i = 0; ok && i < m->args.n; i++)
        ok = (p->args.v[p->args.n++] = arena_strndup(&p->arena, m->args.v[i], strlen(m->args.v[i]))) != NULL;
    for (size_t i = 0; ok && i < m->envs.n; i++) {
        struct pair e = {arena_strndup(&p->arena, m->envs.v[i].key, strlen(m->envs.v[i].key)),
                         arena_strndup(&p->arena, m->envs.v[i].value, strlen(m->envs.v[i].value))};
        p->envs.v[p->envs.n++] = e;
        ok = e.key && e.value;
    }
    if (ok)
        return p;
    proc_free(p);
    return NULL;
}

void proc_run(struct proc *p, pid_t pid, int pidfd, int in, int out, int err)
{
    p->pid = pid;
    p->exit = (struct ev){.fd = pidfd, .cb = on_exit_ready, .owner = p};
    p->in = (struct ev){.fd = in, .cb = on_in, .owner = p};
    p->out = (struct ev){.fd = out, .cb = on_out, .owner = p};
    p->err = (struct ev){.fd = err, .cb = on_err, .owner = p};
    p->deadline = (struct timer){.cb = on_deadline, .owner = p};
    p->silence = (struct timer){.cb = on_silence, .owner = p};
    p->retention = (struct timer){.cb = on_retention, .owner = p};
    p->prev = &procs;
    p->next = procs;
    if (procs)
        procs->prev = &p->next;
    procs = p;
    running++;
}

void proc_go(struct proc *p)
{
    if (p->exit.fd >= 0)
        ev_watch(&p->exit, EPOLLIN);
    output_watch(p);
}
