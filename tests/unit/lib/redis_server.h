/* Starts and ends real redis-server processes for tests, each in a temporary directory on a free port. */
#pragma once

#include <arpa/inet.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Below the ephemeral range, so that no outgoing connection of another test sits on it; never the same twice.
 */
static inline int free_port(void)
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

/* `args` are further words of the command line, up to a NULL. */
static inline pid_t redis_start(const char *dir, int port, const char *const *args)
{
    char number[16];
    const char *argv[40] = {"redis-server"};
    int n = 1;
    snprintf(number, sizeof number, "%d", port);
    for (; args && *args && n < 30; args++)
        argv[n++] = *args;
    const char *const rest[] = {"--port", number, "--bind",     "127.0.0.1", "--dir",     dir,
                                "--save", "",     "--loglevel", "warning",   "--logfile", "redis.log"};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        argv[n++] = rest[i];
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static inline void redis_stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
