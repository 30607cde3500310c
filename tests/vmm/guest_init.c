/* A static init for the VMM's tests: serves vsock ports as cube-init, the gateway and envd do, with small
 * commands.
 *
 * Port 1 (and 2 after the port handshake, and 49983): line commands, one answer line each:
 *   ping → pong; echo N → N raw bytes are echoed; uptime; sum PATH → FNV-1a of a file; write PATH MIB SEED;
 * sync; dirty MIB → writes to that much memory of its own; check MIB; drop (frees it); cmdline; rng; reboot;
 * cpus; hash */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/reboot.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1u << 20) /* of malloc, not of a thread's own storage: every thread would touch it */

static uint8_t *block;
static size_t block_len;

static uint64_t fnv(uint64_t h, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

static void all(int fd, const void *p, size_t n)
{
    const char *c = p;
    while (n) {
        ssize_t w = write(fd, c, n);
        if (w <= 0)
            return;
        c += w;
        n -= (size_t)w;
    }
}

static void do_echo(int fd, size_t n)
{
    uint8_t *buf = malloc(65536);
    while (n) {
        ssize_t r = read(fd, buf, n < 65536 ? n : 65536);
        if (r <= 0)
            break;
        all(fd, buf, (size_t)r);
        n -= (size_t)r;
    }
    free(buf);
}

static void do_write(const char *path, size_t mib, unsigned seed, char *out)
{
    uint8_t *buf = malloc(BLOCK);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < mib; i++) {
        for (size_t k = 0; k < BLOCK; k++)
            buf[k] = (uint8_t)(seed = seed * 1103515245u + 12345u, seed >> 16);
        all(fd, buf, BLOCK);
        h = fnv(h, buf, BLOCK);
    }
    fsync(fd);
    close(fd);
    free(buf);
    sprintf(out, "%llx\n", (unsigned long long)h);
}

static void do_sum(const char *path, char *out)
{
    uint8_t *buf = malloc(BLOCK);
    int fd = open(path, O_RDONLY);
    uint64_t h = 0xcbf29ce484222325ull;
    ssize_t n;
    if (fd < 0) {
        sprintf(out, "error %d\n", errno);
        return;
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    while ((n = read(fd, buf, BLOCK)) > 0)
        h = fnv(h, buf, (size_t)n);
    close(fd);
    free(buf);
    sprintf(out, "%llx\n", (unsigned long long)h);
}

static void do_dirty(size_t mib, char *out)
{
    if (block)
        munmap(block, block_len);
    block_len = mib << 20;
    block = mmap(NULL, block_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < block_len; i += 8)
        *(uint64_t *)(block + i) = i * 0x9e3779b97f4a7c15ull;
    sprintf(out, "ok\n");
}

static void do_check(char *out)
{
    for (size_t i = 0; i < block_len; i += 8)
        if (*(uint64_t *)(block + i) != i * 0x9e3779b97f4a7c15ull) {
            sprintf(out, "bad at %zu\n", i);
            return;
        }
    sprintf(out, "good %zu\n", block_len >> 20);
}

static void *tcp_listener(void *arg);

/* eth0 as internal.md §8 has it, and the same commands on TCP port 5000. */
static void do_net(char *out)
{
    struct ifreq r = {0};
    struct sockaddr_in *a = (struct sockaddr_in *)&r.ifr_addr;
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    pthread_t t;

    strcpy(r.ifr_name, "lo");
    r.ifr_flags = IFF_UP;
    ioctl(s, SIOCSIFFLAGS, &r);
    strcpy(r.ifr_name, "eth0");
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("169.254.0.21")};
    int rc = ioctl(s, SIOCSIFADDR, &r);
    a->sin_addr.s_addr = inet_addr("255.255.255.248");
    rc |= ioctl(s, SIOCSIFNETMASK, &r);
    r.ifr_flags = IFF_UP;
    rc |= ioctl(s, SIOCSIFFLAGS, &r);
    close(s);
    sprintf(out, rc ? "error %d\n" : "ok\n", errno);
    if (!rc)
        pthread_create(&t, NULL, tcp_listener, NULL);
}

