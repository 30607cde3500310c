/* The jailer's loop: requests of cube-node, ends of VMs, messages of VMs. Invariant: every request gets one
 * reply; a kill is answered only after the process was reaped. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/seqpacket.h"

#include "proto/jailer.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

typedef Cube__Jailer__V1__Request Request;
typedef Cube__Jailer__V1__Reply Reply;
typedef Cube__Jailer__V1__Vm VmMessage;

#define CLIENTS_MAX 8
#define REQUEST_MAX 4096
#define REPLY_MAX (1u << 20)
#define VM_LOG_MAX (64u << 10) /* bytes of messages that one VMM may put into our log */

struct client {
    int fd; /* -1: free */
    bool greeted;
};

struct server {
    const struct options *o;
    int listener, signals;
    struct client clients[CLIENTS_MAX];
};

/* What a handler wants to answer with. */
struct answer {
    Reply r;
    union {
        Cube__Jailer__V1__HelloReply hello;
        Cube__Jailer__V1__Spawned spawned;
        Cube__Jailer__V1__Listed listed;
        Cube__Jailer__V1__TapMade tap;
    } body;
    char socket[108];
    int fds[2]; /* sent with it and closed */
    unsigned nfds;
    bool later;
};

static void send_reply(int sock, const Reply *r, const int *fds, unsigned nfds)
{
    static uint8_t data[REPLY_MAX];
    size_t n = cube__jailer__v1__reply__get_packed_size(r);

    if (n > sizeof data)
        return;
    cube__jailer__v1__reply__pack(r, data);
    if (seqpacket_send(sock, data, n, fds, nfds) < 0)
        log_warn("answer to cube-node not delivered: %s", strerror(errno));
}

static struct limits limits_of(const Cube__Jailer__V1__Limits *l)
{
    return l ? (struct limits){l->memory_bytes, l->file_bytes, l->cpu_milli, l->pids} : (struct limits){0};
}

static int on_spawn(struct server *s, const Cube__Jailer__V1__Spawn *q, struct answer *a, struct err *e)
{
    struct limits l = limits_of(q->limits);

    if (!name_ok(q->name, NAME_MAX_LEN))
        return err_set(e, ERR_INVALID, "bad name");
    struct vm *v =
        vm_spawn(s->o, q->name, &l, q->memory_mib ? q->memory_mib : 512, q->vcpus ? q->vcpus : 1, e);
    if (!v)
        return -1;
    vm_socket_path(s->o, v->name, a->socket);
    a->fds[0] = fcntl(v->pidfd, F_DUPFD_CLOEXEC, 3);
    if (a->fds[0] < 0)
        return err_sys(e, ERR_CAPACITY, "pass %s on", v->name);
    a->fds[1] = seqpacket_connect(a->socket, e);
    a->nfds = 2;
    if (a->fds[1] < 0)
        return -1;
    cube__jailer__v1__spawned__init(&a->body.spawned);
    a->body.spawned.name = v->name;
    a->body.spawned.pid = (uint32_t)v->pid;
    a->body.spawned.start_time = v->start_time;
    a->body.spawned.socket = a->socket;
    a->r.result_case = CUBE__JAILER__V1__REPLY__RESULT_SPAWN;
    a->r.spawn = &a->body.spawned;
    return 0;
}

