/* cube-envd: the user plane of a sandbox, on port 49983 (contracts/e2b.md §3–4). Parses its arguments, opens
 * its sockets, runs the loop. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/envd/conn.h"
#include "guest/envd/jobs.h"
#include "guest/envd/keeper.h"
#include "guest/envd/process.h"
#include "guest/envd/server.h"
#include "guest/envd/state.h"
#include "guest/envd/version.h"
#include "lib/base/log.h"

#define DEFAULT_PORT 49983
#define NOFILE_WANTED (1 << 20)
#define NOFILE_RESERVED 512 /* descriptors kept for processes and files beside the connections */

static const char usage[] =
    "NAME\n"
    "    cube-envd - processes and files of a sandbox over HTTP\n"
    "SYNOPSIS\n"
    "    cube-envd [--port N] [--listen ADDRESS]...\n"
    "DESCRIPTION\n"
    "    Serves the E2B envd interface. Alone on a host it listens on loopback; with E2B_DEBUG=true the SDKs "
    "use\n"
    "    http://localhost:49983.\n"
    "OPTIONS\n"
    "    --port N          port (49983); 0 takes a free one and prints it\n"
    "    --listen ADDRESS  IP address to listen on; may be repeated (127.0.0.1 and ::1)\n"
    "    --version, --help\n"
    "    Given by cube-init:\n"
    "    --listen-fd N     a listening socket, instead of opening some; may be repeated\n"
    "    --control-fd N    connected stream socket for the platform's requests; makes the daemon wait for "
    "its identity\n"
    "    --notify-fd N     connected SEQPACKET socket: events, and processes that outlive a restart\n"
    "    --cgroup DIR      cgroup v2 directory with the children user, pty and system\n";

static struct {
    long port;
    const char *listen[4];
    int n_listen, control_fd, notify_fd, listen_fds[4], n_listen_fds;
    const char *cgroup;
} options = {.port = DEFAULT_PORT, .control_fd = -1, .notify_fd = -1};

static void parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"port", 1, NULL, 'p'},       {"listen", 1, NULL, 'l'},    {"listen-fd", 1, NULL, 'k'},
        {"control-fd", 1, NULL, 'c'}, {"notify-fd", 1, NULL, 'n'}, {"cgroup", 1, NULL, 'g'},
        {"version", 0, NULL, 'v'},    {"help", 0, NULL, 'h'},      {NULL, 0, NULL, 0},
    };
    for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (o) {
        case 'p':
            options.port = strtol(optarg, NULL, 10);
            break;
        case 'l':
            if (options.n_listen < 4)
                options.listen[options.n_listen++] = optarg;
            break;
        case 'k':
            if (options.n_listen_fds < 4)
                options.listen_fds[options.n_listen_fds++] = atoi(optarg);
            break;
        case 'c':
            options.control_fd = atoi(optarg);
            break;
        case 'n':
            options.notify_fd = atoi(optarg);
            break;
        case 'g':
            options.cgroup = optarg;
            break;
        case 'v':
            printf("cube-envd %s (envd %s)\n", CUBE_VERSION, ENVD_VERSION);
            exit(0);
        default:
            fputs(usage, o == 'h' ? stdout : stderr);
            exit(o == 'h' ? 0 : 2);
        }
    }
    if (optind < argc || options.port < 0 || options.port > 65535) {
        fputs(usage, stderr);
        exit(2);
    }
}

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
    parse(argc, argv);
    log_init("envd", LOG_INFO);
    umask(022);
    limits_raise();
    state.in_vm = options.control_fd >= 0;
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
