/* Blocking client of a VMM. Invariant: one request is in flight at a time; events that come between are kept.
 */
#include "node/vmmctl/client.h"

#include "lib/base/cleanup.h"
#include "lib/base/seqpacket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MESSAGE_MAX 16384

static int message_send(int sock, const Cube__Vmm__V1__Request *q, const int *fds, unsigned nfds,
                        struct err *e)
{
    uint8_t data[MESSAGE_MAX];
    size_t n = cube__vmm__v1__request__get_packed_size(q);

    if (n > sizeof data)
        return err_set(e, ERR_TOO_LARGE, "request to the VMM: too large");
    cube__vmm__v1__request__pack(q, data);
    return seqpacket_send(sock, data, n, fds, nfds) < 0 ? err_sys(e, ERR_UNAVAILABLE, "send to the VMM") : 0;
}

static Cube__Vmm__V1__Reply *message_receive(int sock, struct err *e)
{
    uint8_t data[MESSAGE_MAX];
    ssize_t n;

    do
        n = recv(sock, data, sizeof data, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        err_set(e, ERR_UNAVAILABLE, "the VMM closed the control connection");
        return NULL;
    }
    Cube__Vmm__V1__Reply *r = cube__vmm__v1__reply__unpack(NULL, (size_t)n, data);
    if (!r)
        err_set(e, ERR_INTERNAL, "the VMM's answer cannot be parsed");
    return r;
}

void vmm_reply_free(Cube__Vmm__V1__Reply *r)
{
    if (r)
        cube__vmm__v1__reply__free_unpacked(r, NULL);
}

static void event_keep(struct vmm_client *c, Cube__Vmm__V1__Reply *r)
{
    if (r->result_case == CUBE__VMM__V1__REPLY__RESULT_EXIT && !c->exit)
        c->exit = r;
    else
        vmm_reply_free(r);
}

int vmm_call(struct vmm_client *c, Cube__Vmm__V1__Request *q, const int *fds, unsigned nfds,
             Cube__Vmm__V1__Reply **reply, struct err *e)
{
    q->id = ++c->next_id;
    if (message_send(c->sock, q, fds, nfds, e) < 0)
        return -1;
    for (;;) {
        Cube__Vmm__V1__Reply *r = message_receive(c->sock, e);
        if (!r)
            return -1;
        if (r->id != q->id) {
            event_keep(c, r);
            continue;
        }
        if (r->error_code[0]) {
            err_set(e, err_code_parse(r->error_code), "%s", r->error);
            vmm_reply_free(r);
            return -1;
        }
        if (reply)
            *reply = r;
        else
            vmm_reply_free(r);
        return 0;
    }
}

int vmm_attach(struct vmm_client *c, int sock, struct err *e)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Hello h = CUBE__VMM__V1__HELLO__INIT;

    *c = (struct vmm_client){.sock = sock};
    h.version = 1;
    q.op_case = CUBE__VMM__V1__REQUEST__OP_HELLO;
    q.hello = &h;
    return vmm_call(c, &q, NULL, 0, NULL, e);
}

/* In the child: descriptors 3, 4 and 5, and nothing else above 2. */
static void child_exec(const struct vmm_spawn *s, int listener, int kvm, int proc)
{
    char mem[16], cpus[16];
    char *argv[] = {"cube-vmm", "--memory-mib", mem, "--vcpus", cpus, s->seccomp ? NULL : "--no-seccomp",
                    NULL};

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a developer's VM does not outlive his program */
    snprintf(mem, sizeof mem, "%u", s->memory_mib);
    snprintf(cpus, sizeof cpus, "%u", s->vcpus);
    int l = fcntl(listener, F_DUPFD, 100), k = fcntl(kvm, F_DUPFD, 100), p = fcntl(proc, F_DUPFD, 100);
    dup2(l, 3);
    dup2(k, 4);
    dup2(p, 5);
    close_range(6, ~0u, 0);
    execv(s->program, argv);
    fprintf(stderr, "%s: %s\n", s->program, strerror(errno));
    _exit(127);
}

static int listener_new(int type, const char *path, struct err *e)
{
    struct sockaddr_un {
        sa_family_t family;
        char path[108];
    } a = {.family = AF_UNIX};
    socklen_t len = sizeof a.family; /* autobind: an unused abstract address */

    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "socket");
    if (path) {
        if (strlen(path) >= sizeof a.path) {
            close(fd);
            return err_set(e, ERR_INVALID, "socket path %s is too long", path);
        }
        strcpy(a.path, path);
        unlink(path);
        len = (socklen_t)(sizeof a.family + strlen(path) + 1);
    }
    if (bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, 128) < 0) {
        err_sys(e, ERR_INTERNAL, "listen on %s", path ? path : "an abstract socket");
        close(fd);
        return -1;
    }
    return fd;
}

int vmm_listen(const char *path, struct err *e)
{
    return listener_new(SOCK_STREAM, path, e);
}

static int connect_to(int listener, int type, struct err *e)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;

    if (getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        return err_sys(e, ERR_INTERNAL, "address of the socket");
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, len) < 0) {
        err_sys(e, ERR_UNAVAILABLE, "connect");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

int vmm_connect_to(int listener, struct err *e)
{
    return connect_to(listener, SOCK_STREAM, e);
}

int vmm_spawn(struct vmm_client *c, const struct vmm_spawn *s, struct err *e)
{
    _cleanup_close_ int listener = listener_new(SOCK_SEQPACKET, NULL, e);
    _cleanup_close_ int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    _cleanup_close_ int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (listener < 0)
        return -1;
    if (kvm < 0)
        return err_sys(e, ERR_UNSUPPORTED, "open /dev/kvm");
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, ERR_CAPACITY, "start the VMM");
    if (pid == 0)
        child_exec(s, listener, kvm, proc);
    int sock = connect_to(listener, SOCK_SEQPACKET, e);
    close(fd_steal(&listener)); /* so that the connection ends when the VMM does */
    if (sock < 0 || vmm_attach(c, sock, e) < 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return -1;
    }
    c->pid = pid;
    return 0;
}

int vmm_wait_exit(struct vmm_client *c, int timeout_ms)
{
    while (!c->exit) {
        struct pollfd p = {c->sock, POLLIN, 0};
        struct err e = {0};

        if (poll(&p, 1, timeout_ms) == 0)
            return 0;
        Cube__Vmm__V1__Reply *r = message_receive(c->sock, &e);
        if (!r)
            return 1;
        event_keep(c, r);
    }
    return 1;
}

int vmm_close(struct vmm_client *c)
{
    int status = 0, rc = -1;

    if (c->sock >= 0) {
        Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
        Cube__Vmm__V1__Shutdown s = CUBE__VMM__V1__SHUTDOWN__INIT;
        q.op_case = CUBE__VMM__V1__REQUEST__OP_SHUTDOWN;
        q.shutdown = &s;
        if (c->pid > 0)
            vmm_call(c, &q, NULL, 0, NULL, NULL);
        close(c->sock);
    }
    if (c->pid > 0 && waitpid(c->pid, &status, 0) == c->pid && WIFEXITED(status))
        rc = WEXITSTATUS(status);
    vmm_reply_free(c->exit);
    *c = (struct vmm_client){.sock = -1};
    return rc;
}
