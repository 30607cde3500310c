/* A hostile guest and a hostile world, by structured mutation: packets that are almost right go through
 * from_cube and from_world (BPF_PROG_TEST_RUN), and what comes out is held against a plain model. Invariants
 * that are checked: from_cube never leaves a packet to the node's stack; what leaves has the uplink's
 * address, one of the node's ports, an open destination, whole headers and right checksums, or is a question
 * to the name service under the sandbox's own address, or the answer to an ARP question for the gateway;
 * from_world lets in nothing but packets of sessions that are open, to the guest's address. */
#include "node/net/vs.h"
#include "node/net/vs_abi.h"
#include "node/net/vs_ranges.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOT 7
#define LO 1
#define ACT_SHOT 2
#define ACT_REDIRECT 7
#define UPLINK 0x01010101u
#define SERVICE 0xc6130001u /* 198.19.0.1 */
#define SERVICE_NET 0xc6138000u
#define MAX 192
#define SESSIONS 4096

static uint64_t seed = 0x243f6a8885a308d3ull;

static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}

struct session {
    uint32_t remote;
    uint16_t remote_port, nat_port;
    uint8_t proto;
};
static struct session sessions[SESSIONS];
static unsigned n_sessions;

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static uint32_t sum_of(const uint8_t *p, size_t n)
{
    uint32_t s = 0;
    for (size_t i = 0; i < n; i++)
        s += (uint32_t)p[i] << (i % 2 ? 0 : 8);
    return s;
}

static uint16_t fold(uint32_t s)
{
    while (s >> 16)
        s = (s & 0xffff) + (s >> 16);
    return (uint16_t)s;
}

/* Transport and pseudo header; 0xffff when the checksum is right. */
static uint16_t transport_sum(const uint8_t *ip, size_t len)
{
    uint32_t s = sum_of(ip + 20, len - 20);
    if (ip[9] != 1)
        s += sum_of(ip + 12, 8) + ip[9] + (uint32_t)(len - 20);
    return fold(s);
}

static void mend(uint8_t *ip, size_t len)
{
    put16(ip + 10, 0);
    put16(ip + 10, (uint16_t)~fold(sum_of(ip, 20)));
    size_t at = ip[9] == 6 ? 36 : ip[9] == 17 ? 26 : 22;
    if (at + 2 > len)
        return;
    put16(ip + at, 0);
    uint16_t s = (uint16_t)~transport_sum(ip, len);
    put16(ip + at, ip[9] == 17 && s == 0 ? 0xffff : s);
}

/* A right packet; source and destination in host order. */
static size_t make(uint8_t *p, uint8_t proto, uint32_t src, uint32_t dst, uint16_t sport, uint16_t dport,
                   uint8_t flags)
{
    static const uint8_t gateway[6] = VS_GATEWAY_MAC, guest[6] = VS_GUEST_MAC;
    size_t l4 = proto == 6 ? 20 : 8, data = rnd() % 64, len = 20 + l4 + data;
    memset(p, 0, MAX);
    memcpy(p, gateway, 6);
    memcpy(p + 6, guest, 6);
    put16(p + 12, 0x0800);
    uint8_t *ip = p + 14;
    ip[0] = 0x45;
    put16(ip + 2, (uint16_t)len);
    ip[8] = 64;
    ip[9] = proto;
    put32(ip + 12, src);
    put32(ip + 16, dst);
    for (size_t i = 0; i < data; i++)
        ip[20 + l4 + i] = (uint8_t)rnd();
    if (proto == 1) {
        ip[20] = flags; /* type */
        put16(ip + 24, sport ? sport : dport);
    } else {
        put16(ip + 20, sport);
        put16(ip + 22, dport);
        if (proto == 6) {
            ip[32] = 0x50;
            ip[33] = flags;
        } else {
            put16(ip + 24, (uint16_t)(8 + data));
        }
    }
    mend(ip, len);
    return 14 + len;
}

static size_t make_arp(uint8_t *p)
{
    static const uint8_t guest[6] = VS_GUEST_MAC, head[] = {8, 6, 0, 1, 8, 0, 6, 4, 0, 1};
    memset(p, 0, MAX);
    memset(p, 0xff, 6);
    memcpy(p + 6, guest, 6);
    memcpy(p + 12, head, sizeof head);
    memcpy(p + 22, guest, 6);
    put32(p + 28, VS_GUEST_IP);
    put32(p + 38, VS_GATEWAY_IP);
    return 60;
}

