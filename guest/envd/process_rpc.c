/* The process service. Invariant: a call that waits (input into a full pipe, a signal until the process is
 * reaped) leaves its queue when its client leaves. */
#include "guest/envd/process_rpc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "guest/envd/process.h"
#include "guest/envd/process_start.h"

static struct proc *select_proc(struct rpc *r, const struct msg_selector *s, bool ended_too)
{
    struct proc *p = NULL;
    if (s->has_pid)
        p = proc_by_pid((pid_t)s->pid);
    else if (s->has_tag)
        p = proc_by_tag(s->tag);
    else {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "a process selector with pid or tag is required");
        return NULL;
    }
    if (p && (ended_too || p->state != PROC_ENDED))
        return p;
    if (s->has_pid)
        rpc_fail(r, RPC_NOT_FOUND, "process with pid %u not found", s->pid);
    else
        rpc_fail(r, RPC_NOT_FOUND, "process with tag %s not found", s->tag);
    return NULL;
}

void process_list(struct rpc *r, void *request)
{
    _cleanup_buf_ struct buf b = {0};
    struct msgw w;
    msgw_start(&w, r->codec, &b);
    msgw_list(&w, "processes");
    for (struct proc *p = proc_first(); p; p = p->next) {
        if (!proc_listed(p))
            continue;
        msgw_item(&w, 1);
        msgw_open(&w, "config", 1);
        msgw_str(&w, "cmd", 1, p->cmd);
        if (p->args.n)
            msgw_strings(&w, "args", 2, p->args.v, p->args.n);
        if (p->envs.n)
            msgw_map(&w, "envs", 3, p->envs.v, p->envs.n);
        if (p->has_cwd)
            msgw_str(&w, "cwd", 4, p->cwd);
        msgw_close(&w);
        msgw_u32(&w, "pid", 2, (uint32_t)p->pid);
        if (p->has_tag)
            msgw_str(&w, "tag", 3, p->tag);
        msgw_close(&w);
    }
    msgw_list_end(&w);
    msgw_end(&w);
    rpc_reply_buf(r, &b);
}

void process_start_call(struct rpc *r, void *request)
{
    struct sub *s = arena_alloc(&r->c->req->arena, sizeof(*s));
    struct proc *p = s ? process_start(r, request) : NULL;
    if (!p)
        return;
    proc_subscribe(p, s, r);
    proc_go(p);
}

void process_connect(struct rpc *r, void *request)
{
    const struct msg_select *req = request;
    struct proc *p = select_proc(r, &req->process, true);
    struct sub *s = p ? arena_alloc(&r->c->req->arena, sizeof(*s)) : NULL;
    if (s)
        proc_subscribe(p, s, r);
}

void process_update(struct rpc *r, void *request)
{
    const struct msg_update *req = request;
    struct proc *p = select_proc(r, &req->process, false);
    if (!p)
        return;
    if (!req->has_pty || !req->pty.has_size) {
        rpc_reply(r, NULL, 0);
        return;
    }
    struct winsize ws = {.ws_col = (unsigned short)req->pty.size.cols,
                         .ws_row = (unsigned short)req->pty.size.rows};
    if (!p->pty)
        rpc_fail(r, RPC_INTERNAL, "process has no PTY to resize");
    else if (req->pty.size.cols > 0xffff || req->pty.size.rows > 0xffff)
        rpc_fail(r, RPC_INVALID_ARGUMENT, "terminal size out of range");
    else if (ioctl(p->out.fd, TIOCSWINSZ, &ws) < 0)
        rpc_fail(r, RPC_INTERNAL, "error resizing the PTY: %s", strerror(errno));
    else
        rpc_reply(r, NULL, 0);
}

/* Checks that this input fits this process; false after having answered. */
static bool input_fits(struct rpc *r, const struct proc *p, const struct msg_input *in, struct bytes *out)
{
    if (in->has_pty && !p->pty)
        rpc_fail(r, RPC_INTERNAL, "error writing to tty: tty not assigned to process");
    else if (in->has_stdin && p->pty)
        rpc_fail(r, RPC_INTERNAL, "error writing to stdin: tty assigned to process");
    else if (in->has_stdin && p->in.fd < 0)
        rpc_fail(r, RPC_INTERNAL, "error writing to stdin: stdin not enabled or closed");
    else if (in->has_pty && p->in.fd < 0)
        rpc_fail(r, RPC_INTERNAL, "error writing to tty: closed");
    else if (!in->has_pty && !in->has_stdin)
        rpc_fail(r, RPC_UNIMPLEMENTED, "invalid input type");
    if (r->ended)
        return false;
    *out = in->has_pty ? in->pty : in->in;
    return true;
}

struct send {
    struct input in;
    struct rpc *rpc;
    struct proc *proc;
    char *copy; /* stream input: the bytes that did not fit yet */
};

static void on_sent(struct input *in, int sys)
{
    struct send *s = in->owner;
    struct rpc *r = s->rpc;
    r->on_gone = NULL;
    if (sys)
        rpc_fail(r, RPC_INTERNAL, "error writing to stdin: closed");
    else
        rpc_reply(r, NULL, 0);
}

static void on_send_gone(struct rpc *r)
{
    struct send *s = r->user;
    proc_input_cancel(s->proc, &s->in);
}

