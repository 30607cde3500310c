/* `cube-vs`: CubeVS by hand, for tests and for looking at a node. Each call opens the pinned state, does one
 * thing, and goes. */
#include "node/net/vs.h"
#include "node/net/vs_abi.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int usage(int status)
{
    printf(
        "NAME\n    cube-vs - the sandbox network of this node, by hand\n\nSYNOPSIS\n"
        "    cube-vs --pins DIR --uplink IF [--service NEAR FAR IP NET] [--ports A-B] COMMAND\n\nCOMMANDS\n"
        "    load                                  load and attach\n"
        "    ports                                 the uplink's ports that it translates with\n"
        "    attach TAP SLOT [SESSIONS [NEW/S [UP [DOWN]]]]   let a TAP send; limits, rates in bytes per "
        "second\n"
        "    detach TAP SLOT\n"
        "    policy SLOT [allow CIDR...] [deny CIDR...]\n"
        "    name SLOT IP SECONDS                  as DNS would open it\n"
        "    ranges [deny CIDR...] [open CIDR...]\n"
        "    sweep\n"
        "    read TAP SLOT\n"
        "    remove                                everything: programs, service pair, pins (needs no "
        "--uplink)\n");
    return status;
}

struct lists {
    struct vs_cidr a[4096], b[4096];
    size_t na, nb;
};

/* Words after the list's name belong to it: `allow` or `open` to a, `deny` to b. */
static int parse_lists(int argc, char **argv, const char *name_a, struct lists *l, struct err *e)
{
    bool in_a = true;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], name_a) == 0 || strcmp(argv[i], "deny") == 0) {
            in_a = strcmp(argv[i], name_a) == 0;
            continue;
        }
        struct vs_cidr *slot = in_a ? &l->a[l->na] : &l->b[l->nb];
        if ((in_a ? l->na : l->nb) >= 4096 || vs_cidr_parse(argv[i], slot, e) < 0)
            return -1;
        in_a ? l->na++ : l->nb++;
    }
    return 0;
}

static int show(struct vs *v, unsigned tap, uint32_t slot, struct err *e)
{
    struct vs_totals t;
    if (vs_read(v, tap, slot, &t, e) < 0)
        return -1;
    printf("sessions %lld\nup_packets %llu\nup_bytes %llu\ndown_packets %llu\ndown_bytes %llu\n",
           (long long)t.sessions, (unsigned long long)t.up_packets, (unsigned long long)t.up_bytes,
           (unsigned long long)t.down_packets, (unsigned long long)t.down_bytes);
    for (unsigned r = 1; r < VS_DROP_REASONS; r++)
        if (t.drops[r])
            printf("drop %s: %llu\n", vs_drop_name(r), (unsigned long long)t.drops[r]);
    return 0;
}

static unsigned number(int argc, char **argv, int i)
{
    return i < argc ? (unsigned)strtoul(argv[i], NULL, 10) : 0;
}

static int run(struct vs *v, int argc, char **argv, struct err *e)
{
    static struct lists l;
    const char *cmd = argv[0];
    unsigned tap = argc > 1 ? if_nametoindex(argv[1]) : 0;
    if (strcmp(cmd, "load") == 0)
        return 0;
    if (strcmp(cmd, "ports") == 0) {
        struct vs_ports p = vs_ports_of(v);
        return printf("%u-%u\n", p.first, p.last) < 0;
    }
    if (strcmp(cmd, "attach") == 0 && argc >= 3) {
        struct vs_limits limits = {number(argc, argv, 3), number(argc, argv, 4), number(argc, argv, 5),
                                   number(argc, argv, 6)};
        return vs_attach(v, tap, number(argc, argv, 2), &limits, e);
    }
    if (strcmp(cmd, "detach") == 0 && argc >= 3)
        return vs_detach(v, tap, number(argc, argv, 2), e);
    if (strcmp(cmd, "read") == 0 && argc >= 3)
        return show(v, tap, number(argc, argv, 2), e);
    if (strcmp(cmd, "policy") == 0 && argc >= 2)
        return parse_lists(argc - 2, argv + 2, "allow", &l, e) < 0
                   ? -1
                   : vs_set_policy(v, number(argc, argv, 1), l.a, l.na, l.b, l.nb, 0, e);
    if (strcmp(cmd, "ranges") == 0)
        return parse_lists(argc - 1, argv + 1, "open", &l, e) < 0 ? -1
                                                                  : vs_set_ranges(v, l.b, l.nb, l.a, l.na, e);
    if (strcmp(cmd, "name") == 0 && argc >= 4)
        return vs_allow_name(v, number(argc, argv, 1), inet_addr(argv[2]), number(argc, argv, 3), e);
    if (strcmp(cmd, "sweep") == 0) {
        uint32_t removed, left;
        if (vs_sweep(v, &removed, &left, e) < 0)
            return -1;
        return printf("removed %u\nleft %u\n", removed, left) < 0;
    }
    return err_set(e, ERR_INVALID, "no such command, or too few words: %s", cmd);
}

int main(int argc, char **argv)
{
    struct vs_options o = {0};
    struct err e = {0};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--pins") == 0 && i + 1 < argc) {
            o.pin_dir = argv[++i];
        } else if (strcmp(argv[i], "--uplink") == 0 && i + 1 < argc) {
            o.uplink = argv[++i];
        } else if (strcmp(argv[i], "--ports") == 0 && i + 1 < argc) {
            if (vs_ports_parse(argv[++i], &o.ports, &e) < 0) {
                fprintf(stderr, "cube-vs: %s\n", e.msg);
                return 2;
            }
        } else if (strcmp(argv[i], "--service") == 0 && i + 4 < argc) {
            o.service_near = argv[++i];
            o.service_far = argv[++i];
            o.service_ip = inet_addr(argv[++i]);
            o.service_net = ntohl(inet_addr(argv[++i]));
        } else {
            return usage(strcmp(argv[i], "--help") == 0 ? 0 : 2);
        }
    }
    bool remove = i < argc && strcmp(argv[i], "remove") == 0;
    if (i >= argc || !o.pin_dir || (!o.uplink && !remove))
        return usage(2);
    struct vs *v = NULL;
    int rc = remove ? vs_remove(o.pin_dir, &e) : vs_open(&v, &o, &e);
    if (rc == 0 && !remove)
        rc = run(v, argc - i, argv + i, &e);
    if (rc < 0) {
        fprintf(stderr, "cube-vs: %s\n", e.msg);
        if (e.remedy[0])
            fprintf(stderr, "  %s\n", e.remedy);
        return 1;
    }
    vs_close(v);
    return 0;
}
