/* Property test: from_cube's decision about a destination equals a plain C model's, for random policies and
 * random addresses. The program runs in the kernel through BPF_PROG_TEST_RUN, with the loopback of a fresh
 * network namespace as its TAP. */
#include "node/net/vs.h"
#include "node/net/vs_abi.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOT 7
#define LO 1
#define ENTRIES 24
#define ACT_SHOT 2

static uint64_t seed = 0x9e3779b97f4a7c15ull;

static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}

static uint32_t mask_of(uint8_t bits)
{
    return bits ? ~0u << (32 - bits) : 0;
}

static bool matches(const struct vs_cidr *c, size_t n, uint32_t ip)
{
    for (size_t i = 0; i < n; i++)
        if (((ntohl(c[i].ip) ^ ip) & mask_of(c[i].bits)) == 0)
            return true;
    return false;
}

/* RFC 6890's list, written down a second time on purpose. */
static bool model_range(uint32_t ip)
{
    static const struct {
        uint32_t net;
        uint8_t bits;
    } never[] = {{0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},  {0xa9fe0000, 16},
                 {0xac100000, 12}, {0xc0000000, 24}, {0xc0000200, 24}, {0xc0586300, 24}, {0xc0a80000, 16},
                 {0xc6120000, 15}, {0xc6336400, 24}, {0xcb007100, 24}, {0xe0000000, 4},  {0xf0000000, 4}};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (((never[i].net ^ ip) & mask_of(never[i].bits)) == 0)
            return true;
    return ip == 0x01010101; /* the uplink's own */
}

static struct vs_cidr random_cidr(void)
{
    uint8_t bits = (uint8_t)(rnd() % 33);
    uint32_t ip = (rnd() & 3 ? (rnd() & 0x03030303) | 0x08080000 : rnd()) & mask_of(bits);
    return (struct vs_cidr){.ip = htonl(ip), .bits = bits};
}

static uint16_t checksum(const uint8_t *p, size_t n)
{
    uint32_t s = 0;
    for (size_t i = 0; i + 1 < n; i += 2)
        s += (uint32_t)p[i] << 8 | p[i + 1];
    while (s >> 16)
        s = (s & 0xffff) + (s >> 16);
    return htons((uint16_t)~s);
}

/* A UDP packet of the guest to `ip`. */
static void make_packet(uint8_t p[64], uint32_t ip, uint16_t port)
{
    static const uint8_t gateway[6] = VS_GATEWAY_MAC, guest[6] = VS_GUEST_MAC;
    memset(p, 0, 64);
    memcpy(p, gateway, 6);
    memcpy(p + 6, guest, 6);
    p[12] = 8;
    p[14] = 0x45;
    p[17] = 50;
    p[22] = 64;
    p[23] = 17;
    uint32_t src = htonl(VS_GUEST_IP), dst = htonl(ip);
    memcpy(p + 26, &src, 4);
    memcpy(p + 30, &dst, 4);
    uint16_t sum = checksum(p + 14, 20);
    memcpy(p + 24, &sum, 2);
    p[34] = (uint8_t)(port >> 8);
    p[35] = (uint8_t)port;
    p[37] = 9;
    p[39] = 30;
}

static int decide(int prog, uint32_t ip)
{
    uint8_t packet[64];
    make_packet(packet, ip, 4242);
    struct __sk_buff ctx = {.ifindex = LO, .ingress_ifindex = LO};
    LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = packet, .data_size_in = sizeof packet, .ctx_in = &ctx,
                .ctx_size_in = sizeof ctx, .repeat = 1);
    if (bpf_prog_test_run_opts(prog, &opts) < 0)
        return -1;
    return (int)opts.retval;
}

static int setup(char *dir, struct vs **v, struct err *e)
{
    char bpf[64], pins[72];
    snprintf(bpf, sizeof bpf, "%s/bpf", dir);
    snprintf(pins, sizeof pins, "%s/vs", bpf);
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mkdir(bpf, 0700) < 0 || mount("bpf", bpf, "bpf", 0, NULL) < 0)
        return err_sys(e, ERR_INTERNAL, "making the test's namespaces");
    if (system("ip link set lo up && ip addr add 1.1.1.1/32 dev lo") != 0)
        return err_set(e, ERR_INTERNAL, "setting up lo");
    return vs_open(v, &(struct vs_options){.pin_dir = pins, .uplink = "lo", .uplink_ip = htonl(0x01010101)},
                   e);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 300, checked = 0, wrong = 0;
    char dir[] = "/tmp/vs-policy-XXXXXX";
    struct vs *v;
    struct err e = {0};
    if (!mkdtemp(dir) || setup(dir, &v, &e) < 0 || vs_attach(v, LO, SLOT, &(struct vs_limits){0}, &e) < 0) {
        printf("FAIL net: property test of policy: %s\n", e.msg);
        return 0;
    }
    int prog = vs_program_fd(v, "from_cube");
    for (int r = 0; r < rounds; r++) {
        struct vs_cidr allow[ENTRIES], deny[ENTRIES];
        size_t na = rnd() % ENTRIES, nd = rnd() % ENTRIES;
        for (size_t i = 0; i < na; i++)
            allow[i] = random_cidr();
        for (size_t i = 0; i < nd; i++)
            deny[i] = random_cidr();
        if (vs_set_policy(v, SLOT, allow, na, deny, nd, 0, &e) < 0)
            break;
        for (int k = 0; k < 200; k++) {
            uint32_t ip = rnd() & 3 ? (rnd() & 0x03030303) | 0x08080000 : rnd();
            bool want = !model_range(ip) && (matches(allow, na, ip) || !matches(deny, nd, ip));
            int got = decide(prog, ip);
            checked++;
            if (got < 0 || want != (got != ACT_SHOT)) {
                if (wrong++ < 5)
                    printf("round %d, address %08x: model %s, program %d\n", r, ip, want ? "passes" : "drops",
                           got);
            }
        }
        vs_sweep(v, NULL, NULL, NULL);
    }
    vs_detach(v, LO, SLOT, NULL);
    vs_close(v);
    char pins[80];
    snprintf(pins, sizeof pins, "%s/bpf/vs", dir);
    if (vs_remove(pins, &e) < 0)
        wrong++;
    char path[80];
    snprintf(path, sizeof path, "%s/bpf", dir);
    umount(path);
    rmdir(path);
    rmdir(dir);
    if (wrong || e.code || checked != rounds * 200)
        printf("FAIL net: property test of policy: %d of %d decisions differ from the model; %s\n", wrong,
               checked, e.msg);
    else
        printf("PASS net: %d random decisions equal the model's\n", checked);
    return 0;
}
