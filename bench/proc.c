/* Owns the processes that a benchmark starts; invariant: a child gets SIGKILL when the benchmark dies
 * (PDEATHSIG). */
#include "bench/proc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int dial(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int r = connect(fd, (struct sockaddr *)&a, sizeof a);
    close(fd);
    return r;
}

/* Below the ephemeral range, so that no outgoing connection sits on it; never the same twice. */
int proc_free_port(void)
{
    static int next;
    if (next == 0)
        next = 10000 + (getpid() * 31) % 20000;
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, port = next++;
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        bool ok = bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
        close(fd);
        if (ok)
            return port;
    }
}

pid_t proc_start(char *const *argv, const char *log, int *stdin_fd, struct err *e)
{
    int in[2] = {-1, -1};
    if (stdin_fd && pipe2(in, O_CLOEXEC) < 0)
        return err_sys(e, ERR_INTERNAL, "starting %s", argv[0]);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return err_sys(e, ERR_INTERNAL, "starting %s", argv[0]);
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(stdin_fd ? in[0] : null, 0);
        dup2(out, 1);
        dup2(out, 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    if (stdin_fd) {
        close(in[0]);
        *stdin_fd = in[1];
    }
    return pid;
}

int proc_wait_port(pid_t pid, int port, int timeout_ms, const char *name, struct err *e)
{
    for (int waited = 0; dial(port) < 0; waited += 10) {
        if (waitpid(pid, NULL, WNOHANG) == pid)
            return err_set(e, ERR_INTERNAL, "%s ended before it listened on port %d", name, port);
        if (waited > timeout_ms)
            return err_set(e, ERR_INTERNAL, "%s does not listen on port %d after %d ms", name, port,
                           timeout_ms);
        poll(NULL, 0, 10);
    }
    return 0;
}

void proc_stop(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGTERM);
    for (int i = 0; i < 200; i++) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return;
        poll(NULL, 0, 10);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static FILE *open_proc(pid_t pid, const char *file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    return fopen(path, "re");
}

long long proc_cpu_us(pid_t pid)
{
    /* schedstat's first number is the time on a CPU in nanoseconds: much finer than the ticks of stat. It
     * covers one thread, so all of them are added. */
    FILE *f = open_proc(pid, "stat");
    if (!f)
        return -1;
    fclose(f);
    long long sum = 0;
    char command[96];
    snprintf(command, sizeof command, "cat /proc/%d/task/*/schedstat", pid);
    FILE *p = popen(command, "re");
    unsigned long long ns;
    while (p && fscanf(p, "%llu %*u %*u", &ns) == 1)
        sum += (long long)(ns / 1000);
    if (p)
        pclose(p);
    return sum;
}

long proc_rss_kib(pid_t pid)
{
    FILE *f = open_proc(pid, "statm");
    long pages = 0;
    if (!f)
        return -1;
    if (fscanf(f, "%*d %ld", &pages) != 1)
        pages = -1;
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int proc_run(char *const *argv, const char *log, struct err *e)
{
    pid_t pid = proc_start(argv, log, NULL, e);
    int status;
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return err_sys(e, ERR_INTERNAL, "waiting for %s", argv[0]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
