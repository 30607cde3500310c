/* The measuring client. It does as little as it can with what it gets, so that the daemon is what is
 * measured. */
#include "bench/guest/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GUEST_PORT 49983

/* Page-aligned: "rep movsb", by which the kernel copies, is twenty times as slow on some CPUs (Zen 3) when
 * the target lies 1 to 16 bytes behind the source modulo a page. */
static char in[1 << 20] __attribute__((aligned(4096))), body_text[4 << 20];

void (*client_on_die)(void);

_Noreturn void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    if (client_on_die)
        client_on_die();
    exit(1);
}

double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int dial_try(const struct target *t)
{
    int fd;
    if (!t->in_sock) {
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)t->port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int one = 1;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            return fd;
        }
    } else {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        unsigned char port[2] = {GUEST_PORT >> 8, GUEST_PORT & 255}, status = 255;
        snprintf(a.sun_path, sizeof(a.sun_path), "%s", t->in_sock);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && send(fd, port, 2, 0) == 2 &&
            recv(fd, &status, 1, 0) == 1 && !status)
            return fd;
    }
    close(fd);
    return -1;
}

int dial(const struct target *t)
{
    int fd = dial_try(t);
    if (fd < 0)
        die("the daemon cannot be reached: %s", strerror(errno));
    return fd;
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w < 0)
            die("sending: %s", strerror(errno));
        p += w;
        n -= (size_t)w;
    }
}

static void request(int fd, const char *method, const char *path, const char *type, const void *data,
                    size_t n)
{
    char head[2048];
    int h = snprintf(head, sizeof(head),
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                     method, path, type, n);
    if (n < 16384) { /* one segment, as real clients send small bodies */
        char all[sizeof(head) + 16384];
        memcpy(all, head, (size_t)h);
        if (n)
            memcpy(all + h, data, n);
        send_all(fd, all, (size_t)h + n);
        return;
    }
    send_all(fd, head, (size_t)h);
    send_all(fd, data, n);
}

static size_t read_some(int fd, char *p, size_t cap)
{
    ssize_t n = recv(fd, p, cap, 0);
    if (n <= 0)
        die("the daemon closed the connection");
    return (size_t)n;
}

/* Reads the head; returns the status, and how much of the body is in `in` already. *length -1 = chunked. */
static int head_read(int fd, size_t *rest, long long *length, size_t *at)
{
    size_t n = 0;
    char *end;
    do {
        n += read_some(fd, in + n, sizeof(in) - 1 - n);
        in[n] = 0;
        end = strstr(in, "\r\n\r\n");
    } while (!end);
    *end = 0;
    char *len = strcasestr(in, "content-length:");
    *length = len ? atoll(len + 15) : strcasestr(in, "chunked") ? -1 : 0;
    *at = (size_t)(end + 4 - in);
    *rest = n - *at;
    return atoi(in + 9);
}

int call_count(int fd, const char *method, const char *path, const char *type, const void *data, size_t n,
               uint64_t *bytes)
{
    size_t rest, at;
    long long length;
    request(fd, method, path, type, data, n);
    int status = head_read(fd, &rest, &length, &at);
    uint64_t got = rest;
    char tail[5] = "";
    if (length < 0 && rest >= 5)
        memcpy(tail, in + at + rest - 5, 5);
    while (length < 0 ? memcmp(tail, "0\r\n\r\n", 5) != 0 : got < (uint64_t)length) {
        size_t k = read_some(fd, in, sizeof(in));
        got += k;
        if (k >= 5) {
            memcpy(tail, in + k - 5, 5);
        } else {
            memmove(tail, tail + k, 5 - k);
            memcpy(tail + 5 - k, in, k);
        }
    }
    *bytes = got;
    return status;
}

int call(int fd, const char *method, const char *path, const char *type, const void *data, size_t n,
         const char **body, size_t *body_len)
{
    size_t rest, at;
    long long length;
    request(fd, method, path, type, data, n);
    int status = head_read(fd, &rest, &length, &at);
    memcpy(body_text, in + at, rest);
    size_t got = rest;
    while (length < 0 ? got < 5 || memcmp(body_text + got - 5, "0\r\n\r\n", 5) != 0 : got < (size_t)length) {
        if (got == sizeof(body_text) - 1)
            die("an answer is larger than expected");
        got += read_some(fd, body_text + got, sizeof(body_text) - 1 - got);
    }
    body_text[got] = 0;
    *body = body_text;
    *body_len = got;
    return status;
}

size_t start_body(char *out, size_t cap, const char *const *argv)
{
    size_t n = 5;
    n += (size_t)snprintf(out + n, cap - n, "{\"process\":{\"cmd\":\"%s\",\"args\":[", argv[0]);
    for (int i = 1; argv[i]; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s\"%s\"", i > 1 ? "," : "", argv[i]);
    n += (size_t)snprintf(out + n, cap - n, "]},\"stdin\":false}");
    out[0] = 0;
    for (int i = 0; i < 4; i++)
        out[1 + i] = (char)((n - 5) >> (24 - 8 * i));
    return n;
}

bool run(int fd, const char *const *argv, const char *want)
{
    char msg[4096];
    const char *body;
    size_t n = start_body(msg, sizeof(msg), argv), len;
    if (call(fd, "POST", "/process.Process/Start", "application/connect+json", msg, n, &body, &len) != 200)
        return false;
    return memmem(body, len, "\"exit status 0\"", 15) && (!want || memmem(body, len, want, strlen(want)));
}
