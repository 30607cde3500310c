/* Owns the daemons of this machine; invariants: one supervisor per run directory (a lock that dies with it),
 * a daemon that ends is started again after a growing pause, and VM processes are never its children: they
 * belong to the jailer. */
#include "cli/supervise.h"
#include "cli/programs.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/crash.h"
#include "lib/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define DAEMONS_MAX 16
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 5000
#define STABLE_MS 10000 /* a daemon that ran this long starts its next pause small again */
#define STOP_MS 8000    /* then SIGKILL */

/* Which file it was that a process was started from. */
struct version {
    dev_t dev;
    ino_t ino;
    struct timespec mtime;
};

struct child {
    const struct daemon_spec *spec;
    pid_t pid;
    int64_t started_ms, start_at_ms;
    int pause_ms;
    bool refreshing; /* ended by us, to be started from its new program or configuration */
    struct version program, config;
};

struct supervisor {
    const struct settings *settings;
    struct child children[DAEMONS_MAX];
    size_t n;
    bool stopping;
};

static void pid_path(const struct settings *s, const char *name, char *out, size_t cap)
{
    snprintf(out, cap, "%s/pid/%s", s->run_dir, name);
}

static void write_pid(const struct settings *s, const char *name, pid_t pid)
{
    char path[256];
    pid_path(s, name, path, sizeof path);
    if (pid == 0) {
        unlink(path);
        return;
    }
    _cleanup_fclose_ FILE *f = fopen(path, "we");
    if (f)
        fprintf(f, "%d\n", pid);
}

static pid_t read_pid(const char *path)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    int pid = 0;
    if (!f || fscanf(f, "%d", &pid) != 1)
        return 0;
    return pid;
}

pid_t supervise_daemon_pid(const struct settings *s, const char *name)
{
    char path[256];
    pid_path(s, name, path, sizeof path);
    return read_pid(path);
}

static struct version version_of(const char *path)
{
    struct stat st = {0};
    if (stat(path, &st) < 0)
        return (struct version){0};
    return (struct version){.dev = st.st_dev, .ino = st.st_ino, .mtime = st.st_mtim};
}

/* A file that is not there for a moment is no change. */
static bool version_differs(const struct version *a, const struct version *now)
{
    return now->ino && (a->dev != now->dev || a->ino != now->ino || a->mtime.tv_sec != now->mtime.tv_sec ||
                        a->mtime.tv_nsec != now->mtime.tv_nsec);
}

/* For Redis the file with its users stands for all, for that is what changes. */
static void versions(const struct settings *s, const struct daemon_spec *d, struct version *program,
                     struct version *config)
{
    char path[512];
    program_of(s, d, path, sizeof path);
    *program = version_of(path);
    snprintf(path, sizeof path, "%s/%s", s->state_dir, d->binary ? "cube.yaml" : "redis/users.acl");
    *config = version_of(path);
}

static void exec_daemon(const struct supervisor *sv, const struct daemon_spec *d)
{
    char binary[512], config[256], log[256];
    const struct settings *s = sv->settings;
    program_of(s, d, binary, sizeof binary);
    snprintf(log, sizeof log, "%s/log/%s.log", s->state_dir, d->name);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0640);
    if (fd >= 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        if (fd > STDERR_FILENO)
            close(fd);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    prctl(PR_SET_NAME, d->name);
    daemon_drop_privileges(d);
    if (d->binary) {
        snprintf(config, sizeof config, "%s/cube.yaml", s->state_dir);
        execl(binary, d->name, "--config", config, (char *)NULL);
    } else {
        snprintf(config, sizeof config, "%s/redis/redis.conf", s->state_dir);
        execl(binary, "redis-server", config, (char *)NULL);
    }
    log_error("starting %s: %s", binary, strerror(errno));
    _exit(127);
}

static void start(struct supervisor *sv, struct child *c)
{
    versions(sv->settings, c->spec, &c->program, &c->config);
    pid_t pid = fork();
    if (pid == 0)
        exec_daemon(sv, c->spec);
    if (pid < 0) {
        log_error("forking for %s: %s", c->spec->name, strerror(errno));
        c->start_at_ms = clock_boot_ms() + PAUSE_MAX_MS;
        return;
    }
    c->pid = pid;
    c->started_ms = clock_boot_ms();
    write_pid(sv->settings, c->spec->name, pid);
    log_info("started %s, pid %d", c->spec->name, pid);
}

static void ended(struct supervisor *sv, struct child *c, int status)
{
    int64_t now = clock_boot_ms();
    if (c->refreshing || now - c->started_ms > STABLE_MS)
        c->pause_ms = 0;
    c->pause_ms = c->pause_ms ? c->pause_ms * 2 : (c->refreshing ? 1 : PAUSE_MIN_MS);
    if (c->pause_ms > PAUSE_MAX_MS)
        c->pause_ms = PAUSE_MAX_MS;
    log_line(c->refreshing || sv->stopping ? LOG_INFO : LOG_WARN, NULL, "%s (pid %d) ended: %s %d",
             c->spec->name, c->pid, WIFSIGNALED(status) ? "signal" : "exit status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    c->pid = 0;
    c->refreshing = false;
    c->start_at_ms = now + c->pause_ms;
    write_pid(sv->settings, c->spec->name, 0);
}

static void reap(struct supervisor *sv)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (size_t i = 0; i < sv->n; i++)
            if (sv->children[i].pid == pid)
                ended(sv, &sv->children[i], status);
}

