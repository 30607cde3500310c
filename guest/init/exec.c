/* Exec sessions. Invariants: output is read only while the connection has taken what came before; a session
 * whose connection goes away is killed with its process group. */
#include "guest/init/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/common/loop.h"
#include "guest/common/spawn.h"
#include "guest/init/cgroups.h"
#include "lib/base/buf.h"
#include "lib/base/cleanup.h"

#define CHUNK 32768
#define SESSIONS_MAX 64
#define INPUT_MAX ((size_t)4 << 20)
#define SILENCE_MS 1000 /* as cube-envd: a background child that holds a pipe delays the end no longer */

struct session {
    struct session *next;
    struct ctl *ctl;
    uint64_t id;
    pid_t pid; /* 0 = reaped */
    bool exited;
    int code, status;
    struct ev in, out, err;
    struct buf input;
    bool input_eof;
    struct timer deadline, silence;
};

static struct session *sessions;
static unsigned count;

unsigned exec_count(void)
{
    return count;
}

static void event_send(struct session *s, Cube__Init__V1__ExecEvent *event)
{
    Cube__Init__V1__Reply r = CUBE__INIT__V1__REPLY__INIT;
    r.id = s->id;
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_EXEC;
    r.exec = event;
    if (s->ctl)
        control_reply(s->ctl, &r);
}

static void session_end(struct session *s)
{
    Cube__Init__V1__ExecEvent event = CUBE__INIT__V1__EXEC_EVENT__INIT;
    for (struct session **at = &sessions; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    count--;
    ev_close(&s->in);
    ev_close(&s->out);
    ev_close(&s->err);
    timer_clear(&s->deadline);
    timer_clear(&s->silence);
    buf_free(&s->input);
    event.ended = true;
    if (s->code == CLD_EXITED)
        event.exit_code = s->status;
    else
        event.signal = (uint32_t)s->status;
    event_send(s, &event);
    loop_free_later(s);
}

static void output_watch(struct session *s)
{
    uint32_t want = s->ctl && control_pending(s->ctl) ? 0 : EPOLLIN;
    if (s->out.fd >= 0)
        ev_watch(&s->out, want);
    if (s->err.fd >= 0)
        ev_watch(&s->err, want);
}

static void output_read(struct session *s, struct ev *ev)
{
    static uint8_t chunk[CHUNK];
    Cube__Init__V1__ExecEvent event = CUBE__INIT__V1__EXEC_EVENT__INIT;
    ssize_t n = read(ev->fd, chunk, sizeof(chunk));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        ev_close(ev);
        if (s->exited && s->out.fd < 0 && s->err.fd < 0)
            session_end(s);
        return;
    }
    *(ev == &s->out ? &event.out : &event.err) = (ProtobufCBinaryData){(size_t)n, chunk};
    event_send(s, &event);
    if (s->exited)
        timer_set(&s->silence, SILENCE_MS);
    output_watch(s);
}

static void on_out(void *owner, uint32_t events)
{
    struct session *s = owner;
    output_read(s, &s->out);
}

static void on_err(void *owner, uint32_t events)
{
    struct session *s = owner;
    output_read(s, &s->err);
}

static void input_pump(struct session *s)
{
    while (s->in.fd >= 0 && s->input.len) {
        ssize_t n = write(s->in.fd, s->input.data, s->input.len);
        if (n < 0 && errno == EAGAIN) {
            ev_watch(&s->in, EPOLLOUT);
            return;
        }
        if (n < 0) {
            ev_close(&s->in);
            return;
        }
        buf_consume(&s->input, (size_t)n);
    }
    if (s->in.fd >= 0)
        ev_watch(&s->in, 0);
    if (s->input_eof)
        ev_close(&s->in);
}

static void on_in(void *owner, uint32_t events)
{
    input_pump(owner);
}

static void on_deadline(void *owner)
{
    struct session *s = owner;
    if (s->pid)
        spawn_kill_group(s->pid, SIGKILL);
}

static void on_silence(void *owner)
{
    session_end(owner);
}

bool exec_child_ended(pid_t pid, int code, int status)
{
    for (struct session *s = sessions; s; s = s->next) {
        if (s->pid != pid)
            continue;
        s->pid = 0;
        s->exited = true;
        s->code = code;
        s->status = status;
        timer_clear(&s->deadline);
        if (s->out.fd < 0 && s->err.fd < 0)
            session_end(s);
        else
            timer_set(&s->silence, SILENCE_MS);
        return true;
    }
    return false;
}

static void drop_for(struct session *s)
{
    s->ctl = NULL;
    if (s->pid)
        spawn_kill_group(s->pid, SIGKILL); /* its end frees the session */
}

void exec_conn_gone(struct ctl *c)
{
    for (struct session *s = sessions; s; s = s->next)
        if (s->ctl == c)
            drop_for(s);
}

void exec_conn_drained(struct ctl *c)
{
    for (struct session *s = sessions; s; s = s->next)
        if (s->ctl == c)
            output_watch(s);
}

