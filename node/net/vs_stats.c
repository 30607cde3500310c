/* Owns the reading of what CubeVS counted, and the sweeper's runs. */
#include "node/net/cubevs.skel.h"
#include "lib/base/cleanup.h"
#include "node/net/vs_internal.h"

#include <arpa/inet.h>
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
    vs_expire_names(v);
    vs_tables_tend(v);
    vs_follow_routes(v);
    return vs_sweep_tap(v, 0, removed, left, e);
}

int vs_read(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct vs_totals *out, struct err *e)
{
    *out = (struct vs_totals){0};
    int cpus = libbpf_num_possible_cpus();
    size_t n = (size_t)(cpus > 0 ? cpus : 1);
    _cleanup_free_ struct vs_counters *c = calloc(n, sizeof *c);
    _cleanup_free_ struct vs_drops *d = calloc(n, sizeof *d);
    struct vs_sandbox sb;
    if (!c || !d ||
        bpf_map__lookup_elem(v->skel->maps.vs_counters, &slot, sizeof slot, c, sizeof *c * n, 0) < 0 ||
        bpf_map__lookup_elem(v->skel->maps.vs_drops, &slot, sizeof slot, d, sizeof *d * n, 0) < 0 ||
        bpf_map__lookup_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, &sb, sizeof sb,
                             0) < 0)
        return err_sys(e, ERR_NOT_FOUND, "network counters of slot %u", slot);
    for (size_t i = 0; i < n; i++) {
        out->up_packets += c[i].up_packets;
        out->up_bytes += c[i].up_bytes;
        out->down_packets += c[i].down_packets;
        out->down_bytes += c[i].down_bytes;
        for (unsigned r = 0; r < VS_DROP_REASONS; r++)
            out->drops[r] += d[i].count[r];
    }
    out->sessions = sb.sessions;
    return 0;
}

uint64_t vs_up_bytes(struct vs *v, uint32_t slot)
{
    int cpus = libbpf_num_possible_cpus();
    size_t n = (size_t)(cpus > 0 ? cpus : 1);
    _cleanup_free_ struct vs_counters *c = calloc(n, sizeof *c);
    uint64_t sum = 0;
    if (!c || bpf_map__lookup_elem(v->skel->maps.vs_counters, &slot, sizeof slot, c, sizeof *c * n, 0) < 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        sum += c[i].up_bytes;
    return sum;
}

static const char *session_state(uint8_t proto, uint8_t state)
{
    static const char *const tcp[] = {"?",           "SYN sent",    "SYN received", "established",
                                      "half-closed", "half-closed", "time-wait",    "reset"};
    if (proto != 6)
        return state ? "answered" : "new";
    return state < sizeof tcp / sizeof *tcp ? tcp[state] : "?";
}

size_t vs_sessions(struct vs *v, unsigned tap_ifindex, struct vs_session_info *out, size_t max)
{
    struct {
        uint32_t tap, n;
    } arg = {.tap = tap_ifindex};
    struct timespec t;
    struct vs_listed l;
    LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = &arg, .ctx_size_in = sizeof arg);
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (bpf_prog_test_run_opts(bpf_program__fd(v->skel->progs.list_sessions), &opts) < 0)
        return 0;
    size_t n = 0;
    for (uint32_t i = 0; i < arg.n && n < max; i++) {
        if (bpf_map__lookup_elem(v->skel->maps.vs_listing, &i, sizeof i, &l, sizeof l, 0) < 0)
            break;
        int32_t idle = (int32_t)((uint32_t)t.tv_sec - l.session.last_s);
        out[n++] = (struct vs_session_info){.proto = l.key.proto,
                                            .remote_ip = l.key.remote_ip,
                                            .remote_port = ntohs(l.key.remote_port),
                                            .guest_port = ntohs(l.key.guest_port),
                                            .idle_s = idle < 0 ? 0 : (uint32_t)idle,
                                            .state = session_state(l.key.proto, l.session.state)};
    }
    return n;
}

struct vs_watch {
    struct ring_buffer *ring;
    void (*each)(const struct vs_drop_info *d, void *data);
    void *data;
};

static int on_sample(void *ctx, void *data, size_t size)
{
    const struct vs_watch *w = ctx;
    const struct vs_sample *s = data;
    if (size < sizeof *s || s->slot >= VS_MAX_SANDBOXES)
        return 0;
    struct vs_drop_info d = {.slot = s->slot,
                             .reason = s->reason,
                             .remote_ip = s->remote_ip,
                             .remote_port = ntohs(s->remote_port),
                             .proto = s->proto,
                             .missed = s->missed};
    w->each(&d, w->data);
    return 0;
}

struct vs_watch *vs_watch_open(struct vs *v, void (*each)(const struct vs_drop_info *d, void *data),
                               void *data)
{
    struct vs_watch *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->each = each;
    w->data = data;
    w->ring = ring_buffer__new(bpf_map__fd(v->skel->maps.vs_samples), on_sample, w, NULL);
    if (w->ring)
        return w;
    free(w);
    return NULL;
}

void vs_watch_read(struct vs_watch *w)
{
    ring_buffer__consume(w->ring);
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
