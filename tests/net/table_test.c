/* Bounds of CubeVS, in the kernel through BPF_PROG_TEST_RUN: rules of 100,000 entries work and more are
 * refused by name; every port to one remote end is used once and then refused; a full table of sessions
 * refuses what is new, says so, and keeps what is there. */
#include "node/net/vs.h"
#include "node/net/vs_abi.h"

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
#define MANY 100000
#define PORTS 256
#define ACT_SHOT 2

static void verdict(bool ok, const char *name, const char *why)
{
    if (ok)
        printf("PASS net: %s\n", name);
    else
        printf("FAIL net: %s: %s\n", name, why);
}

/* Sends a UDP packet of the guest; returns the port that it left with, 0 when it was dropped. */
static uint16_t send_packet(int prog, uint32_t ip, uint16_t sport)
{
    static const uint8_t gateway[6] = VS_GATEWAY_MAC, guest[6] = VS_GUEST_MAC;
    static const uint8_t head[] = {8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17};
    uint8_t p[64] = {0}, out[128];
    uint32_t src = htonl(VS_GUEST_IP), dst = htonl(ip);
    memcpy(p, gateway, 6);
    memcpy(p + 6, guest, 6);
    memcpy(p + 12, head, sizeof head);
    memcpy(p + 26, &src, 4);
    memcpy(p + 30, &dst, 4);
    p[34] = (uint8_t)(sport >> 8);
    p[35] = (uint8_t)sport;
    p[37] = 9;
    p[39] = 30;
    struct __sk_buff ctx = {.ifindex = LO, .ingress_ifindex = LO};
    LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = p, .data_size_in = sizeof p, .data_out = out,
                .data_size_out = sizeof out, .ctx_in = &ctx, .ctx_size_in = sizeof ctx, .repeat = 1);
    if (bpf_prog_test_run_opts(prog, &opts) < 0 || opts.retval == ACT_SHOT)
        return 0;
    return (uint16_t)(out[34] << 8 | out[35]);
}

static void test_large_rules(struct vs *v, int prog)
{
    struct err e = {0};
    struct vs_cidr *deny = calloc(MANY + 1, sizeof *deny);
    for (uint32_t i = 0; i <= MANY; i++) /* every second address of 20.0.0.0/14 */
        deny[i] = (struct vs_cidr){.ip = htonl(0x14000000u + 2 * i), .bits = 32};
    bool set = vs_set_policy(v, SLOT, NULL, 0, deny, MANY, 0, &e) == 0, right = set;
    for (uint32_t i = 0; i < 2000 && right; i++)
        right = (send_packet(prog, 0x14000000u + i * 97, 1000) == 0) == (i * 97 % 2 == 0);
    verdict(right, "rules of 100 000 entries are obeyed", set ? "a wrong decision" : e.msg);
    bool refused = vs_set_policy(v, SLOT, NULL, 0, deny, MANY + 1, 0, &e) < 0 && e.code == ERR_TOO_LARGE;
    verdict(refused && send_packet(prog, 0x14000000u, 1000) == 0,
            "one more is refused, and the old rules stand", e.msg);
    vs_set_policy(v, SLOT, NULL, 0, NULL, 0, 0, NULL);
    free(deny);
    vs_sweep(v, NULL, NULL, NULL);
}

static uint64_t drops(struct vs *v, enum vs_drop reason)
{
    struct vs_totals t;
    return vs_read(v, LO, SLOT, &t, NULL) < 0 ? 0 : t.drops[reason];
}

static void test_ports(struct vs *v, int prog)
{
    static bool used[65536];
    struct vs_ports range = vs_ports_of(v);
    unsigned passed = 0, twice = 0, outside = 0, again = 0;
    for (unsigned i = 0; i < 4 * PORTS; i++) {
        uint16_t port = send_packet(prog, 0x15000001, (uint16_t)(2000 + i));
        if (!port)
            continue;
        passed++;
        twice += used[port];
        outside += port < range.first || port > range.last;
        used[port] = true;
    }
    for (unsigned i = 0; i < 4 * PORTS; i++)
        again += send_packet(prog, 0x15000001, (uint16_t)(2000 + i)) != 0;
    char why[160];
    snprintf(why, sizeof why, "%u of %d ports in use, %u twice, %u outside; later %u; %llu refused", passed,
             PORTS, twice, outside, again, (unsigned long long)drops(v, VS_DROP_NO_PORT));
    verdict(twice == 0 && outside == 0 && passed > PORTS * 9 / 10 && passed <= PORTS &&
                drops(v, VS_DROP_NO_PORT) >= 4 * PORTS - passed,
            "no port serves two connections to one remote end", why);
    verdict(again >= passed, "and those that have one keep it", why);
    verdict(send_packet(prog, 0x15000002, 2000) != 0, "another remote end has all ports anew", "dropped");
}

static void test_full_table(struct vs *v, int prog, const char *pins)
{
    char path[160], why[160];
    uint16_t port = send_packet(prog, 0x16000001, 3000);
    snprintf(path, sizeof path, "%s/vs_forward", pins);
    int fd = bpf_obj_get(path);
    uint32_t i = 0;
    for (; i < VS_MAX_SESSIONS; i++) {
        struct vs_forward_key k = {.tap = 99, .remote_ip = i, .remote_port = 80, .proto = 6};
        struct vs_session s = {.last_s = UINT32_MAX / 4, .slot = 99};
        if (bpf_map_update_elem(fd, &k, &s, BPF_NOEXIST) < 0)
            break;
    }
    uint64_t before = drops(v, VS_DROP_TABLE_FULL);
    uint16_t fresh = send_packet(prog, 0x16000002, 3000), same = send_packet(prog, 0x16000001, 3000);
    snprintf(why, sizeof why, "after %u sessions: new %u, old %u (was %u), counted %llu", i, fresh, same,
             port, (unsigned long long)(drops(v, VS_DROP_TABLE_FULL) - before));
    verdict(fresh == 0 && drops(v, VS_DROP_TABLE_FULL) == before + 1,
            "a full table refuses what is new and counts it", why);
    verdict(same == port && port, "and keeps what is there", why);
    close(fd);
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
    return vs_open(v,
                   &(struct vs_options){.pin_dir = pins,
                                        .uplink = "lo",
                                        .uplink_ip = htonl(0x01010101),
                                        .ports = {50000, 50000 + PORTS - 1}},
                   e);
}

int main(void)
{
    char dir[] = "/tmp/vs-table-XXXXXX", path[80];
    struct vs *v;
    struct err e = {0};
    if (!mkdtemp(dir) || setup(dir, &v, &e) < 0 || vs_attach(v, LO, SLOT, &(struct vs_limits){0}, &e) < 0) {
        printf("FAIL net: bounds: %s\n", e.msg);
        return 0;
    }
    int prog = vs_program_fd(v, "from_cube");
    snprintf(path, sizeof path, "%s/bpf/vs", dir);
    test_large_rules(v, prog);
    test_ports(v, prog);
    test_full_table(v, prog, path);
    vs_detach(v, LO, SLOT, NULL);
    vs_close(v);
    vs_remove(path, &e);
    snprintf(path, sizeof path, "%s/bpf", dir);
    umount(path);
    rmdir(path);
    rmdir(dir);
    return 0;
}