static int on_kill(int client, const Request *q, struct answer *a, struct err *e)
{
    struct vm *v = vm_find(q->kill->name);

    if (!v)
        return err_set(e, ERR_NOT_FOUND, "no VM named %.40s", q->kill->name);
    if (v->pidfd < 0)
        return 0;
    if (v->kill_client >= 0)
        return err_set(e, ERR_CONFLICT, "VM %s is being killed", v->name);
    if (syscall(SYS_pidfd_send_signal, v->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return err_sys(e, ERR_INTERNAL, "kill %s", v->name);
    v->kill_client = client;
    v->kill_id = q->id;
    a->later = true;
    return 0;
}

static int on_forget(struct server *s, const char *name, struct err *e)
{
    struct vm *v = vm_find(name);

    if (!v)
        return err_set(e, ERR_NOT_FOUND, "no VM named %.40s", name);
    if (v->pidfd >= 0)
        return err_set(e, ERR_CONFLICT, "VM %s is running", name);
    vm_forget(s->o, v);
    return 0;
}

static void on_list(struct server *s, struct answer *a)
{
    static VmMessage m[VMS_MAX], *p[VMS_MAX];
    static char sockets[VMS_MAX][108];
    size_t n = 0;

    for (struct vm *v = vms; v && n < VMS_MAX; v = v->next, n++) {
        cube__jailer__v1__vm__init(&m[n]);
        vm_socket_path(s->o, v->name, sockets[n]);
        m[n].name = v->name;
        m[n].pid = (uint32_t)v->pid;
        m[n].start_time = v->start_time;
        m[n].socket = sockets[n];
        m[n].alive = v->pidfd >= 0;
        m[n].oom = v->oom;
        m[n].host_oom = v->host_oom;
        m[n].status = v->status;
        p[n] = &m[n];
    }
    cube__jailer__v1__listed__init(&a->body.listed);
    a->body.listed.vms = p;
    a->body.listed.n_vms = n;
    a->r.result_case = CUBE__JAILER__V1__REPLY__RESULT_LIST;
    a->r.list = &a->body.listed;
}

static int on_make_tap(struct server *s, const char *name, struct answer *a, struct err *e)
{
    uint32_t ifindex = 0;

    if (!name_ok(name, TAP_NAME_MAX))
        return err_set(e, ERR_INVALID, "bad TAP name");
    bool ours = tap_recorded(s->o, name);
    if (tap_record(s->o, name, true, e) < 0)
        return -1;
    int fd = tap_make(name, &ifindex, e);
    if (fd < 0) { /* an interface of this name may be somebody else's: it must not look like one of ours */
        if (!ours)
            tap_record(s->o, name, false, NULL);
        return -1;
    }
    a->fds[0] = fd;
    a->nfds = 1;
    cube__jailer__v1__tap_made__init(&a->body.tap);
    a->body.tap.name = (char *)name;
    a->body.tap.ifindex = ifindex;
    a->r.result_case = CUBE__JAILER__V1__REPLY__RESULT_TAP;
    a->r.tap = &a->body.tap;
    return 0;
}

static int on_drop_tap(struct server *s, const char *name, struct err *e)
{
    if (!name_ok(name, TAP_NAME_MAX) || !tap_recorded(s->o, name))
        return err_set(e, ERR_NOT_FOUND, "no TAP of ours has this name");
    return tap_drop(name, e) < 0 ? -1 : tap_record(s->o, name, false, e);
}

static int dispatch(struct server *s, struct client *c, const Request *q, struct answer *a, struct err *e)
{
    if (q->op_case == CUBE__JAILER__V1__REQUEST__OP_HELLO) {
        if (q->hello->version < 1)
            return err_set(e, ERR_UNSUPPORTED, "protocol version %u", q->hello->version);
        c->greeted = true;
        cube__jailer__v1__hello_reply__init(&a->body.hello);
        a->body.hello.version = JAILER_VERSION;
        a->r.result_case = CUBE__JAILER__V1__REPLY__RESULT_HELLO;
        a->r.hello = &a->body.hello;
        return 0;
    }
    if (!c->greeted)
        return err_set(e, ERR_INVALID, "the first message must be hello");
    switch (q->op_case) {
    case CUBE__JAILER__V1__REQUEST__OP_SPAWN:
        return on_spawn(s, q->spawn, a, e);
    case CUBE__JAILER__V1__REQUEST__OP_KILL:
        return on_kill((int)(c - s->clients), q, a, e);
    case CUBE__JAILER__V1__REQUEST__OP_LIST:
        on_list(s, a);
        return 0;
    case CUBE__JAILER__V1__REQUEST__OP_MAKE_TAP:
        return on_make_tap(s, q->make_tap->name, a, e);
    case CUBE__JAILER__V1__REQUEST__OP_DROP_TAP:
        return on_drop_tap(s, q->drop_tap->name, e);
    case CUBE__JAILER__V1__REQUEST__OP_FORGET:
        return on_forget(s, q->forget->name, e);
    case CUBE__JAILER__V1__REQUEST__OP_DNS_SOCKETS:
        a->nfds = 2;
        return host_dns_sockets(s->o, a->fds, e);
    case CUBE__JAILER__V1__REQUEST__OP_SET_LIMITS: {
        struct limits l = limits_of(q->set_limits->limits);
        if (!vm_find(q->set_limits->name))
            return err_set(e, ERR_NOT_FOUND, "no VM named %.40s", q->set_limits->name);
        return cgroup_limit(q->set_limits->name, &l, e);
    }
    default:
        return err_set(e, ERR_UNSUPPORTED, "unknown request %d", q->op_case);
    }
}

static void client_drop(struct server *s, struct client *c)
{
    for (struct vm *v = vms; v; v = v->next)
        if (v->kill_client == c - s->clients)
            v->kill_client = -1;
    close(c->fd);
    *c = (struct client){.fd = -1};
}

static void client_read(struct server *s, struct client *c)
{
    uint8_t data[REQUEST_MAX];
    struct answer a = {.r = CUBE__JAILER__V1__REPLY__INIT, .fds = {-1, -1}};
    struct err e = {0};
    /* No control buffer: descriptors that somebody sends are dropped by the kernel. */
    ssize_t n = recv(c->fd, data, sizeof data, MSG_DONTWAIT | MSG_TRUNC);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || n > (ssize_t)sizeof data) {
        client_drop(s, c);
        return;
    }
    Request *q = cube__jailer__v1__request__unpack(NULL, (size_t)n, data);
    if (!q) {
        client_drop(s, c);
        return;
    }
    a.r.id = q->id;
    bool failed = dispatch(s, c, q, &a, &e) < 0;
    if (failed) {
        a.r.error_code = (char *)err_code_name(e.code);
        a.r.error = e.msg;
        log_warn("request of cube-node: %s", e.msg);
    }
    if (!a.later)
        send_reply(c->fd, &a.r, a.fds, failed ? 0 : a.nfds);
    for (unsigned i = 0; i < a.nfds; i++)
        if (a.fds[i] >= 0)
            close(a.fds[i]);
    cube__jailer__v1__request__free_unpacked(q, NULL);
}

static void vm_end(struct server *s, struct vm *v, int32_t status)
{
    Cube__Jailer__V1__Ended ended = CUBE__JAILER__V1__ENDED__INIT;
    Reply event = CUBE__JAILER__V1__REPLY__INIT;

    vm_mark_ended(s->o, v, status);
    ended.name = v->name;
    ended.pid = (uint32_t)v->pid;
    ended.status = status;
    ended.oom = v->oom;
    ended.host_oom = v->host_oom;
    event.result_case = CUBE__JAILER__V1__REPLY__RESULT_ENDED;
    event.ended = &ended;
    if (v->kill_client >= 0) {
        Reply killed = CUBE__JAILER__V1__REPLY__INIT;
        killed.id = v->kill_id;
        send_reply(s->clients[v->kill_client].fd, &killed, NULL, 0);
        v->kill_client = -1;
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (s->clients[i].fd >= 0 && s->clients[i].greeted)
            send_reply(s->clients[i].fd, &event, NULL, 0);
}

/* Everything that was left to us, too: the jailer is process 1 of a node's container. */
static void reap(struct server *s)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        struct vm *v = vm_find_pid(pid);
        if (v)
            vm_end(s, v, status);
    }
}