static uint32_t some_address(void)
{
    static const uint32_t odd[] = {VS_GATEWAY_IP,   VS_GUEST_IP, UPLINK,     SERVICE,
                                   SERVICE_NET + 8, 0x0a000001,  0x7f000001, 0xa9fea9fe,
                                   0xffffffff,      0xe0000001,  0x64400001, 0};
    return rnd() % 4 ? 0x08080000 | (rnd() & 0x0303) : odd[rnd() % (sizeof odd / sizeof *odd)];
}

/* A few changes where they hurt; half of the time the checksums are made right again. */
static size_t mutate(uint8_t *p, size_t len)
{
    unsigned changes = rnd() % 4;
    for (unsigned i = 0; i < changes; i++) {
        switch (rnd() % 8) {
        case 0:
            p[rnd() % 14] ^= (uint8_t)(1u << rnd() % 8);
            break;
        case 1:
            p[14 + rnd() % 20] = (uint8_t)rnd();
            break;
        case 2:
            p[34 + rnd() % 20] = (uint8_t)rnd();
            break;
        case 3:
            put16(p + 16, (uint16_t)(rnd() % 2 ? rnd() % 100 : rnd()));
            break;
        case 4:
            put32(p + 26, some_address());
            break;
        case 5:
            put32(p + 30, some_address());
            break;
        case 6:
            put16(p + 20, (uint16_t)rnd());
            break;
        default:
            len = 14 + rnd() % (MAX - 14);
        }
    }
    if (changes && rnd() % 2 && len > 44 && get16(p + 16) >= 28 && get16(p + 16) <= len - 14)
        mend(p + 14, get16(p + 16));
    return len;
}

static int run(int prog, uint8_t *p, size_t len, uint8_t *out, size_t *out_len)
{
    struct __sk_buff ctx = {.ifindex = LO, .ingress_ifindex = LO};
    LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = p, .data_size_in = (uint32_t)len, .data_out = out,
                .data_size_out = MAX + 64, .ctx_in = &ctx, .ctx_size_in = sizeof ctx, .repeat = 1);
    if (bpf_prog_test_run_opts(prog, &opts) < 0)
        return -1;
    *out_len = opts.data_size_out;
    return (int)opts.retval;
}

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return #condition;                                                                               \
    } while (0)

static bool known(uint32_t remote, uint16_t remote_port, uint16_t nat_port, uint8_t proto)
{
    for (unsigned i = 0; i < n_sessions; i++)
        if (sessions[i].remote == remote && sessions[i].remote_port == remote_port &&
            sessions[i].nat_port == nat_port && sessions[i].proto == proto)
            return true;
    return false;
}

