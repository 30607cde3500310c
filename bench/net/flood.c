/* The two ends of `bench net`'s packet rate: a guest's network device as the VMM drives it (writes to a TAP
 * with a vnet header), and a sink in the world that costs next to nothing. So what is measured is the way
 * between them, and neither a sender's nor a receiver's sockets. flood sink IF counts and drops everything
 * that arrives on IF flood send TAP MAC ADDRESS FLOWS SECONDS UDP datagrams of 64 bytes to 93.184.216.34;
 * prints how many */
#include "lib/base/clock.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WORLD "93.184.216.34"
#define PAYLOAD 64
#define FRAME (14 + 20 + 8 + PAYLOAD)
#define FLOWS_MAX 1024

static int fail(const char *what)
{
    fprintf(stderr, "flood: %s: %s\n", what, strerror(errno));
    return 1;
}

/* r0 = TC_ACT_SHOT; exit */
static int sink(const char *name)
{
    static const struct bpf_insn program[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 2}, {.code = BPF_JMP | BPF_EXIT}};
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)if_nametoindex(name), .attach_point = BPF_TC_INGRESS);
    int fd = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, "sink", "GPL", program, 2, NULL);
    if (fd < 0)
        return fail("loading the sink");
    LIBBPF_OPTS(bpf_tc_opts, opts, .prog_fd = fd);
    bpf_tc_hook_create(&hook);
    errno = -bpf_tc_attach(&hook, &opts);
    return errno ? fail(name) : 0;
}

static uint16_t checksum(const uint8_t *p, size_t n)
{
    uint32_t s = 0;
    for (size_t i = 0; i < n; i += 2)
        s += (uint32_t)p[i] << 8 | p[i + 1];
    while (s >> 16)
        s = (s & 0xffff) + (s >> 16);
    return htons((uint16_t)~s);
}

/* One frame with its vnet header. As a guest's network stack does, it leaves the transport's checksum to be
 * completed: only the pseudo header's sum is there. */
static void make_frame(uint8_t *at, const uint8_t mac[6], uint32_t source, uint16_t flow)
{
    static const uint8_t guest[6] = {0x02, 0xcb, 0, 0, 0, 1};
    static const uint8_t head[] = {8, 0, 0x45, 0, 0, 20 + 8 + PAYLOAD, 0, 0, 0, 0, 64, 17};
    uint8_t *p = at + sizeof(struct virtio_net_hdr);
    struct virtio_net_hdr vnet = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = 34, .csum_offset = 6};
    struct in_addr world;
    memcpy(at, &vnet, sizeof vnet);
    inet_pton(AF_INET, WORLD, &world);
    memcpy(p, mac, 6);
    memcpy(p + 6, guest, 6);
    memcpy(p + 12, head, sizeof head);
    memcpy(p + 26, &source, 4);
    memcpy(p + 30, &world, 4);
    uint16_t sum = checksum(p + 14, 20),
             ports[4] = {htons((uint16_t)(20000 + flow)), htons(9), htons(8 + PAYLOAD), 0};
    memcpy(p + 24, &sum, 2);
    memcpy(p + 34, ports, 8);
    uint8_t pseudo[12];
    memcpy(pseudo, p + 26, 8);
    memcpy(pseudo + 8, (uint8_t[]){0, 17, 0, 8 + PAYLOAD}, 4);
    uint16_t partial = (uint16_t)~checksum(pseudo, sizeof pseudo);
    memcpy(p + 40, &partial, 2);
}

static int flood(const char *tap, const char *mac_text, const char *address, unsigned flows, double seconds)
{
    static uint8_t frames[FLOWS_MAX][sizeof(struct virtio_net_hdr) + FRAME];
    uint8_t mac[6];
    struct in_addr source;
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", tap);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0)
        return fail(tap);
    if (sscanf(mac_text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4],
               &mac[5]) != 6 ||
        inet_pton(AF_INET, address, &source) != 1 || flows == 0 || flows > FLOWS_MAX)
        return fail("arguments");
    for (unsigned i = 0; i < flows; i++)
        make_frame(frames[i], mac, source.s_addr, (uint16_t)i);
    uint64_t sent = 0;
    for (int64_t end = clock_mono_us() + (int64_t)(seconds * 1e6); clock_mono_us() < end;)
        for (unsigned i = 0; i < 256; i++, sent++)
            if (write(fd, frames[sent % flows], sizeof *frames) < 0)
                return fail("writing to the TAP");
    printf("%llu\n", (unsigned long long)sent);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "sink") == 0)
        return sink(argv[2]);
    if (argc == 7 && strcmp(argv[1], "send") == 0)
        return flood(argv[2], argv[3], argv[4], (unsigned)atoi(argv[5]), atof(argv[6]));
    fprintf(stderr, "flood sink IF | flood send TAP MAC ADDRESS FLOWS SECONDS\n");
    return 2;
}
