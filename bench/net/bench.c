/* The programs of CubeVS measured in the kernel (BPF_PROG_TEST_RUN), in a network namespace of its own: cost
 * of a policy by its size, of a change, of attaching a sandbox, and the memory of a million sessions. Figures
 * of traffic come from bench/net/run.sh as arguments `metric unit value`. */
#include "bench/report.h"
#include "lib/base/clock.h"
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

#define LO 1
#define SLOT 20
#define REPEAT 20000
#define SERIES_MAX 16

enum { POLICY, CHANGE, SETUP, SESSION, OWN };

static struct series series[SERIES_MAX] = {{.metric = "policy-10k-vs-10", .unit = "x"},
                                           {.metric = "policy-change", .unit = "ms"},
                                           {.metric = "setup", .unit = "ms"},
                                           {.metric = "session", .unit = "B"}};

static int fail(const char *what, const struct err *e)
{
    fprintf(stderr, "bench net: %s: %s\n", what, e ? e->msg : "");
    return 1;
}

/* A UDP packet of the guest whose session exists after the first run. */
static void make_packet(uint8_t p[64], uint32_t ip)
{
    static const uint8_t gateway[6] = VS_GATEWAY_MAC, guest[6] = VS_GUEST_MAC;
    static const uint8_t head[] = {8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17};
    uint32_t src = htonl(VS_GUEST_IP), sum = 0;
    memset(p, 0, 64);
    memcpy(p, gateway, 6);
    memcpy(p + 6, guest, 6);
    memcpy(p + 12, head, sizeof head);
    memcpy(p + 26, &src, 4);
    memcpy(p + 30, &ip, 4);
    for (int i = 14; i < 34; i += 2)
        sum += (uint32_t)p[i] << 8 | p[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    p[24] = (uint8_t)(~sum >> 8);
    p[25] = (uint8_t)~sum;
    p[34] = 0x10;
    p[36] = 0x23;
    p[39] = 30;
}

/* Average nanoseconds of one packet; the verdict is stored. */
static double run_packet(int prog, uint32_t ip, int repeat, uint32_t *verdict)
{
    uint8_t packet[64];
    make_packet(packet, ip);
    struct __sk_buff ctx = {.ifindex = LO, .ingress_ifindex = LO};
    LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = packet, .data_size_in = sizeof packet, .ctx_in = &ctx,
                .ctx_size_in = sizeof ctx, .repeat = repeat);
    if (bpf_prog_test_run_opts(prog, &opts) < 0)
        return -1;
    *verdict = opts.retval;
    return opts.duration;
}

static int set_policy_of(struct vs *v, size_t n, struct err *e)
{
    struct vs_cidr *deny = calloc(n, sizeof *deny);
    for (size_t i = 0; i < n; i++)
        deny[i] = (struct vs_cidr){.ip = htonl(0x20000000u + (uint32_t)i * 256), .bits = 24};
    int rc = vs_set_policy(v, SLOT, NULL, 0, deny, n, 0, e);
    free(deny);
    return rc;
}

static int measure_policy(struct vs *v, int prog, struct err *e)
{
    uint32_t verdict;
    for (int i = 0; i < 9; i++) {
        if (set_policy_of(v, 10, e) < 0)
            return -1;
        double few = run_packet(prog, htonl(0x08080808), REPEAT, &verdict);
        if (set_policy_of(v, 10000, e) < 0)
            return -1;
        double many = run_packet(prog, htonl(0x08080808), REPEAT, &verdict);
        series_add(&series[POLICY], many / few);
    }
    return 0;
}

/* From the call until a packet meets the new policy. */
static int measure_change(struct vs *v, int prog, struct err *e)
{
    struct vs_cidr all = {0};
    for (int i = 0; i < 50; i++) {
        uint32_t verdict = 0;
        if (i % 16 == 0 &&
            vs_sweep(v, NULL, NULL, e) < 0) /* as the node does: tables are readied every 5 s */
            return -1;
        int64_t start = clock_mono_us();
        if (vs_set_policy(v, SLOT, NULL, 0, &all, (size_t)(i % 2), 0, e) < 0)
            return -1;
        do
            run_packet(prog, htonl(0x08080808), 1, &verdict);
        while ((verdict == 2) != (i % 2 == 1)); /* TC_ACT_SHOT */
        series_add(&series[CHANGE], (double)(clock_mono_us() - start) / 1000);
    }
    return 0;
}