void process_send_input(struct rpc *r, void *request)
{
    const struct msg_send_input *req = request;
    struct proc *p = select_proc(r, &req->process, false);
    struct bytes data;
    if (!p || !input_fits(r, p, &req->input, &data))
        return;
    struct send *s = arena_alloc(&r->c->req->arena, sizeof(*s));
    if (!s) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    *s = (struct send){.in = {.p = data.p, .n = data.n, .done = on_sent, .owner = s}, .rpc = r, .proc = p};
    r->user = s;
    r->on_gone = on_send_gone;
    r->c->may_leave = true;
    proc_input(p, &s->in);
}

/* StreamInput: one message after the other; reading pauses while the pipe is full, so memory is one message.
 */
struct input_stream {
    struct send send;
    pid_t pid;
    bool started, writing;
};

static void stream_release(struct input_stream *s)
{
    free(s->send.copy);
    s->send.copy = NULL;
    s->send.rpc->kept = 0;
}

static void on_stream_sent(struct input *in, int sys)
{
    struct input_stream *s = in->owner;
    s->writing = false;
    stream_release(s);
    if (sys)
        rpc_fail(s->send.rpc, RPC_INTERNAL, "error writing to stdin: closed");
    else
        rpc_resume(s->send.rpc);
}

static void on_stream_gone(struct rpc *r)
{
    struct input_stream *s = r->user;
    if (s->writing)
        proc_input_cancel(s->send.proc, &s->send.in);
    stream_release(s);
}

static void stream_data(struct input_stream *s, const struct msg_input *in)
{
    struct rpc *r = s->send.rpc;
    struct proc *p = proc_by_pid(s->pid);
    struct bytes data;
    if (!p || p->state == PROC_ENDED) {
        rpc_fail(r, RPC_NOT_FOUND, "process with pid %d not found", (int)s->pid);
        return;
    }
    if (!input_fits(r, p, in, &data) || !data.n || !rpc_keep(r, data.n))
        return;
    s->send.copy = malloc(data.n);
    if (!s->send.copy) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    memcpy(s->send.copy, data.p, data.n);
    s->send.proc = p;
    s->send.in = (struct input){.p = s->send.copy, .n = data.n, .done = on_stream_sent, .owner = s};
    s->writing = true;
    rpc_pause(r);
    proc_input(p, &s->send.in);
}

static void on_stream_message(struct rpc *r, void *message)
{
    struct input_stream *s = r->user;
    const struct msg_stream_input *m = message;
    if (m->has_start) {
        struct proc *p = select_proc(r, &m->start.process, false);
        if (!p)
            return;
        s->pid = p->pid;
        s->started = true;
    } else if (m->has_data && !s->started) {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "the first message must select a process");
    } else if (m->has_data) {
        stream_data(s, &m->data.input);
    }
}

static void on_stream_end(struct rpc *r)
{
    rpc_reply(r, NULL, 0); /* the process's stdin stays open (contracts/e2b.md §9.4) */
}

void process_stream_input(struct rpc *r, void *request)
{
    struct input_stream *s = arena_alloc(&r->c->req->arena, sizeof(*s));
    if (!s) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    s->send.rpc = r;
    r->user = s;
    r->on_message = on_stream_message;
    r->on_end = on_stream_end;
    r->on_gone = on_stream_gone;
}

struct signal_call {
    struct waiter waiter;
    struct rpc *rpc;
    struct proc *proc;
};

static void on_reaped(struct waiter *w)
{
    struct signal_call *s = w->owner;
    s->rpc->on_gone = NULL;
    proc_wait_cancel(s->proc, w);
    rpc_reply(s->rpc, NULL, 0);
}

static void on_signal_gone(struct rpc *r)
{
    struct signal_call *s = r->user;
    proc_wait_cancel(s->proc, &s->waiter);
}

void process_send_signal(struct rpc *r, void *request)
{
    const struct msg_signal *req = request;
    struct proc *p = select_proc(r, &req->process, false);
    if (!p)
        return;
    if (req->signal != 9 && req->signal != 15) {
        rpc_fail(r, RPC_UNIMPLEMENTED, "invalid signal: %d", req->signal);
        return;
    }
    if (proc_signal(p, req->signal) < 0) {
        if (errno == ESRCH)
            rpc_fail(r, RPC_NOT_FOUND, "process with pid %d not found", (int)p->pid);
        else
            rpc_fail(r, RPC_INTERNAL, "error sending signal: %s", strerror(errno));
        return;
    }
    struct signal_call *s = req->signal == 9 ? arena_alloc(&r->c->req->arena, sizeof(*s)) : NULL;
    if (!s) {
        rpc_reply(r, NULL, 0);
        return;
    }
    *s = (struct signal_call){.waiter = {.done = on_reaped, .owner = s}, .rpc = r, .proc = p};
    r->user = s;
    r->on_gone = on_signal_gone;
    r->c->may_leave = true;
    proc_wait_reaped(p, &s->waiter);
}

void process_close_stdin(struct rpc *r, void *request)
{
    const struct msg_select *req = request;
    struct proc *p = select_proc(r, &req->process, false);
    if (!p)
        return;
    if (p->pty) {
        rpc_fail(r, RPC_UNKNOWN, "cannot close the stdin of a process with a PTY: send 0x04");
        return;
    }
    proc_stdin_close(p);
    rpc_reply(r, NULL, 0);
}