/* What from_cube let pass; NULL when it is as it must be. */
static const char *check_out(const uint8_t *in, size_t in_len, const uint8_t *out, size_t len)
{
    static const uint8_t guest[6] = VS_GUEST_MAC;
    const uint8_t *ip = out + 14, *was = in + 14;
    MUST(len == in_len && memcmp(in + 6, guest, 6) == 0);
    if (get16(out + 12) == 0x0806) {
        MUST(get16(in + 12) == 0x0806 && get16(out + 20) == 2 && get32(out + 28) == VS_GATEWAY_IP &&
             get32(out + 38) == VS_GUEST_IP && memcmp(out, guest, 6) == 0);
        return NULL;
    }
    size_t total = get16(ip + 2);
    MUST(get16(out + 12) == 0x0800 && ip[0] == 0x45 && (get16(ip + 6) & 0x3fff) == 0);
    MUST(total >= 28 && total + 14 <= len && (ip[9] == 1 || ip[9] == 6 || ip[9] == 17));
    MUST(get32(was + 12) == VS_GUEST_IP && was[9] == ip[9] && get16(was + 2) == total);
    if (fold(sum_of(was, 20)) == 0xffff)
        MUST(fold(sum_of(ip, 20)) == 0xffff);
    if (transport_sum(was, total) == 0xffff && !(ip[9] == 17 && get16(was + 26) == 0))
        MUST(transport_sum(ip, total) == 0xffff);
    MUST(memcmp(ip + 28, was + 28, total - 28) == 0 || ip[9] == 6);
    if (get32(was + 16) == VS_GATEWAY_IP) {
        MUST(ip[9] != 1 && get16(ip + 22) == 53 && get32(ip + 16) == SERVICE &&
             get32(ip + 12) == SERVICE_NET + SLOT);
        return NULL;
    }
    uint16_t port = get16(ip + (ip[9] == 1 ? 24 : 20)), remote_port = ip[9] == 1 ? 0 : get16(ip + 22);
    MUST(get32(ip + 12) == UPLINK && get32(ip + 16) == get32(was + 16));
    MUST(!vs_range_denied(htonl(get32(ip + 16)), "") && get32(ip + 16) != UPLINK);
    MUST(port >= 40000 && port <= 56383 && remote_port == (ip[9] == 1 ? 0 : get16(was + 22)));
    MUST(ip[9] != 1 || ip[20] == 8);
    if (!known(get32(ip + 16), remote_port, port, ip[9]) && n_sessions < SESSIONS)
        sessions[n_sessions++] = (struct session){get32(ip + 16), remote_port, port, ip[9]};
    return NULL;
}

/* What from_world let in. */
static const char *check_in(const uint8_t *in, const uint8_t *out, size_t len)
{
    static const uint8_t guest[6] = VS_GUEST_MAC, gateway[6] = VS_GATEWAY_MAC;
    const uint8_t *ip = out + 14, *was = in + 14;
    size_t total = get16(ip + 2);
    MUST(memcmp(out, guest, 6) == 0 && memcmp(out + 6, gateway, 6) == 0 && get16(out + 12) == 0x0800);
    MUST(ip[0] == 0x45 && (get16(ip + 6) & 0x3fff) == 0 && total + 14 <= len && total >= 28);
    MUST(get32(was + 16) == UPLINK && get32(ip + 16) == VS_GUEST_IP && get32(ip + 12) == get32(was + 12));
    if (fold(sum_of(was, 20)) == 0xffff)
        MUST(fold(sum_of(ip, 20)) == 0xffff);
    if (ip[9] == 1 && ip[20] != 0) {
        const uint8_t *quoted = was + 28;
        MUST((ip[20] == 3 || ip[20] == 11 || ip[20] == 12) && quoted[0] == 0x45 &&
             get32(quoted + 12) == UPLINK);
        MUST(known(get32(quoted + 16), quoted[9] == 1 ? 0 : get16(quoted + 22),
                   get16(quoted + (quoted[9] == 1 ? 24 : 20)), quoted[9]));
        MUST(get32(ip + 28 + 12) == VS_GUEST_IP);
        return NULL;
    }
    MUST(
        known(get32(was + 12), ip[9] == 1 ? 0 : get16(was + 20), get16(was + (ip[9] == 1 ? 24 : 22)), ip[9]));
    return NULL;
}

static size_t from_guest(uint8_t *p)
{
    static const uint8_t protos[] = {1, 6, 17};
    uint32_t dst = some_address();
    uint8_t proto = protos[rnd() % 3];
    if (rnd() % 16 == 0)
        return make_arp(p);
    return make(p, proto, VS_GUEST_IP, dst, (uint16_t)(1000 + rnd() % 4),
                (uint16_t)(rnd() % 2 ? 53 : 80 + rnd() % 4),
                proto == 1  ? 8
                : rnd() % 4 ? 2
                            : (uint8_t)rnd());
}