static int measure_setup(struct vs *v, struct err *e)
{
    for (int i = 0; i < 200; i++) {
        int64_t start = clock_mono_us();
        if (vs_set_policy(v, SLOT, NULL, 0, NULL, 0, 0, e) < 0 ||
            vs_attach(v, LO, SLOT, &(struct vs_limits){2500, 500, 0, 0}, e) < 0)
            return -1;
        series_add(&series[SETUP], (double)(clock_mono_us() - start) / 1000);
    }
    return 0;
}

/* Bytes that the kernel accounts to a map. */
static double map_bytes(const char *pins, const char *name, int *fd)
{
    char path[160], line[128];
    double bytes = 0;
    snprintf(path, sizeof path, "%s/%s", pins, name);
    *fd = bpf_obj_get(path);
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", *fd);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "memlock: %lf", &bytes) == 1)
            break;
    if (f)
        fclose(f);
    return bytes;
}

static double mem_available(void)
{
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* Both entries of a session, buckets counted: what the maps account, and what MemAvailable lost, whichever is
 * larger. */
static void measure_sessions(const char *pins)
{
    int forward, reverse;
    uint32_t n = VS_MAX_SESSIONS - 1000;
    double before = mem_available();
    map_bytes(pins, "vs_forward", &forward);
    map_bytes(pins, "vs_reverse", &reverse);
    for (uint32_t i = 0; i < n; i++) {
        struct vs_forward_key fk = {
            .tap = 1, .remote_ip = i, .remote_port = 80, .guest_port = (uint16_t)i, .proto = 6};
        struct vs_session s = {.nat_port = (uint16_t)i};
        struct vs_reverse_key rk = {.remote_ip = i, .remote_port = 80, .nat_port = (uint16_t)i, .proto = 6};
        struct vs_reverse_value rv = {.tap = 1};
        if (bpf_map_update_elem(forward, &fk, &s, BPF_ANY) < 0 ||
            bpf_map_update_elem(reverse, &rk, &rv, BPF_ANY) < 0) {
            fprintf(stderr, "bench net: the tables took only %u sessions\n", i);
            n = i;
            break;
        }
    }
    double accounted = map_bytes(pins, "vs_forward", &forward) + map_bytes(pins, "vs_reverse", &reverse);
    double lost = before - mem_available();
    series_add(&series[SESSION], (accounted > lost ? accounted : lost) / n);
}

int main(int argc, char **argv)
{
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    size_t n = OWN;
    report_start();
    for (int i = 1 + json; i + 2 < argc && n < SERIES_MAX; i += 3) {
        size_t k = n;
        for (size_t have = OWN; have < n; have++)
            if (strcmp(series[have].metric, argv[i]) == 0)
                k = have;
        if (k == n)
            series[n++] = (struct series){.metric = argv[i], .unit = argv[i + 1]};
        series_add(&series[k], atof(argv[i + 2]));
    }
    char dir[] = "/tmp/bench-net-XXXXXX", bpf[64], pins[72];
    struct err e = {0};
    struct vs *v = NULL;
    if (!mkdtemp(dir))
        return fail("making a directory", NULL);
    snprintf(bpf, sizeof bpf, "%s/bpf", dir);
    snprintf(pins, sizeof pins, "%s/vs", bpf);
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mkdir(bpf, 0700) < 0 || mount("bpf", bpf, "bpf", 0, NULL) < 0 ||
        system("ip link set lo up && ip addr add 1.1.1.1/32 dev lo") != 0)
        return fail("making namespaces", NULL);
    if (vs_open(&v, &(struct vs_options){.pin_dir = pins, .uplink = "lo", .uplink_ip = htonl(0x01010101)},
                &e) < 0)
        return fail("opening CubeVS", &e);
    int prog = vs_program_fd(v, "from_cube");
    if (measure_setup(v, &e) < 0 || measure_policy(v, prog, &e) < 0 || measure_change(v, prog, &e) < 0)
        return fail("measuring", &e);
    measure_sessions(pins);
    vs_close(v);
    vs_remove(pins, &e);
    umount(bpf);
    rmdir(bpf);
    rmdir(dir);
    report_print("net", series, n, json);
    return 0;
}
