/* `guest-alone` and `guest`: cube-envd on this host and in a VM, with the same clock beside what is compared:
 * the shell alone, and raw copies over the same vsock (contracts/internal.md §12). Started by run.sh, which
 * brings the daemon up. */
#include "bench/guest/client.h"
#include "bench/report.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_SIZE (5 << 20)
#define STDOUT_SIZE (200 << 20)
#define EVENTS 10000
#define BUSY 50
#define LIMIT_S 85 /* then what there is until then is printed */
#define EVENTS_MS 20000

enum {
    START,
    ECHO,
    SHELL,
    LIST,
    HEALTHY,
    STDOUT,
    UPLOAD,
    DOWNLOAD,
    RSS_IDLE,
    RSS_BUSY,
    LOST_P,
    LOST_E,
    STDOUT_X,
    UPLOAD_X,
    DOWNLOAD_X,
    SERIES
};

static struct series s[SERIES] = {
    [START] = {"process-start", "ms"},       [ECHO] = {"echo", "ms"},
    [SHELL] = {"shell-alone", "ms"},         [LIST] = {"list-dir", "ms"},
    [HEALTHY] = {"healthy", "ms"},           [STDOUT] = {"stdout", "MB/s"},
    [UPLOAD] = {"upload", "MB/s"},           [DOWNLOAD] = {"download", "MB/s"},
    [RSS_IDLE] = {"rss-idle", "MiB"},        [RSS_BUSY] = {"rss-busy", "MiB"},
    [LOST_P] = {"lost-processes", "count"},  [LOST_E] = {"lost-events", "count"},
    [STDOUT_X] = {"stdout-vs-raw", "x"},     [UPLOAD_X] = {"upload-vs-raw", "x"},
    [DOWNLOAD_X] = {"download-vs-raw", "x"},
};

static struct target envd, raw;
static int envd_pid;
static long rounds = 100, limit_s = LIMIT_S;
static bool as_json;
static const char *name = "guest-alone", *only = "", *phase = "starting";
static pthread_mutex_t results = PTHREAD_MUTEX_INITIALIZER;
static sigset_t ending;

static void add(int metric, double v)
{
    pthread_mutex_lock(&results);
    series_add(&s[metric], v);
    pthread_mutex_unlock(&results);
}

static double last(int metric)
{
    return s[metric].v[s[metric].n - 1];
}

/* A share of the rounds; at least one. */
static int times(int percent)
{
    long n = rounds * percent / 100;
    return n < 1 ? 1 : (int)n;
}

/* What was measured until now, so that a slow machine or a failure costs the rest only. */
static void partial_print(void)
{
    pthread_mutex_lock(&results); /* for good: nothing is added any more, and nobody else prints */
    fprintf(stderr, "ended in \"%s\": what follows it is left out\n", phase);
    plain_end();
    report_print(name, s, SERIES, as_json);
    fflush(stdout);
    _exit(1);
}

/* Told to end, or out of time. */
static void *end_early(void *arg)
{
    struct timespec t = {.tv_sec = limit_s};
    if (sigtimedwait(&ending, NULL, &t) < 0)
        fprintf(stderr, "not ready after %ld s\n", limit_s);
    partial_print();
    return NULL;
}

/* A child that measures for us: signals are its own again. */
static pid_t helper_fork(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        sigprocmask(SIG_UNBLOCK, &ending, NULL);
        client_on_die = NULL;
    }
    return pid;
}
static const char *envd_program;
static const char *const login_echo[] = {"/bin/bash", "-l", "-c", "echo hi", NULL};

static double mb_per_s(double bytes, double ms)
{
    return bytes / 1e6 / (ms / 1e3);
}

/* Resident memory of envd in MiB: from /proc here, or asked of a process in the guest. */
static double rss_mib(int fd)
{
    char text[256] = "", path[64];
    if (envd_pid) {
        snprintf(path, sizeof(path), "/proc/%d/status", envd_pid);
        FILE *f = fopen(path, "re");
        while (f && fgets(text, sizeof(text), f) && strncmp(text, "VmRSS:", 6))
            continue;
        if (f)
            fclose(f);
        return atof(text + 6) / 1024;
    }
    const char *const ask[] = {"/bin/sh", "-c",
                               "exit $(( $(awk '/VmRSS/ {print $2}' /proc/$(pidof cube-envd)/status) / 64 ))",
                               NULL};
    char msg[1024];
    const char *body, *code;
    size_t n = start_body(msg, sizeof(msg), ask), len;
    call(fd, "POST", "/process.Process/Start", "application/connect+json", msg, n, &body, &len);
    code = memmem(body, len, "\"exitCode\":", 11);
    return code ? atof(code + 11) / 16 : 0; /* exit statuses are small: sixteenths of a MiB */
}