static void command(int fd, char *line)
{
    char out[4400] = "?\n", path[256];
    size_t n;
    unsigned seed;

    if (!strcmp(line, "ping"))
        strcpy(out, "pong\n");
    else if (sscanf(line, "echo %zu", &n) == 1) {
        do_echo(fd, n);
        return;
    } else if (sscanf(line, "sink %zu", &n) == 1) {
        uint8_t *buf = malloc(BLOCK);
        ssize_t r;
        while (n && (r = read(fd, buf, n < BLOCK ? n : BLOCK)) > 0)
            n -= (size_t)r;
        free(buf);
        strcpy(out, "ok\n");
    } else if (sscanf(line, "source %zu", &n) == 1) {
        static uint8_t zeros[65536];
        while (n) {
            size_t part = n < sizeof zeros ? n : sizeof zeros;
            all(fd, zeros, part);
            n -= part;
        }
        return;
    } else if (sscanf(line, "write %255s %zu %u", path, &n, &seed) == 3)
        do_write(path, n, seed, out);
    else if (sscanf(line, "sum %255s", path) == 1)
        do_sum(path, out);
    else if (sscanf(line, "dirty %zu", &n) == 1)
        do_dirty(n, out);
    else if (!strcmp(line, "check"))
        do_check(out);
    else if (!strcmp(line, "drop")) {
        munmap(block, block_len);
        block = NULL;
        block_len = 0;
        strcpy(out, "ok\n");
    } else if (!strcmp(line, "uptime")) {
        struct timespec t;
        clock_gettime(CLOCK_BOOTTIME, &t);
        sprintf(out, "%lld.%09ld\n", (long long)t.tv_sec, t.tv_nsec);
    } else if (!strcmp(line, "rng")) {
        uint64_t v = 0;
        int r = open("/dev/hwrng", O_RDONLY);
        if (r < 0 || read(r, &v, 8) != 8)
            v = 0;
        close(r);
        sprintf(out, "%016llx\n", (unsigned long long)v);
    } else if (sscanf(line, "head %255s", path) == 1) { /* the first line of a file */
        int r = open(path, O_RDONLY);
        ssize_t got = r < 0 ? -1 : read(r, out, 4000);
        out[got < 0 ? 0 : got] = 0;
        out[strcspn(out, "\n")] = 0;
        strcat(out, "\n");
        close(r);
    } else if (!strcmp(line, "cpus"))
        sprintf(out, "%ld\n", sysconf(_SC_NPROCESSORS_ONLN));
    else if (!strcmp(line, "net")) {
        do_net(out);
    } else if (!strcmp(line, "reboot")) {
        sync();
        reboot(LINUX_REBOOT_CMD_RESTART);
    }
    all(fd, out, strlen(out));
}

static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg & 0xffff, gateway = (int)((intptr_t)arg >> 16);
    char line[512];
    size_t n = 0;

    if (gateway) {
        uint8_t port[2];
        if (read(fd, port, 1) != 1 || read(fd, port + 1, 1) != 1)
            goto out;
        uint8_t status = port[0] == 0x1f && port[1] == 0x90 ? 0 : 3; /* only 8080 is open */
        all(fd, &status, 1);
        if (status)
            goto out;
    }
    for (;;) {
        char c;
        ssize_t r = read(fd, &c, 1);
        if (r <= 0)
            break;
        if (c == '\n') {
            line[n] = 0;
            n = 0;
            command(fd, line);
        } else if (n < sizeof line - 1)
            line[n++] = c;
    }
out:
    close(fd);
    return NULL;
}

static void *tcp_listener(void *arg)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(5000)};
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s < 0 || bind(s, (void *)&a, sizeof a) || listen(s, 64))
        printf("tcp: %s\n", strerror(errno));
    for (;;) {
        pthread_t t;
        int fd = accept(s, NULL, NULL);
        if (fd < 0)
            continue;
        pthread_create(&t, NULL, serve, (void *)(intptr_t)fd);
        pthread_detach(t);
    }
    return NULL;
}

static void *listener(void *arg)
{
    unsigned port = (unsigned)(uintptr_t)arg;
    struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
    int s = socket(AF_VSOCK, SOCK_STREAM, 0);

    if (s < 0 || bind(s, (void *)&a, sizeof a) || listen(s, 64)) {
        printf("vsock port %u: %s\n", port, strerror(errno));
        return NULL;
    }
    for (;;) {
        pthread_t t;
        int fd = accept(s, NULL, NULL);
        if (fd < 0)
            continue;
        pthread_create(&t, NULL, serve, (void *)(intptr_t)(fd | (port == 2) << 16));
        pthread_detach(t);
    }
}

int main(void)
{
    pthread_t t;

    mount("proc", "/proc", "proc", 0, NULL);
    mount("sys", "/sys", "sysfs", 0, NULL);
    mount("dev", "/dev", "devtmpfs", 0, NULL);
    printf("test init: up\n");
    fflush(stdout);
    pthread_create(&t, NULL, listener, (void *)2);
    pthread_create(&t, NULL, listener, (void *)49983);
    listener((void *)1);
    for (;;)
        pause();
}
