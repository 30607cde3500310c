/* What a plain program needs for the same files: a child that takes bytes from a TCP connection into a file
 * below /tmp, or sends them from there, with nothing in between. The machine's own speed, beside envd's in
 * one run. */
#include "bench/guest/client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define PLAIN_FILE "/tmp/cube-bench-plain"
#define PLAIN_NEW PLAIN_FILE ".new"

static char block[256 * 1024];

/* A new file that takes the old one's name, as envd has it. */
static void take(int fd, uint64_t left)
{
    int file = open(PLAIN_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    while (left) {
        ssize_t n = recv(fd, block, left < sizeof(block) ? left : sizeof(block), 0);
        if (n <= 0 || write(file, block, (size_t)n) != n)
            _exit(1);
        left -= (uint64_t)n;
    }
    close(file);
    unlink(PLAIN_FILE);
    if (rename(PLAIN_NEW, PLAIN_FILE) < 0)
        _exit(1);
}

static void give(int fd, uint64_t left)
{
    int file = open(PLAIN_FILE, O_RDONLY | O_CLOEXEC);
    while (left) {
        ssize_t n = sendfile(fd, file, NULL, left);
        if (n <= 0)
            _exit(1);
        left -= (uint64_t)n;
    }
    close(file);
}

static void serve(int fd)
{
    char op;
    uint64_t n;
    while (recv(fd, &op, 1, MSG_WAITALL) == 1 && recv(fd, &n, sizeof(n), MSG_WAITALL) == sizeof(n)) {
        if (op == 'R')
            take(fd, n);
        else
            give(fd, n);
        if (op == 'R' && send(fd, &op, 1, MSG_NOSIGNAL) != 1)
            return;
    }
}

int plain_start(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, n) < 0 || listen(listener, 8) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &n) < 0)
        die("a plain server cannot listen");
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            serve(fd);
        }
        _exit(0);
    }
    close(listener);
    return ntohs(a.sin_port);
}

void plain_end(void)
{
    unlink(PLAIN_FILE);
}
