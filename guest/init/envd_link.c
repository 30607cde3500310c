/* Supervision. Invariants: a restarted envd has its processes, its identity and its frozen state before it
 * serves anybody; the last identity is kept only in locked memory. */
#include "guest/init/envd_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/common/loop.h"
#include "guest/init/cgroups.h"
#include "guest/init/events.h"
#include "guest/init/listeners.h"
#include "guest/init/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define RESTART_MS 50
#define REPLAY_TIMEOUT_MS 5000
#define STUCK_MS 5000 /* without a word although an answer is owed: it is killed and started again */
#define IDENTITY_MAX ((size_t)1 << 20)
#define CHILD_FDS (2 + LISTENERS_MAX)
#define NOTIFY_BUFFER (8 << 20)

struct child {
    const char *name;
    int fd; /* O_PATH of the program */
    pid_t pid;
    struct timer restart;
    void (*start)(struct child *c);
};

static struct child envd, gateway;
static uint32_t restarts;
static int control = -1;
static struct ev notify = {.fd = -1};
static char *identity; /* body of the last /init */
static size_t identity_len;
static bool frozen;
static int listeners[LISTENERS_MAX], n_listeners;

uint32_t link_restarts(void)
{
    return restarts;
}

pid_t link_envd_pid(void)
{
    return envd.pid;
}

/* fork and exec by descriptor; `fds` end up as 3, 4, … in the child. */
static pid_t program_start(int program, const char *const *argv, const int *fds, int n_fds)
{
    static char *const envp[] = {(char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                 (char *)"HOME=/", NULL};
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int high[CHILD_FDS], exec_fd = fcntl(program, F_DUPFD_CLOEXEC, 100);
    for (int i = 0; i < n_fds; i++)
        high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 100);
    for (int i = 0; i < n_fds; i++)
        if (dup2(high[i], 3 + i) < 0)
            _exit(126);
    syscall(SYS_execveat, exec_fd, "", argv, envp, AT_EMPTY_PATH);
    _exit(127);
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

/* What came on the control connection. Responses come in the order of their requests; one that was given up
 * on is still owed, and is read before the next one. */
static struct {
    char text[8192];
    size_t n;
    unsigned owed;
    int64_t waiting_ms; /* since when nothing came although something is owed, 0 = not */
} inbox;

/* Takes one whole response off the front: its status, 0 when it is not complete. Bodies are small (an error
 * message). */
static int response_take(struct err *e)
{
    inbox.text[inbox.n] = 0;
    char *end = strstr(inbox.text, "\r\n\r\n");
    if (!end)
        return 0;
    const char *len = strcasestr(inbox.text, "content-length:");
    size_t body = len && len < end ? strtoul(len + 15, NULL, 10) : 0,
           whole = (size_t)(end + 4 - inbox.text) + body;
    if (inbox.n < whole)
        return 0;
    int status = atoi(inbox.text + 9);
    if (status >= 300)
        err_set(e, ERR_INTERNAL, "envd answered %d: %.*s", status, (int)(body < 160 ? body : 160), end + 4);
    memmove(inbox.text, inbox.text + whole, inbox.n - whole);
    inbox.n -= whole;
    inbox.owed--;
    inbox.waiting_ms = inbox.owed ? clock_boot_ms() : 0;
    return status;
}

/* The status of the last request, whose answer is the last one owed. */
static int response_read(int timeout_ms, struct err *e)
{
    int64_t now = clock_boot_ms(), until = now + timeout_ms;
    if (!inbox.waiting_ms)
        inbox.waiting_ms = now;
    for (;;) {
        struct err answered = {0};
        int status = response_take(&answered);
        if (status && !inbox.owed) {
            *e = answered.code ? answered : *e;
            return status;
        }
        if (status)
            continue;
        struct pollfd p = {.fd = control, .events = POLLIN};
        int64_t left = until - clock_boot_ms();
        if (inbox.n + 1 >= sizeof(inbox.text))
            return err_set(e, ERR_INTERNAL, "envd's answer is too large");
        if (left <= 0 || poll(&p, 1, (int)left) <= 0)
            return err_set(e, ERR_DEADLINE, "envd did not answer within %d ms", timeout_ms);
        ssize_t r = recv(control, inbox.text + inbox.n, sizeof(inbox.text) - 1 - inbox.n, MSG_DONTWAIT);
        if (r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR))
            return err_set(e, ERR_UNAVAILABLE, "envd ended while it was asked");
        if (r > 0)
            inbox.n += (size_t)r;
    }
}

int link_request(const char *method, const char *path, const char *body, size_t n, int timeout_ms,
                 struct err *e)
{
    char head[256];
    if (control < 0)
        return err_set(e, ERR_UNAVAILABLE, "envd is not running");
    int len = snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: envd\r\nContent-Length: %zu\r\n\r\n",
                       method, path, body ? n : 0);
    if (!write_all(control, head, (size_t)len) || (body && !write_all(control, body, n)))
        return err_sys(e, ERR_UNAVAILABLE, "writing to envd");
    inbox.owed++;
    int status = response_read(timeout_ms, e);
    /* On a host with too much to do a second means nothing; a daemon that is silent for long is stuck, and a
     * fresh one is the way back. */
    bool stuck = e->code != ERR_DEADLINE || clock_boot_ms() - inbox.waiting_ms >= STUCK_MS;
    if (status < 0 && envd.pid > 0 && stuck) {
        log_error("envd does not answer on %s: %s", path, e->msg);
        kill(envd.pid, SIGKILL);
        close(control);
        control = -1;
    }
    return status;
}

