/* The guest's network over a TAP, in a network namespace of the test's own: round trips, bulk both ways with
 * all offloads, after a restore, and under a rate limit. */
#include "tests/vmm/harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int tap_make(void)
{
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    struct sockaddr_in *a = (struct sockaddr_in *)&r.ifr_addr;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC),
        s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        printf("skipped: no /dev/net/tun\n");
        exit(77);
    }
    strcpy(r.ifr_name, "vtap");
    CHECK(ioctl(fd, TUNSETIFF, &r) == 0);
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("169.254.0.22")};
    CHECK(ioctl(s, SIOCSIFADDR, &r) == 0);
    a->sin_addr.s_addr = inet_addr("255.255.255.248");
    CHECK(ioctl(s, SIOCSIFNETMASK, &r) == 0);
    r.ifr_flags = IFF_UP;
    CHECK(ioctl(s, SIOCSIFFLAGS, &r) == 0);
    close(s);
    return fd;
}

static int tcp_dial(void)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(5000), .sin_addr.s_addr = inet_addr("169.254.0.21")};
    struct timeval limit = {20, 0};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (int i = 0; i < 3000; i++) {
        if (connect(s, (void *)&a, sizeof a) == 0)
            return s;
        usleep(20000);
    }
    FAIL("no TCP connection to the guest");
}

struct stream {
    int fd;
    size_t bytes;
};

static void *sender(void *arg)
{
    struct stream *s = arg;
    static uint8_t buf[1 << 16];

    for (size_t done = 0; done < s->bytes;) {
        for (size_t i = 0; i < sizeof buf; i++)
            buf[i] = (uint8_t)((done + i) * 2654435761u >> 13);
        ssize_t n = write(s->fd, buf, sizeof buf < s->bytes - done ? sizeof buf : s->bytes - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return NULL;
}

/* Bytes out and back; every one is compared. */
static double echo(int fd, size_t bytes)
{
    static uint8_t buf[1 << 16];
    struct stream s = {fd, bytes};
    char line[40];
    pthread_t t;

    int n = snprintf(line, sizeof line, "echo %zu\n", bytes);
    CHECK(write(fd, line, (size_t)n) == n);
    int64_t t0 = now_us();
    CHECK(pthread_create(&t, NULL, sender, &s) == 0);
    for (size_t done = 0; done < bytes;) {
        ssize_t r = read(fd, buf, sizeof buf);
        if (r <= 0)
            FAIL("the echo ended after %zu bytes", done);
        for (ssize_t i = 0; i < r; i++)
            if (buf[i] != (uint8_t)((done + (size_t)i) * 2654435761u >> 13))
                FAIL("wrong byte at %zu", done + (size_t)i);
        done += (size_t)r;
    }
    pthread_join(t, NULL);
    return (double)bytes / (double)(now_us() - t0);
}

/* Bytes one way, without looking at them. */
static void bulk(int fd, size_t bytes)
{
    static uint8_t buf[1 << 18];
    char line[40], ok[3];

    int n = snprintf(line, sizeof line, "sink %zu\n", bytes);
    CHECK(write(fd, line, (size_t)n) == n);
    int64_t t0 = now_us();
    for (size_t done = 0; done < bytes; done += sizeof buf)
        CHECK(write(fd, buf, sizeof buf) == sizeof buf);
    CHECK(read(fd, ok, 3) == 3);
    printf("host to guest: %.0f MB/s\n", (double)bytes / (double)(now_us() - t0));
    n = snprintf(line, sizeof line, "source %zu\n", bytes);
    CHECK(write(fd, line, (size_t)n) == n);
    t0 = now_us();
    for (size_t done = 0; done < bytes;) {
        ssize_t r = read(fd, buf, sizeof buf);
        CHECK(r > 0);
        done += (size_t)r;
    }
    printf("guest to host: %.0f MB/s\n", (double)bytes / (double)(now_us() - t0));
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct guest g;

    if (getuid() != 0 || unshare(CLONE_NEWNET) < 0) {
        printf("skipped: needs root\n");
        return 77;
    }
    harness_start(argc, argv, "net");
    guest_spawn(&g, 256, 1);
    guest_boot_with(&g, "net.layer", tap_make(), "root=/dev/vda rw init=/init");
    int ctl = guest_dial(&g, 0, NULL);
    CHECK(!strcmp(ask(ctl, "net"), "ok"));
    int fd = tcp_dial();
    for (int i = 0; i < 200; i++)
        CHECK(!strcmp(ask(fd, "ping"), "pong"));
    printf("echo: %.0f MB/s\n", echo(fd, 64 << 20));
    bulk(fd, 256 << 20);
    /* Saved with an open TCP connection, restored on another TAP: it goes on. */
    Cube__Vmm__V1__SnapshotDone done;
    OK(guest_snapshot(&g, "net", false, false, &done, &e), e);
    guest_kill(&g);
    close(ctl);
    guest_spawn(&g, 256, 1);
    OK(guest_restore_with(
           &g, &(struct snapshot_files){.state = "net.state", .memory = "net.mem", .layer = "net.layer"},
           tap_make(), &e, NULL),
       e);
    CHECK(!strcmp(ask(fd, "ping"), "pong"));
    printf("echo after a restore: %.0f MB/s\n", echo(fd, 16 << 20));
    int second = tcp_dial();
    CHECK(!strcmp(ask(second, "ping"), "pong"));
    guest_end(&g);
    close(second);
    close(fd);
    printf("net: all good\n");
    return 0;
}
