/* Start: user, directory, environment, descriptors, cgroup, clone. Invariant: whatever fails, every
 * descriptor made here is closed, and the caller got exactly one error. */
#include "guest/envd/process_start.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "guest/envd/keeper.h"
#include "guest/envd/oplog.h"
#include "guest/envd/state.h"
#include "guest/envd/trust.h"
#include "lib/base/cleanup.h"

#define ENVS_MAX 2048
#define PIPE_SIZE (256 * 1024)
#define OOM_BIAS                                                                                             \
    100 /* what the contract's original gives user processes (§4.3): they die before the daemons do */
#define TAG_SYSTEM "_system"

const char *process_path(void)
{
    const char *p = getenv("PATH");
    return p && *p ? p : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

struct env {
    struct arena *arena;
    char **v;
    size_t n;
    bool failed;
};

static void env_set(void *arg, const char *key, const char *value)
{
    struct env *e = arg;
    size_t k = strlen(key), n = strlen(value);
    if (!k || strchr(key, '='))
        return;
    char *text = arena_alloc(e->arena, k + n + 2);
    if (!text || e->n >= ENVS_MAX) {
        e->failed = true;
        return;
    }
    memcpy(text, key, k);
    text[k] = '=';
    memcpy(text + k + 1, value, n);
    for (size_t i = 0; i < e->n; i++)
        if (!strncmp(e->v[i], text, k + 1)) {
            e->v[i] = text;
            return;
        }
    e->v[e->n++] = text;
}

/* The daemon's PATH, the user, /init's variables, the request's: later ones win (contracts/e2b.md §4.3). */
static char **env_build(struct arena *a, const struct user *u, const struct pairs *own)
{
    struct env e = {.arena = a, .v = arena_alloc(a, (ENVS_MAX + 1) * sizeof(char *))};
    if (!e.v)
        return NULL;
    env_set(&e, "PATH", process_path());
    env_set(&e, "HOME", u->home);
    env_set(&e, "USER", u->name);
    env_set(&e, "LOGNAME", u->name);
    if (state.ca_bundle)
        env_set(&e, "NODE_EXTRA_CA_CERTS", TRUST_FILE);
    state_envs_each(env_set, &e);
    for (size_t i = 0; i < own->n; i++)
        env_set(&e, own->v[i].key, own->v[i].value);
    return e.failed ? NULL : e.v;
}

struct ends { /* the child's three descriptors, and ours */
    int child[3], in, out, err;
};

static void ends_close(struct ends *e)
{
    int *all[] = {&e->child[0], &e->child[1], &e->child[2], &e->in, &e->out, &e->err};
    for (size_t i = 0; i < 6; i++) {
        if (*all[i] >= 0)
            close(*all[i]);
        *all[i] = -1;
    }
}

/* One pipe; our end is non-blocking. The child's end must block, as programs expect. */
static int pipe_make(int *ours, int *childs, bool we_read)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) < 0)
        return -1;
    *ours = fd[we_read ? 0 : 1];
    *childs = fd[we_read ? 1 : 0];
    if (we_read)
        fcntl(fd[0], F_SETPIPE_SZ, PIPE_SIZE); /* refused over the user's quota: the default is fine, too */
    return fcntl(*ours, F_SETFL, O_NONBLOCK);
}

static int ends_pipes(struct ends *e, bool with_stdin)
{
    if (with_stdin && pipe_make(&e->in, &e->child[0], false) < 0)
        return -1;
    if (pipe_make(&e->out, &e->child[1], true) < 0)
        return -1;
    return pipe_make(&e->err, &e->child[2], true);
}