static void identity_keep(const char *body, size_t n)
{
    if (!identity) {
        identity = mmap(NULL, IDENTITY_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (identity == MAP_FAILED) {
            identity = NULL;
            return;
        }
        madvise(identity, IDENTITY_MAX, MADV_DONTDUMP);
    }
    explicit_bzero(identity, identity_len);
    identity_len = n < IDENTITY_MAX ? n : 0;
    memcpy(identity, body, identity_len);
    mlock(identity, identity_len);
}

int link_init(const char *body, size_t n, struct err *e)
{
    if (n >= IDENTITY_MAX)
        return err_set(e, ERR_TOO_LARGE, "identity is larger than %zu bytes", IDENTITY_MAX);
    int status = link_request("POST", "/init", body, n, REPLAY_TIMEOUT_MS, e);
    if (status != 204)
        return -1;
    identity_keep(body, n);
    return 0;
}

int link_freeze(bool on, struct err *e)
{
    if (link_request("POST", on ? "/freeze" : "/unfreeze", NULL, 0, REPLAY_TIMEOUT_MS, e) != 204)
        return -1;
    frozen = on;
    return 0;
}

void link_notify(const struct notify_msg *m)
{
    if (notify.fd >= 0 && notify_send(notify.fd, m) < 0)
        log_warn("telling envd: %s", strerror(errno));
}

static void on_notify(void *owner, uint32_t events)
{
    static struct notify_msg m;
    for (;;) {
        int rc = notify_recv(notify.fd, &m);
        if (rc < 0)
            ev_close(&notify); /* its end is seen by SIGCHLD */
        if (rc <= 0)
            return;
        if (m.type == 'S') {
            store_put(&m);
            continue;
        }
        for (int i = 0; i < m.n_fds; i++)
            close(m.fds[i]);
        if ((m.type == 'F' || m.type == 'Z') && m.n_strings)
            store_forget((pid_t)atoi(m.s[0]));
        if (m.type == 'Z')
            store_ended(&m);
        else if (m.type == 'C' && m.n_strings)
            store_stdin_close((pid_t)atoi(m.s[0]));
        else if (m.type == 'K' && m.n_strings > 1 && atoi(m.s[0]) > 1)
            store_signal((pid_t)atoi(m.s[0]), atoi(m.s[1]));
        else if (m.type == 'E')
            events_from_envd(&m);
    }
}

static int pair_make(int type, int out[2])
{
    int size = NOTIFY_BUFFER;
    if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, out) < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        setsockopt(out[i], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
    return 0;
}

static void envd_start(struct child *c)
{
    static const char *const numbers[CHILD_FDS] = {"3", "4", "5", "6", "7"};
    const char *argv[16] = {"cube-envd", "--control-fd", "3", "--notify-fd", "4", "--cgroup", CGROUP_SANDBOX};
    int ctl[2], ntf[2], fds[CHILD_FDS], n_args = 7;
    struct err e = {0};
    ev_close(&notify);
    if (control >= 0)
        close(control);
    control = -1;
    if (pair_make(SOCK_STREAM, ctl) < 0)
        return;
    if (pair_make(SOCK_SEQPACKET, ntf) < 0) {
        close(ctl[0]);
        close(ctl[1]);
        return;
    }
    fcntl(ctl[1], F_SETFL, O_NONBLOCK);
    store_replay(ntf[0]);
    fds[0] = ctl[1];
    fds[1] = ntf[1];
    for (int i = 0; i < n_listeners; i++) {
        fds[2 + i] = listeners[i];
        argv[n_args++] = "--listen-fd";
        argv[n_args++] = numbers[2 + i];
    }
    c->pid = program_start(c->fd, argv, fds, 2 + n_listeners);
    close(ctl[1]);
    close(ntf[1]);
    control = ctl[0];
    inbox.n = inbox.owed = 0;
    inbox.waiting_ms = 0;
    notify = (struct ev){.fd = ntf[0], .cb = on_notify};
    ev_watch(&notify, EPOLLIN);
    /* envd answers the control connection only when its loop runs: the identity is in before the first
     * client. */
    if (identity_len && link_request("POST", "/init", identity, identity_len, REPLAY_TIMEOUT_MS, &e) != 204)
        log_error("giving the identity to a restarted envd: %s", e.msg);
    if (frozen && link_request("POST", "/freeze", NULL, 0, REPLAY_TIMEOUT_MS, &e) != 204)
        log_error("freezing a restarted envd: %s", e.msg);
}

static void gateway_start(struct child *c)
{
    static const char *const argv[] = {"cube-gateway", NULL};
    c->pid = program_start(c->fd, argv, NULL, 0);
}

static void on_restart(void *owner)
{
    struct child *c = owner;
    c->start(c);
    log_warn("%s restarted as pid %d", c->name, (int)c->pid);
}

bool link_child_ended(pid_t pid)
{
    struct child *c = pid == envd.pid ? &envd : pid == gateway.pid ? &gateway : NULL;
    if (!c)
        return false;
    c->pid = 0;
    if (c == &envd)
        restarts++;
    timer_set(&c->restart, RESTART_MS);
    return true;
}

int link_start(const struct tools *tools, struct err *e)
{
    envd = (struct child){.name = "cube-envd", .fd = tools->envd, .start = envd_start};
    gateway = (struct child){.name = "cube-gateway", .fd = tools->gateway, .start = gateway_start};
    envd.restart = (struct timer){.cb = on_restart, .owner = &envd};
    gateway.restart = (struct timer){.cb = on_restart, .owner = &gateway};
    n_listeners = listeners_open(listeners, e);
    if (n_listeners < 0)
        return -1;
    envd_start(&envd);
    gateway_start(&gateway);
    if (envd.pid <= 0 || gateway.pid <= 0)
        return err_sys(e, ERR_INTERNAL, "starting envd and gateway");
    return 0;
}