static void healthy(int kept)
{
    struct target t = {.port = 0};
    for (int i = 0; i < times(20) && envd_program; i++) {
        char port[16];
        t.port = 20000 + (getpid() + i * 7) % 10000;
        snprintf(port, sizeof(port), "%d", t.port);
        double t0 = now_ms();
        pid_t pid = helper_fork();
        if (pid == 0) {
            execl(envd_program, envd_program, "--port", port, (char *)NULL);
            _exit(127);
        }
        const char *body;
        size_t len;
        int fd = -1;
        while ((fd = dial_try(&t)) < 0 && now_ms() - t0 < 2000)
            usleep(50);
        if (fd >= 0 && call(fd, "GET", "/health", "text/plain", NULL, 0, &body, &len) == 204)
            add(HEALTHY, now_ms() - t0);
        close(fd);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

static void starts(int fd)
{
    const char *const yes[] = {"/bin/true", NULL};
    for (int i = 0; i < 20 + times(300); i++) {
        double t = now_ms();
        if (!run(fd, yes, NULL))
            die("/bin/true failed");
        if (i >= 20)
            add(START, now_ms() - t);
    }
}

/* The shell alone: on this host by fork and exec; in the guest by a small loop there, so that both see the
 * same machine. */
static void shell_alone_here(void)
{
    int p[2];
    char c[16];
    if (pipe(p) < 0)
        die("pipe");
    double t = now_ms();
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(p[1], 1);
        close(p[0]);
        execl("/bin/bash", "/bin/bash", "-l", "-c", "echo hi", (char *)NULL);
        _exit(127);
    }
    close(p[1]);
    while (read(p[0], c, sizeof(c)) > 0)
        continue;
    waitpid(pid, NULL, 0);
    add(SHELL, now_ms() - t);
    close(p[0]);
}

static void shell_alone_guest(int fd)
{
    const char *const loop[] = {"/bin/sh", "-c",
                                "a=$(date +%s%N); for i in 1 2 3 4 5 6 7 8 9 10; do x=$(/bin/bash -l -c "
                                "'echo hi'); done; b=$(date +%s%N); exit $(( (b - a) / 1000000 / 5 ))",
                                NULL};
    char msg[1024];
    const char *body, *code;
    size_t n = start_body(msg, sizeof(msg), loop), len;
    call(fd, "POST", "/process.Process/Start", "application/connect+json", msg, n, &body, &len);
    code = memmem(body, len, "\"exitCode\":", 11);
    if (code)
        add(SHELL, atof(code + 11) / 2); /* ten shells, in halves of a millisecond each */
}

static void echoes(int fd)
{
    for (int i = 0; i < times(60); i++) {
        double t = now_ms();
        if (!run(fd, login_echo, "aGkK"))
            die("the shell failed");
        add(ECHO, now_ms() - t);
        if (envd_pid)
            shell_alone_here();
        else if (i % 10 == 0)
            shell_alone_guest(fd);
    }
}

static void lists(int fd)
{
    const char *const make[] = {
        "/bin/sh", "-c",
        "mkdir -p /tmp/cube-bench-l && cd /tmp/cube-bench-l && for i in $(seq 1000); do : > f$i; done", NULL};
    const char *const drop[] = {"/bin/sh", "-c", "rm -rf /tmp/cube-bench-l", NULL};
    static const char req[] = "{\"path\":\"/tmp/cube-bench-l\"}";
    const char *body;
    size_t len;
    run(fd, make, NULL);
    for (int i = 0; i < times(40); i++) {
        double t = now_ms();
        if (call(fd, "POST", "/filesystem.Filesystem/ListDir", "application/json", req, sizeof(req) - 1,
                 &body, &len) != 200 ||
            len < 100000)
            die("ListDir failed");
        add(LIST, now_ms() - t);
    }
    run(fd, drop, NULL);
}

static double raw_rate(char op, uint64_t n)
{
    char reply, *block = calloc(1, 1 << 20);
    static int kept = -1; /* on a host the connection is kept, as envd's is: its windows have grown */
    int fd = raw.in_sock ? dial(&raw) : kept >= 0 ? kept : (kept = dial(&raw));
    double t = now_ms();
    send(fd, &op, 1, 0);
    send(fd, &n, sizeof(n), 0);
    for (uint64_t left = n; left;) {
        size_t want = left < (1 << 20) ? left : 1 << 20;
        ssize_t k = op == 'S' ? recv(fd, block, want, 0) : send(fd, block, want, 0);
        if (k <= 0)
            die("raw copy: %s", strerror(errno));
        left -= (uint64_t)k;
    }
    if (op == 'R' && recv(fd, &reply, 1, 0) != 1)
        die("raw copy: %s", strerror(errno));
    t = now_ms() - t;
    if (raw.in_sock)
        close(fd);
    free(block);
    return mb_per_s((double)n, t);
}

static void files(int fd)
{
    static const char path[] = "/files?path=/tmp/cube-bench-f";
    char *data = malloc(FILE_SIZE);
    const char *body;
    size_t len;
    uint64_t got;
    for (size_t i = 0; i < FILE_SIZE; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    for (int i = 0; i < times(40); i++) {
        double t = now_ms();
        if (call(fd, "POST", path, "application/octet-stream", data, FILE_SIZE, &body, &len) != 200)
            die("upload failed: %s", body);
        add(UPLOAD, mb_per_s(FILE_SIZE, now_ms() - t));
        t = now_ms();
        if (call_count(fd, "GET", path, "text/plain", NULL, 0, &got) != 200 || got != FILE_SIZE)
            die("download failed");
        add(DOWNLOAD, mb_per_s(FILE_SIZE, now_ms() - t));
        if (raw.in_sock || raw.port) { /* in the same breath, so that both see the same machine */
            add(UPLOAD_X, last(UPLOAD) / raw_rate('R', FILE_SIZE));
            add(DOWNLOAD_X, last(DOWNLOAD) / raw_rate('S', FILE_SIZE));
        }
    }
    free(data);
}

static void outputs(int fd)
{
    char size[64], msg[512];
    snprintf(size, sizeof(size), "dd if=/dev/zero bs=131072 count=%d 2>/dev/null", STDOUT_SIZE / 131072);
    const char *const argv[] = {"/bin/sh", "-c", size, NULL};
    size_t n = start_body(msg, sizeof(msg), argv);
    uint64_t got;
    for (int i = 0; i < times(4); i++) {
        double t = now_ms();
        if (call_count(fd, "POST", "/process.Process/Start", "application/connect+json", msg, n, &got) !=
                200 ||
            got < STDOUT_SIZE / 3 * 4)
            die("stdout is short: %llu bytes", (unsigned long long)got);
        add(STDOUT, mb_per_s(STDOUT_SIZE, now_ms() - t));
        if (raw.in_sock)
            add(STDOUT_X, last(STDOUT) / raw_rate('S', STDOUT_SIZE));
    }
}

static void busy(int fd)
{
    const char *const argv[] = {"/bin/sh", "-c", "head -c 20971520 /dev/zero", NULL};
    char msg[512], head[256], *drop = malloc(1 << 16);
    size_t n = start_body(msg, sizeof(msg), argv);
    int fds[BUSY], open_ones = BUSY;
    int h = snprintf(head, sizeof(head),
                     "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
                     "application/connect+json\r\nContent-Length: %zu\r\n\r\n",
                     n);
    struct pollfd p[BUSY];
    double worst = 0;
    add(RSS_IDLE, rss_mib(fd));
    for (int i = 0; i < BUSY; i++) {
        fds[i] = dial(&envd);
        send(fds[i], head, (size_t)h, 0);
        send(fds[i], msg, n, 0);
        p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    for (long turns = 0; open_ones; turns++) {
        poll(p, BUSY, -1);
        for (int i = 0; i < BUSY; i++)
            if (p[i].fd >= 0 && p[i].revents && recv(p[i].fd, drop, 1 << 16, MSG_DONTWAIT) <= 0 &&
                errno != EAGAIN) {
                close(p[i].fd);
                p[i].fd = -1;
                open_ones--;
            }
        if (turns % (envd_pid ? 50 : 2000) == 10 && open_ones > BUSY / 2) {
            double r = rss_mib(fd);
            worst = r > worst ? r : worst;
        }
    }
    add(RSS_BUSY, worst);
    free(drop);
}

/* 1,000 processes by 20 clients; each checks its output. */
static void many(int kept)
{
    int lost = 0, status;
    pid_t clients[20];
    for (int c = 0; c < 20; c++) {
        if ((clients[c] = helper_fork()) != 0)
            continue;
        int fd = dial(&envd), bad = 0;
        for (int i = 0; i < 50; i++) {
            const char *const argv[] = {"/bin/echo", "hi", NULL};
            bad += !run(fd, argv, "aGkK");
        }
        _exit(bad);
    }
    for (int c = 0; c < 20; c++) /* by name: the server of the plain copies is a child, too, and never ends */
        lost += waitpid(clients[c], &status, 0) == clients[c] && WIFEXITED(status) ? WEXITSTATUS(status) : 50;
    add(LOST_P, lost);
}

static void events(int fd)
{
    static const char json[] = "{\"path\":\"/tmp/cube-bench-w\"}";
    const size_t json_len = sizeof(json) - 1;
    const char *const prepare[] = {"/bin/sh", "-c", "mkdir -p /tmp/cube-bench-w", NULL};
    const char *const make[] = {
        "/bin/sh", "-c", "cd /tmp/cube-bench-w && i=0; while [ $i -lt 10000 ]; do : > f$i; i=$((i+1)); done",
        NULL};
    const char *const drop[] = {"/bin/sh", "-c", "rm -rf /tmp/cube-bench-w", NULL};
    char head[256], *text = malloc(8 << 20);
    size_t n = 0, counted = 0;
    long seen = 0;
    run(fd, prepare, NULL);
    int w = dial(&envd);
    int h = snprintf(head, sizeof(head),
                     "POST /filesystem.Filesystem/WatchDir HTTP/1.1\r\nHost: x\r\nContent-Type: "
                     "application/connect+json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     json_len + 5);
    memset(head + h, 0, 4);
    head[h + 4] = (char)json_len;
    memcpy(head + h + 5, json, json_len);
    send(w, head, (size_t)h + 5 + json_len, 0);
    while (n < 4096 && !memmem(text, n, "\"start\"", 7)) { /* then the watch is on */
        ssize_t k = recv(w, text + n, 4096 - n, 0);
        if (k <= 0)
            die("WatchDir failed");
        n += (size_t)k;
    }
    pid_t pid = helper_fork();
    if (pid == 0) {
        int own = dial(&envd);
        _exit(!run(own, make, NULL));
    }
    double until = now_ms() + EVENTS_MS;
    bool overflow = false;
    while (seen < EVENTS && !overflow && now_ms() < until && n < (8u << 20) - 65536) {
        struct pollfd p = {.fd = w, .events = POLLIN};
        if (poll(&p, 1, 1000) <= 0)
            continue;
        ssize_t k = recv(w, text + n, 65536, 0);
        if (k <= 0)
            break;
        n += (size_t)k;
        for (char *at; (at = memmem(text + counted, n - counted, "EVENT_TYPE_CREATE", 17));
             counted = (size_t)(at - text) + 17)
            seen++;
        counted = n > 16 && counted < n - 16 ? n - 16 : counted;
        size_t tail = n < 256 ? n : 256; /* an overflow is the last thing that a watcher says */
        overflow = memmem(text + n - tail, tail, "resource_exhausted", 18) != NULL;
    }
    add(LOST_E, overflow ? 0 : EVENTS - (double)seen);
    close(w);
    waitpid(pid, NULL, 0); /* it ends by itself */
    run(fd, drop, NULL);
    free(text);
}

static void phase_run(const char *what, void (*fn)(int), int fd)
{
    if (!strstr(what, only))
        return;
    phase = what;
    fn(fd);
}

static void parse(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", 0, NULL, 'j'}, {"name", 1, NULL, 'n'},  {"port", 1, NULL, 'p'}, {"in", 1, NULL, 'i'},
        {"raw", 1, NULL, 'r'},  {"pid", 1, NULL, 'P'},   {"envd", 1, NULL, 'e'}, {"rounds", 1, NULL, 'R'},
        {"only", 1, NULL, 'o'}, {"limit", 1, NULL, 'l'}, {NULL, 0, NULL, 0}};
    for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (o) {
        case 'j':
            as_json = true;
            break;
        case 'n':
            name = optarg;
            break;
        case 'p':
            envd.port = atoi(optarg);
            break;
        case 'i':
            envd.in_sock = optarg;
            break;
        case 'r':
            raw.in_sock = optarg;
            break;
        case 'P':
            envd_pid = atoi(optarg);
            break;
        case 'e':
            envd_program = optarg;
            break;
        case 'R':
            rounds = atol(optarg);
            break;
        case 'l':
            limit_s = atol(optarg);
            break;
        case 'o':
            only = optarg;
            break;
        default:
            die("usage: cube-bench-guest --name NAME (--port N --pid PID --envd FILE | --in SOCK --raw SOCK) "
                "[--json]\n"
                "  --rounds N  repetitions (default 100: 300 starts, 60 shells, 40 listings, 40 files)\n"
                "  --only P    only the phases whose name contains P: healthy, start, busy, echo, list, "
                "files, stdout, many, events\n"
                "  --limit S   seconds after which the results until then are printed (default 85)");
        }
    }
}

int main(int argc, char **argv)
{
    pthread_t t;
    parse(argc, argv);
    report_start();
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    if (!raw.in_sock)
        raw.port = plain_start();
    if (pthread_create(&t, NULL, end_early, NULL) != 0)
        die("a thread cannot be started");
    client_on_die = partial_print;
    int fd = dial(&envd);
    phase_run("healthy", healthy, fd);
    phase_run("start", starts, fd);
    phase_run("busy", busy, fd);
    phase_run("echo", echoes, fd);
    phase_run("list", lists, fd);
    phase_run("files", files, fd);
    phase_run("stdout", outputs, fd);
    phase_run("many", many, fd);
    phase_run("events", events, fd);
    plain_end();
    pthread_mutex_lock(&results);
    report_print(name, s, SERIES, as_json);
    return 0;
}