/* VMs that an earlier jailer started are not our children: only the pidfd tells. */
static void adopted_ended(struct server *s, struct vm *v)
{
    reap(s);
    if (v->pidfd >= 0)
        vm_end(s, v, -1);
}

static void log_pass_on(struct vm *v)
{
    char text[2048];
    ssize_t n = read(v->log_fd, text, sizeof text);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        close(v->log_fd);
        v->log_fd = -1;
        return;
    }
    if (n > 0 && v->log_bytes < VM_LOG_MAX) {
        v->log_bytes += (uint32_t)n;
        (void)!write(STDERR_FILENO, text, (size_t)n);
    }
}

static void client_accept(struct server *s)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    int size = REPLY_MAX;
    _cleanup_close_ int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
        (peer.uid != (uid_t)s->o->node_uid && peer.uid != 0)) {
        log_warn("connection of uid %d refused", (int)peer.uid);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (s->clients[i].fd < 0) {
            s->clients[i] = (struct client){.fd = fd_steal(&fd)};
            return;
        }
    log_warn("more than %d connections", CLIENTS_MAX);
}

enum { P_LISTENER, P_SIGNALS, P_CLIENTS, P_VMS = P_CLIENTS + CLIENTS_MAX };

/* Fills the list to wait for; two entries per VM, in the order of `vms`. */
static nfds_t poll_fill(struct server *s, struct pollfd *p)
{
    nfds_t n = P_VMS;

    p[P_LISTENER] = (struct pollfd){s->listener, POLLIN, 0};
    p[P_SIGNALS] = (struct pollfd){s->signals, POLLIN, 0};
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        p[P_CLIENTS + i] = (struct pollfd){s->clients[i].fd, POLLIN, 0};
    for (struct vm *v = vms; v; v = v->next) {
        p[n++] = (struct pollfd){v->pidfd, POLLIN, 0};
        p[n++] = (struct pollfd){v->log_fd, POLLIN, 0};
    }
    return n;
}