int exec_input(struct ctl *c, const Cube__Init__V1__ExecInput *req, struct err *e)
{
    for (struct session *s = sessions; s; s = s->next) {
        if (s->ctl != c || s->id != req->exec_id)
            continue;
        if (s->in.fd < 0)
            return err_set(e, ERR_CONFLICT, "stdin of exec %llu is closed", (unsigned long long)req->exec_id);
        if (s->input.len + req->data.len > INPUT_MAX)
            return err_set(e, ERR_TOO_LARGE, "more than %zu bytes of input wait for exec %llu", INPUT_MAX,
                           (unsigned long long)req->exec_id);
        buf_append(&s->input, req->data.data, req->data.len);
        s->input_eof = s->input_eof || req->eof;
        input_pump(s);
        return 0;
    }
    return err_set(e, ERR_NOT_FOUND, "exec %llu does not run", (unsigned long long)req->exec_id);
}

/* PATH, user and the request's variables. The strings belong to the caller's arrays. */
static char **env_build(const Cube__Init__V1__Exec *req, const struct user *u, struct buf *text)
{
    char **v = calloc(req->n_envs + 5, sizeof(char *));
    size_t *at = calloc(req->n_envs + 5, sizeof(size_t)), n = 0;
    if (v && at) {
        at[n++] = text->len;
        buf_puts(text, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        buf_putc(text, 0);
        const char *base[][2] = {{"HOME", u->home}, {"USER", u->name}, {"LOGNAME", u->name}};
        for (size_t i = 0; i < 3 + req->n_envs; i++) {
            const char *k = i < 3 ? base[i][0] : req->envs[i - 3]->key,
                       *val = i < 3 ? base[i][1] : req->envs[i - 3]->value;
            at[n++] = text->len;
            buf_printf(text, "%s=%s", k, val);
            buf_putc(text, 0);
        }
        for (size_t i = 0; i < n && !text->failed; i++)
            v[i] = text->data + at[i];
    }
    free(at);
    return v;
}

static int pipe_make(int *ours, int *childs, bool we_read)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) < 0)
        return -1;
    *ours = fd[we_read ? 0 : 1];
    *childs = fd[we_read ? 1 : 0];
    return fcntl(*ours, F_SETFL, O_NONBLOCK);
}

/* Spawns into s. Returns 0 or -1 with an error; descriptors of the session are closed by the caller on
 * failure. */
static int spawn_session(struct session *s, const Cube__Init__V1__Exec *req, struct err *e)
{
    struct user u;
    _cleanup_buf_ struct buf text = {0};
    _cleanup_free_ char **argv = calloc(req->n_argv + 1, sizeof(char *));
    _cleanup_free_ char **envp = NULL;
    _cleanup_close_ int in = -1, out = -1, err = -1, pidfd = -1, cgroup = cgroups_open("user");
    enum spawn_step step;
    if (!req->n_argv || !*req->argv[0])
        return err_set(e, ERR_INVALID, "exec needs a command");
    if (user_lookup(*req->user ? req->user : "root", &u) < 0)
        return err_set(e, ERR_INVALID, "user '%s' does not exist", req->user);
    envp = env_build(req, &u, &text);
    if (!argv || !envp || text.failed)
        return err_set(e, ERR_INTERNAL, "out of memory");
    for (size_t i = 0; i < req->n_argv; i++)
        argv[i] = req->argv[i];
    if (pipe_make(&s->in.fd, &in, false) < 0 || pipe_make(&s->out.fd, &out, true) < 0 ||
        pipe_make(&s->err.fd, &err, true) < 0)
        return err_sys(e, ERR_INTERNAL, "making pipes");
    struct spawn sp = {.file = argv[0],
                       .argv = argv,
                       .envp = envp,
                       .cwd = *req->cwd ? req->cwd : u.home,
                       .cwd_optional = !*req->cwd,
                       .user = &u,
                       .in = in,
                       .out = out,
                       .err = err,
                       .cgroup = cgroup,
                       .oom_score_adj = 100,
                       .set_oom = true};
    s->pid = spawn_process(&sp, &pidfd, &step);
    if (s->pid < 0)
        return err_sys(e, step == SPAWN_CWD ? ERR_INVALID : ERR_INTERNAL, "starting '%.100s' in '%.100s'",
                       argv[0], sp.cwd);
    return 0;
}

void exec_start(struct ctl *c, uint64_t id, const Cube__Init__V1__Exec *req)
{
    struct err e = {0};
    struct session *s = count < SESSIONS_MAX ? calloc(1, sizeof(*s)) : NULL;
    if (!s) {
        err_set(&e, ERR_RATE_LIMITED, "%u commands run already", count);
        control_error(c, id, &e);
        return;
    }
    s->in.fd = s->out.fd = s->err.fd = -1;
    s->ctl = c;
    s->id = id;
    if (spawn_session(s, req, &e) < 0) {
        ev_close(&s->in);
        ev_close(&s->out);
        ev_close(&s->err);
        free(s);
        control_error(c, id, &e);
        return;
    }
    s->in = (struct ev){.fd = s->in.fd, .cb = on_in, .owner = s};
    s->out = (struct ev){.fd = s->out.fd, .cb = on_out, .owner = s};
    s->err = (struct ev){.fd = s->err.fd, .cb = on_err, .owner = s};
    s->deadline = (struct timer){.cb = on_deadline, .owner = s};
    s->silence = (struct timer){.cb = on_silence, .owner = s};
    s->next = sessions;
    sessions = s;
    count++;
    if (req->timeout_ms > 0)
        timer_set(&s->deadline, req->timeout_ms);
    output_watch(s);
}