static void refresh(struct supervisor *sv)
{
    for (size_t i = 0; i < sv->n; i++) {
        struct child *c = &sv->children[i];
        c->start_at_ms = 0;
        struct version program, config;
        versions(sv->settings, c->spec, &program, &config);
        bool new_program = version_differs(&c->program, &program);
        if (c->pid && (new_program || version_differs(&c->config, &config))) {
            log_info("%s has a new %s", c->spec->name, new_program ? "program" : "configuration");
            c->refreshing = true;
            kill(c->pid, SIGTERM);
        }
    }
}

/* Stops in reverse order, each before the next: the jailer outlives the node, Redis outlives the masters. */
static void stop_all(struct supervisor *sv)
{
    sv->stopping = true;
    for (size_t i = sv->n; i-- > 0;) {
        struct child *c = &sv->children[i];
        if (!c->pid)
            continue;
        int pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
        kill(c->pid, SIGTERM);
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        if (pidfd < 0 || poll(&p, 1, STOP_MS) == 0) {
            log_warn("%s does not stop; killing it", c->spec->name);
            kill(c->pid, SIGKILL);
        }
        int status = 0;
        waitpid(c->pid, &status, 0);
        if (pidfd >= 0)
            close(pidfd);
        ended(sv, c, status);
    }
}

static int next_timeout(struct supervisor *sv)
{
    int64_t now = clock_boot_ms(), wait = -1;
    for (size_t i = 0; i < sv->n; i++) {
        struct child *c = &sv->children[i];
        if (c->pid)
            continue;
        int64_t left = c->start_at_ms > now ? c->start_at_ms - now : 0;
        if (wait < 0 || left < wait)
            wait = left;
    }
    return (int)wait;
}

static void run(struct supervisor *sv, int sigfd)
{
    for (;;) {
        for (size_t i = 0; i < sv->n; i++)
            if (!sv->children[i].pid && sv->children[i].start_at_ms <= clock_boot_ms())
                start(sv, &sv->children[i]);
        struct pollfd p = {.fd = sigfd, .events = POLLIN};
        if (poll(&p, 1, next_timeout(sv)) <= 0)
            continue;
        struct signalfd_siginfo si;
        while (read(sigfd, &si, sizeof si) == (ssize_t)sizeof si) {
            if (si.ssi_signo == SIGCHLD)
                reap(sv);
            else if (si.ssi_signo == SIGHUP)
                refresh(sv);
            else
                return;
        }
    }
}

static void supervise_main(const struct settings *s, int ready_fd)
{
    char lock[256], log[256];
    snprintf(lock, sizeof lock, "%s/supervisor.lock", s->run_dir);
    snprintf(log, sizeof log, "%s/log/supervisor.log", s->state_dir);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        _exit(1);
    if (ftruncate(fd, 0) < 0 || dprintf(fd, "%d\n", getpid()) < 0)
        _exit(1);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(out >= 0 ? out : null, STDOUT_FILENO);
    dup2(out >= 0 ? out : null, STDERR_FILENO);
    prctl(PR_SET_NAME, "cube-supervisor");
    log_init("cube-supervisor", LOG_INFO);
    crash_init("cube-supervisor");

    struct supervisor sv = {.settings = s};
    for (const struct daemon_spec *d = daemon_table; d->name && sv.n < DAEMONS_MAX; d++)
        if (d->binary || !s->redis[0])
            sv.children[sv.n++].spec = d;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (write(ready_fd, "1", 1) != 1)
        _exit(1);
    close(ready_fd);
    run(&sv, sigfd);
    stop_all(&sv);
    unlink(lock);
    _exit(0);
}

int supervise_start(const struct settings *s, struct err *e)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(e, ERR_INTERNAL, "starting the supervisor");
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, ERR_INTERNAL, "starting the supervisor");
    if (pid == 0) {
        close(fds[0]);
        setsid();
        if (fork() != 0)
            _exit(0);
        supervise_main(s, fds[1]);
    }
    close(fds[1]);
    waitpid(pid, NULL, 0);
    char c;
    ssize_t n = read(fds[0], &c, 1);
    close(fds[0]);
    return n == 1 ? 0 : err_set(e, ERR_CONFLICT, "another supervisor holds %s/supervisor.lock", s->run_dir);
}

pid_t supervise_pid(const struct settings *s)
{
    char lock[256];
    snprintf(lock, sizeof lock, "%s/supervisor.lock", s->run_dir);
    _cleanup_close_ int fd = open(lock, O_RDWR | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    return read_pid(lock);
}

void supervise_refresh(pid_t pid)
{
    kill(pid, SIGHUP);
}

int supervise_stop(const struct settings *s, struct err *e)
{
    pid_t pid = supervise_pid(s);
    if (pid <= 0)
        return 0;
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (kill(pid, SIGTERM) < 0)
        return err_sys(e, ERR_INTERNAL, "stopping the supervisor, pid %d", pid);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (pidfd >= 0 && poll(&p, 1, 60000) == 0)
        return err_set(e, ERR_DEADLINE, "the supervisor, pid %d, did not stop in 60 s", pid);
    return 0;
}