/* One turn. False: asked to end. */
static bool turn(struct server *s, struct pollfd *p)
{
    nfds_t n = poll_fill(s, p), at = P_VMS;

    if (poll(p, n, -1) < 0)
        return true;
    if (p[P_SIGNALS].revents) {
        struct signalfd_siginfo si;
        if (read(s->signals, &si, sizeof si) == sizeof si && si.ssi_signo != SIGCHLD)
            return false;
        reap(s);
    }
    /* Requests add and remove VMs, so the VMs of this list come first. */
    for (struct vm *v = vms; v; v = v->next, at += 2) {
        if (p[at + 1].revents && v->log_fd >= 0)
            log_pass_on(v);
        if (p[at].revents && v->pidfd >= 0)
            adopted_ended(s, v);
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (s->clients[i].fd >= 0 && p[P_CLIENTS + i].revents)
            client_read(s, &s->clients[i]);
    if (p[P_LISTENER].revents)
        client_accept(s);
    return true;
}

/* Two per VM are held, and a start needs a dozen more; the limit that shells and units give is far below. */
static void raise_descriptors(void)
{
    const rlim_t need = 2 * VMS_MAX + 256;
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur >= need)
        return;
    if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){need, r.rlim_max > need ? r.rlim_max : need}) == 0)
        return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    log_warn("at most %llu open files: room for about %llu VMs", (unsigned long long)r.rlim_max,
             (unsigned long long)r.rlim_max / 2);
}

int serve(const struct options *o, struct err *e)
{
    static struct pollfd p[P_VMS + 2 * VMS_MAX];
    struct server s = {.o = o};
    sigset_t set;

    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        s.clients[i].fd = -1;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptors();
    s.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s.listener = seqpacket_listen(o->socket, (uid_t)o->node_uid, (gid_t)o->node_gid, e);
    if (s.signals < 0 || s.listener < 0)
        return -1;
    log_info("ready on %s", o->socket);
    while (turn(&s, p))
        ;
    log_info("ending; the VMs go on");
    return 0;
}