static int ends_pty(struct ends *e, const struct msg_pty *pty, const struct user *u)
{
    int zero = 0;
    e->out = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (e->out < 0 || ioctl(e->out, TIOCSPTLCK, &zero) < 0)
        return -1;
    if (pty->has_size) {
        struct winsize ws = {.ws_col = (unsigned short)pty->size.cols,
                             .ws_row = (unsigned short)pty->size.rows};
        ioctl(e->out, TIOCSWINSZ, &ws);
    }
    e->in = fcntl(e->out, F_DUPFD_CLOEXEC, 3);
    e->child[0] = ioctl(e->out, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (e->in < 0 || e->child[0] < 0)
        return -1;
    if (fchown(e->child[0], u->uid, (gid_t)-1) < 0 && geteuid() == 0)
        return -1;
    for (int i = 1; i < 3; i++)
        if ((e->child[i] = fcntl(e->child[0], F_DUPFD_CLOEXEC, 3)) < 0)
            return -1;
    return 0;
}

static void start_failed(struct rpc *r, enum spawn_step step, int sys, const char *cwd, const struct user *u)
{
    if (step == SPAWN_CWD && (sys == ENOENT || sys == ENOTDIR))
        rpc_fail(r, RPC_INVALID_ARGUMENT, "cwd '%s' does not exist", cwd);
    else if (step == SPAWN_CWD)
        rpc_fail(r, RPC_INVALID_ARGUMENT, "cwd '%s' cannot be entered as user '%s': %s", cwd, u->name,
                 strerror(sys));
    else if (step == SPAWN_IDENTITY)
        rpc_fail(r, RPC_PERMISSION_DENIED, "cannot become user '%s': %s", u->name, strerror(sys));
    else
        rpc_fail(r, rpc_code_of(sys), "error starting process: %s", strerror(sys));
}

static int cgroup_of(const struct proc *p)
{
    if (p->has_tag && !strcmp(p->tag, TAG_SYSTEM))
        return state.cgroup_system;
    return p->pty ? state.cgroup_pty : state.cgroup_user;
}

static bool spawn_into(struct rpc *r, struct proc *p, const struct msg_start *req, const struct user *u,
                       const char *cwd)
{
    struct arena *a = &r->c->req->arena;
    char **argv = arena_alloc(a, (p->args.n + 2) * sizeof(char *));
    char **envp = env_build(a, u, &p->envs);
    if (!argv || !envp) {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "too many or too large arguments or variables");
        return false;
    }
    argv[0] = (char *)p->cmd;
    for (size_t i = 0; i < p->args.n; i++)
        argv[i + 1] = (char *)p->args.v[i];
    struct ends e = {{-1, -1, -1}, -1, -1, -1};
    if ((p->pty ? ends_pty(&e, &req->pty, u) : ends_pipes(&e, p->stdin_on)) < 0) {
        int sys = errno;
        ends_close(&e);
        start_failed(r, SPAWN_STDIO, sys, cwd, u);
        return false;
    }
    struct spawn s = {
        .file = p->cmd,
        .argv = argv,
        .envp = envp,
        .cwd = cwd,
        .cwd_optional = !*p->cwd,
        .user = u,
        .in = e.child[0],
        .out = e.child[1],
        .err = e.child[2],
        .tty = p->pty,
        .cgroup = cgroup_of(p),
        .oom_score_adj = OOM_BIAS,
        .set_oom = true,
        .nofile_soft = state.nofile_soft,
        .nofile_hard = state.nofile_hard,
    };
    enum spawn_step step;
    int pidfd;
    pid_t pid = spawn_process(&s, &pidfd, &step);
    int sys = errno;
    for (int i = 0; i < 3; i++)
        if (e.child[i] >= 0)
            close(e.child[i]);
    if (pid < 0) {
        e.child[0] = e.child[1] = e.child[2] = -1;
        ends_close(&e);
        start_failed(r, step, sys, cwd, u);
        return false;
    }
    proc_run(p, pid, pidfd, e.in, e.out, e.err);
    return true;
}

struct proc *process_start(struct rpc *r, const struct msg_start *req)
{
    struct user u;
    struct err err = {0};
    char cwd[PATH_MAX];
    if (!req->has_process || !*req->process.cmd) {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "process.cmd is required");
        return NULL;
    }
    if (state.frozen) { /* the request's head came before the freeze; a child would be born frozen, and hold
                           us */
        rpc_fail(r, RPC_UNAVAILABLE, "the sandbox is frozen");
        return NULL;
    }
    if (rpc_user(r, &u) < 0)
        return NULL;
    if (state_path(req->process.cwd, &u, cwd, &err) < 0) {
        rpc_fail(r, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return NULL;
    }
    struct proc *p = proc_new(req, &u);
    if (!p) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    if (!spawn_into(r, p, req, &u, cwd)) {
        proc_free(p);
        return NULL;
    }
    if (r->timeout_ms >= 0)
        p->deadline_ms = loop_now_ms() + r->timeout_ms;
    keeper_store(p);
    oplog_start(p);
    return p;
}
