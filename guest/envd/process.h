/* Running processes: table, input and output, end. RPC handlers are in process_rpc.c. */
#pragma once

#include "guest/common/arena.h"
#include "guest/common/spawn.h"
#include "guest/common/loop.h"
#include "guest/envd/messages.h"
#include "guest/envd/rpc.h"

struct proc;

/** One stream that gets a process's events. Lives in its rpc's arena. */
struct sub {
    struct rpc *rpc;
    struct proc *proc;
    struct sub *next;
    bool owner; /* the Start call: the process's deadline ends it with deadline_exceeded */
    int64_t last_ms;
    struct timer keepalive, deadline;
};

/** Bytes on their way to a process's stdin; lives in its rpc's arena. `done(…, sys)` is called once: 0, or an
 * errno (ECANCELED: the process ended or stdin was closed). */
struct input {
    const char *p;
    size_t n;
    struct input *next;
    void (*done)(struct input *in, int sys);
    void *owner;
};

enum proc_state {
    PROC_RUNNING,
    PROC_EXITED /* output is being drained */,
    PROC_ENDED /* kept for late Connects */
};

struct proc {
    struct proc *next, **prev;
    struct arena arena; /* configuration, copied from the request */
    const char *cmd, *cwd, *tag;
    bool has_cwd, has_tag;
    struct strings args;
    struct pairs envs;
    char user[64];
    pid_t pid;
    bool pty, stdin_on, signalled, adopted, reaped;
    enum proc_state state;
    struct ev exit, in, out, err; /* pidfd; with a PTY, `in` and `out` are two descriptors of its master */
    struct sub *subs;
    struct input *inputs, **inputs_tail;
    int64_t deadline_ms; /* of the loop's clock, -1 = none; outlives a restart of the daemon */
    struct timer deadline, silence, retention;
    int exit_code; /* waitid status: the code, or the signal when `by_signal` */
    bool by_signal;
    struct waiter *waiters; /* SendSignal calls that wait for the process to be reaped */
};

/** A call that waits until the process is reaped. */
struct waiter {
    struct waiter *next;
    void (*done)(struct waiter *w);
    void *owner;
    struct timer timer;
};

/** Copies the configuration of a Start request into a new, not yet started process. NULL = out of memory. */
struct proc *proc_new(const struct msg_start *req, const struct user *user);

/** Takes over descriptors (-1 = none), which must be non-blocking, and lists the process. `err` is -1 for a
 * PTY. Nothing is read before `proc_go`. */
void proc_run(struct proc *p, pid_t pid, int pidfd, int in, int out, int err);

void proc_go(struct proc *p);

/** Kills it at this time of the loop's clock. */
void proc_deadline(struct proc *p, int64_t at_ms);

/** Frees a process that never ran. */
void proc_free(struct proc *p);

/** How long the end of a process can be asked for (ms); once, before the first process. */
void proc_keep_ends(unsigned ms);

struct proc *proc_by_pid(pid_t pid);
struct proc *proc_by_tag(const char *tag);
struct proc *proc_first(void);
unsigned proc_running(void);

/** Whether List shows it: until its end event, but not once a signal has ended it. */
bool proc_listed(const struct proc *p);

/** Adds a stream and sends it the start event (and the end event, when there is one already). */
void proc_subscribe(struct proc *p, struct sub *s, struct rpc *r);
void proc_unsubscribe(struct sub *s);

/** Queues input. */
void proc_input(struct proc *p, struct input *in);
void proc_input_cancel(struct proc *p, struct input *in);
void proc_stdin_close(struct proc *p);

/** Sends a signal to the whole process group; returns 0 or -1 with errno (ESRCH: it is gone). After the exit
 * of the process itself it reaches what is left of its group, and ends the wait for their output. */
int proc_signal(struct proc *p, int sig);

/** Calls w->done when the process is reaped, or after a second. */
void proc_wait_reaped(struct proc *p, struct waiter *w);
void proc_wait_cancel(struct proc *p, struct waiter *w);

/** The exit status of an adopted process, told by cube-init (waitid's code and status). */
void proc_exited(struct proc *p, int code, int status);

/** A process of a predecessor that ended in its time, just put on the list by proc_run: it can be asked for
 * `left_ms` longer. */
void proc_ended(struct proc *p, int exit_code, bool by_signal, unsigned left_ms);

/** Encodes StartResponse/ConnectResponse events (process_events.c). */
void event_start(struct rpc *r, pid_t pid);
void event_data(struct rpc *r, unsigned output, const char *p,
                size_t n); /* output: 1 stdout, 2 stderr, 3 pty */
void event_end(struct rpc *r, int exit_code, bool by_signal);
void event_keepalive(struct rpc *r);
