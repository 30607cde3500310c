/* Owns the reading of what CubeVS counted, and the sweeper's runs. */
#include "node/net/cubevs.skel.h"
#include "lib/base/cleanup.h"
#include "node/net/vs_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* As struct vs_sweep of vs_sweep.bpf.h. */
struct sweep_arg {
    uint32_t now_s, tap, removed, left;
};

int vs_sweep_tap(struct vs *v, unsigned tap_ifindex, uint32_t *removed, uint32_t *left, struct err *e)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    struct sweep_arg arg = {.now_s = (uint32_t)t.tv_sec, .tap = tap_ifindex};
    /* For this type of program the kernel writes the context back to where it came from. */
    LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = &arg, .ctx_size_in = sizeof arg);
    int rc = bpf_prog_test_run_opts(bpf_program__fd(v->skel->progs.sweep), &opts);
    if (rc < 0) {
        errno = -rc;
        return err_sys(e, ERR_INTERNAL, "sweeping network sessions");
    }
    if (removed)
        *removed = arg.removed;
    if (left)
        *left = arg.left;
    return 0;
}

int vs_sweep(struct vs *v, uint32_t *removed, uint32_t *left, struct err *e)
{
    return vs_sweep_tap(v, 0, removed, left, e);
}

int vs_read(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct vs_totals *out, struct err *e)
{
    *out = (struct vs_totals){0};
    int cpus = libbpf_num_possible_cpus();
    _cleanup_free_ struct vs_counters *c = calloc((size_t)(cpus > 0 ? cpus : 1), sizeof *c);
    struct vs_sandbox sb;
    if (!c ||
        bpf_map__lookup_elem(v->skel->maps.vs_counters, &slot, sizeof slot, c, sizeof *c * (size_t)cpus, 0) <
            0 ||
        bpf_map__lookup_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, &sb, sizeof sb,
                             0) < 0)
        return err_sys(e, ERR_NOT_FOUND, "network counters of slot %u", slot);
    for (int i = 0; i < cpus; i++) {
        out->up_packets += c[i].up_packets;
        out->up_bytes += c[i].up_bytes;
        out->down_packets += c[i].down_packets;
        out->down_bytes += c[i].down_bytes;
        for (unsigned r = 0; r < VS_DROP_REASONS; r++)
            out->drops[r] += c[i].drops[r];
    }
    out->sessions = sb.sessions;
    return 0;
}

const char *vs_drop_name(unsigned reason)
{
    static const char *const names[VS_DROP_REASONS] = {
        "none",         "spoofed MAC", "spoofed IP",    "not IPv4",     "IPv6",
        "malformed",    "IP options",  "fragment",      "protocol",     "denied range",
        "policy",       "no session",  "session limit", "session rate", "table full",
        "no free port", "rate",        "ARP",           "unknown TAP",
    };
    return reason < VS_DROP_REASONS ? names[reason] : "?";
}