static size_t from_outside(uint8_t *p)
{
    uint8_t quoted[MAX];
    struct session s = n_sessions ? sessions[rnd() % n_sessions] : (struct session){0x08080808, 80, 40000, 6};
    if (rnd() % 4 == 0)
        s.nat_port = (uint16_t)(40000 + rnd() % 16384);
    if (rnd() % 3)
        return make(p, s.proto, s.remote, UPLINK, s.proto == 1 ? 0 : s.remote_port, s.nat_port,
                    s.proto == 1 ? 0 : (uint8_t)rnd());
    size_t n = make(quoted, s.proto, UPLINK, s.remote, s.nat_port, s.proto == 1 ? 0 : s.remote_port, 8);
    static const uint8_t types[] = {3, 11, 12, 5, 4, 8, 0, 13};
    make(p, 1, some_address(), UPLINK, 1, 1, types[rnd() % sizeof types]);
    n = n - 14 > 60 ? 60 : n - 14;
    memcpy(p + 42, quoted + 14, n);
    if (rnd() % 2)
        p[42 + rnd() % 28] = (uint8_t)rnd();
    put16(p + 16, (uint16_t)(28 + n));
    mend(p + 14, 28 + n);
    return 42 + n;
}

static void hex(const char *what, const uint8_t *p, size_t n)
{
    printf("  %s ", what);
    for (size_t i = 0; i < n; i++)
        printf("%02x", p[i]);
    putchar('\n');
}

static int setup(char *dir, struct vs **v, struct err *e)
{
    char bpf[64], pins[72];
    snprintf(bpf, sizeof bpf, "%s/bpf", dir);
    snprintf(pins, sizeof pins, "%s/vs", bpf);
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mkdir(bpf, 0700) < 0 || mount("bpf", bpf, "bpf", 0, NULL) < 0)
        return err_sys(e, ERR_INTERNAL, "making the test's namespaces");
    if (system(
            "ip link set lo up && ip addr add 1.1.1.1/32 dev lo && ip link add n0 type veth peer name f0 && "
            "ip link set n0 up && ip link set f0 up") != 0)
        return err_set(e, ERR_INTERNAL, "setting up interfaces");
    return vs_open(v,
                   &(struct vs_options){.pin_dir = pins,
                                        .uplink = "lo",
                                        .uplink_ip = htonl(UPLINK),
                                        .service_near = "n0",
                                        .service_far = "f0",
                                        .service_ip = htonl(SERVICE),
                                        .service_net = SERVICE_NET},
                   e);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 100000, wrong = 0, out_passed = 0, in_passed = 0;
    uint8_t in[MAX], out[MAX + 64];
    char dir[] = "/tmp/vs-fuzz-XXXXXX";
    struct vs *v;
    struct err e = {0};
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 0) | 1;
    if (!mkdtemp(dir) || setup(dir, &v, &e) < 0 ||
        vs_attach(v, LO, SLOT, &(struct vs_limits){.max_sessions = SESSIONS}, &e) < 0) {
        printf("FAIL net: mutated packets: %s\n", e.msg);
        return 0;
    }
    int cube = vs_program_fd(v, "from_cube"), world = vs_program_fd(v, "from_world");
    for (int i = 0; i < rounds && wrong < 5; i++) {
        bool guest = rnd() % 2;
        size_t len = mutate(in, guest ? from_guest(in) : from_outside(in)), out_len = 0;
        int got = run(guest ? cube : world, in, len, out, &out_len);
        const char *bad = NULL;
        if (got == ACT_REDIRECT) {
            bad = guest ? check_out(in, len, out, out_len) : check_in(in, out, out_len);
            guest ? out_passed++ : in_passed++;
        } else if (guest && got != ACT_SHOT && got != -1) {
            bad = "from_cube neither drops nor sends";
        }
        if (!bad)
            continue;
        wrong++;
        printf("round %d: %s, verdict %d: not %s\n", i, guest ? "from_cube" : "from_world", got, bad);
        hex("in ", in, len);
        hex("out", out, out_len);
    }
    vs_detach(v, LO, SLOT, NULL);
    vs_close(v);
    char path[80];
    snprintf(path, sizeof path, "%s/bpf/vs", dir);
    vs_remove(path, &e);
    snprintf(path, sizeof path, "%s/bpf", dir);
    umount(path);
    rmdir(path);
    rmdir(dir);
    if (wrong || out_passed < rounds / 50 || in_passed < rounds / 50)
        printf("FAIL net: mutated packets: %d wrong, %d went out, %d came in of %d\n", wrong, out_passed,
               in_passed, rounds);
    else
        printf("PASS net: of %d mutated packets %d went out and %d came in, all as the model says\n", rounds,
               out_passed, in_passed);
    return 0;
}
