/* cube-envd: the user plane of a sandbox, on port 49983 (contracts/e2b.md §3–4). Opens its sockets, runs
 * the loop. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/envd/conn.h"
#include "guest/envd/jobs.h"
#include "guest/envd/keeper.h"
#include "guest/envd/options.h"
#include "guest/envd/process.h"
#include "guest/envd/server.h"
#include "guest/envd/state.h"
#include "lib/base/log.h"

#define NOFILE_WANTED (1 << 20)
#define NOFILE_RESERVED 512   /* descriptors kept for processes and files beside the connections */
#define LARGE_BLOCK (1 << 20) /* bytes */

static struct options options;

static void limits_raise(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
        return;
    state.nofile_soft = lim.rlim_cur;
    state.nofile_hard = lim.rlim_max;
    struct rlimit more = {.rlim_cur = NOFILE_WANTED,
                          .rlim_max = lim.rlim_max > NOFILE_WANTED ? lim.rlim_max : NOFILE_WANTED};
    if (setrlimit(RLIMIT_NOFILE, &more) < 0) {
        more = (struct rlimit){lim.rlim_max, lim.rlim_max};
        setrlimit(RLIMIT_NOFILE, &more);
    }
    getrlimit(RLIMIT_NOFILE, &more);
    server_limit(more.rlim_cur > 2 * NOFILE_RESERVED
                     ? (unsigned)(more.rlim_cur > 65536 ? 65536 : more.rlim_cur) - NOFILE_RESERVED
                     : (unsigned)more.rlim_cur / 2);
}

static int cgroup_open(const char *child)
{
    char path[512];
    if (!options.cgroup)
        return -1;
    snprintf(path, sizeof(path), "%s/%s", options.cgroup, child);
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int listen_all(void)
{
    int port = (int)options.port;
    for (int i = 0; i < options.n_listen_fds; i++)
        if (server_listen_fd(options.listen_fds[i]) < 0)
            return -1;
    if (options.n_listen_fds)
        return 0;
    if (!options.n_listen) {
        if ((port = server_listen_tcp("127.0.0.1", (uint16_t)port)) < 0)
            return -1;
        if (server_listen_tcp("::1", (uint16_t)port) < 0 && errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)
            return -1;
    }
    for (int i = 0; i < options.n_listen; i++)
        if ((port = server_listen_tcp(options.listen[i], (uint16_t)port)) < 0)
            return -1;
    if (!options.port) {
        printf("%d\n", port);
        fflush(stdout);
    }
    return 0;
}

static void on_signal(void *owner, uint32_t events)
{
    loop_stop();
}

static int signals_open(void)
{
    static struct ev ev;
    sigset_t set;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    ev = (struct ev){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .cb = on_signal};
    return ev.fd < 0 ? -1 : ev_watch(&ev, EPOLLIN);
}

int main(int argc, char **argv)
{
    options_parse(&options, argc, argv);
    log_init("envd", LOG_INFO);
    /* What one request made large goes back to the kernel with it: left to itself, malloc raises the size
     * from which it does so to that of the largest block that it has seen. */
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
    mallopt(M_TRIM_THRESHOLD, LARGE_BLOCK);
    umask(022);
    limits_raise();
    state.in_vm = options.control_fd >= 0;
    proc_keep_ends(options.end_kept_ms);
    state.cgroup_user = cgroup_open("user");
    state.cgroup_pty = cgroup_open("pty");
    state.cgroup_system = cgroup_open("system");
    if (sodium_init() < 0 || loop_open() < 0 || jobs_open() < 0 || signals_open() < 0) {
        log_error("starting: %s", strerror(errno));
        return 1;
    }
    if (options.notify_fd >= 0 && keeper_open(options.notify_fd) < 0)
        log_error("channel to cube-init: %s", strerror(errno));
    if (options.control_fd >= 0)
        conn_open(options.control_fd, true, true);
    if (listen_all() < 0) {
        log_error("listening on port %ld: %s", options.port, strerror(errno));
        return 1;
    }
    loop_run();
    if (!state.in_vm) /* alone, what was started here ends here; in a VM cube-init keeps it for a successor */
        for (struct proc *p = proc_first(); p; p = p->next)
            proc_signal(p, SIGKILL);
    return 0;
}
