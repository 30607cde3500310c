/* Owns the BPF object of this process and its attachments. Invariants: maps are found by their pins, so a
 * second process changes the same state; a program is attached with BPF_TC_F_REPLACE at a fixed handle, so an
 * upgrade never leaves a moment without one. */
#include "node/net/vs.h"
#include "lib/base/cleanup.h"
#include "node/net/cubevs.skel.h"
#include "node/net/vs_host.h"
#include "node/net/vs_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define TC_HANDLE 0xcb

static int quiet(enum libbpf_print_level level, const char *fmt, va_list ap)
{
    return 0;
}

/* Several nodes may share an uplink (two on one host, in tests): each has a filter of its own, told apart by
 * where its pins are. */
static uint32_t tc_priority(const char *pin_dir)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *pin_dir; pin_dir++)
        h = (h ^ (uint8_t)*pin_dir) * 16777619u;
    return 1 + h % 0xfff0;
}

static int tc_attach(const char *pin_dir, int ifindex, uint32_t handle, struct bpf_program *prog,
                     const char *what, struct err *e)
{
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = BPF_TC_INGRESS);
    int rc = bpf_tc_hook_create(&hook);
    if (rc && rc != -EEXIST) {
        errno = -rc;
        return err_sys(e, ERR_INTERNAL, "making the clsact hook of %s", what);
    }
    LIBBPF_OPTS(bpf_tc_opts, opts, .handle = handle, .priority = tc_priority(pin_dir),
                .prog_fd = bpf_program__fd(prog), .flags = BPF_TC_F_REPLACE);
    rc = bpf_tc_attach(&hook, &opts);
    if (rc) {
        errno = -rc;
        return err_sys(e, ERR_INTERNAL, "attaching %s to %s", bpf_program__name(prog), what);
    }
    return 0;
}

static void tc_detach(const char *pin_dir, int ifindex)
{
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = BPF_TC_INGRESS);
    LIBBPF_OPTS(bpf_tc_opts, opts, .handle = TC_HANDLE, .priority = tc_priority(pin_dir));
    bpf_tc_detach(&hook, &opts);
}

static int interface_ioctl(const char *name, unsigned long request, struct ifreq *r, struct err *e)
{
    _cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(r->ifr_name, sizeof r->ifr_name, "%s", name);
    if (fd < 0 || ioctl(fd, request, r) < 0)
        return err_sys(e, ERR_INVALID, "asking interface %s for its address", name);
    return 0;
}

static int read_config(const struct vs_options *o, struct vs_config *c, struct err *e)
{
    struct ifreq r = {0};
    c->abi = VS_ABI;
    c->uplink_ifindex = if_nametoindex(o->uplink);
    if (!c->uplink_ifindex)
        return err_sys(e, ERR_INVALID, "uplink interface %s", o->uplink);
    c->uplink_ip = o->uplink_ip;
    if (!c->uplink_ip) {
        if (interface_ioctl(o->uplink, SIOCGIFADDR, &r, e) < 0)
            return -1;
        c->uplink_ip = ((struct sockaddr_in *)&r.ifr_addr)->sin_addr.s_addr;
    }
    if (!o->service_far)
        return 0;
    c->service_ifindex = if_nametoindex(o->service_far);
    if (!c->service_ifindex)
        return err_sys(e, ERR_INVALID, "service interface %s", o->service_far);
    if (interface_ioctl(o->service_near, SIOCGIFHWADDR, &r, e) < 0)
        return -1;
    memcpy(c->service_mac, r.ifr_hwaddr.sa_data, 6);
    c->service_ip = o->service_ip;
    c->service_net = o->service_net;
    return 0;
}

static int load(struct vs *v, struct err *e)
{
    libbpf_set_print(quiet);
    LIBBPF_OPTS(bpf_object_open_opts, opts, .pin_root_path = v->pin_dir);
    v->skel = cubevs__open_opts(&opts);
    if (!v->skel)
        return err_sys(e, ERR_INTERNAL, "opening the BPF object");
    int rc = cubevs__load(v->skel);
    if (rc) {
        errno = -rc;
        err_sys(e, ERR_INTERNAL, "loading the BPF programs (pins in %s)", v->pin_dir);
        return err_remedy(
            e,
            "needs bpffs at the pin directory, CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and Linux 6.1 or later");
    }
    return 0;
}

static int open_pin(const char *pin_dir, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", pin_dir, name);
    return bpf_obj_get(path);
}

/* The pinned configuration, of whatever ABI; false when there is none. */
static bool pinned_config(const char *pin_dir, struct vs_config *out)
{
    union {
        struct vs_config c;
        char bytes[4096];
    } value = {0};
    struct bpf_map_info info = {0};
    uint32_t zero = 0, len = sizeof info;
    _cleanup_close_ int fd = open_pin(pin_dir, "vs_config");
    if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &len) < 0 || info.value_size > sizeof value ||
        bpf_map_lookup_elem(fd, &zero, &value) < 0)
        return false;
    *out = value.c;
    if (info.value_size != sizeof value.c)
        out->abi = 0;
    return true;
}

/* Calls `each` with every TAP that the pinned maps know. */
static void each_tap(const char *pin_dir, void (*each)(const char *pin_dir, unsigned tap, void *data),
                     void *data)
{
    uint32_t tap, *previous = NULL;
    _cleanup_close_ int fd = open_pin(pin_dir, "vs_sandboxes");
    while (fd >= 0 && bpf_map_get_next_key(fd, previous, &tap) == 0) {
        each(pin_dir, tap, data);
        previous = &tap;
    }
}

static void detach_tap(const char *pin_dir, unsigned tap, void *data)
{
    (void)data;
    tc_detach(pin_dir, (int)tap);
}

/* Programs and pins of whatever ABI; the service pair stays. */
static int clear(const char *pin_dir, const struct vs_config *c, struct err *e)
{
    _cleanup_closedir_ DIR *d = opendir(pin_dir);
    if (!d)
        return errno == ENOENT ? 0 : err_sys(e, ERR_INTERNAL, "reading %s", pin_dir);
    each_tap(pin_dir, detach_tap, NULL);
    if (c && c->service_ifindex)
        tc_detach(pin_dir, (int)c->service_ifindex);
    if (c && vs_ports_release(c->uplink_ifindex, tc_priority(pin_dir), 0, e) < 0)
        return -1;
    for (struct dirent *x; (x = readdir(d));)
        if (x->d_name[0] != '.' && unlinkat(dirfd(d), x->d_name, 0) < 0)
            return err_sys(e, ERR_INTERNAL, "removing %s/%s", pin_dir, x->d_name);
    return 0;
}

/* An upgrade to this build: every TAP that is served gets this build's program, one exchange each. */
static void replace_on_tap(const char *pin_dir, unsigned tap, void *data)
{
    struct vs *v = data;
    char name[IF_NAMESIZE];
    if (if_indextoname(tap, name))
        tc_attach(pin_dir, (int)tap, TC_HANDLE, v->skel->progs.from_cube, name, NULL);
}

static bool read_route(struct vs_config *c)
{
    char name[IF_NAMESIZE];
    struct vs_route r = {0};
    if (if_indextoname(c->uplink_ifindex, name))
        vs_host_route(name, &r);
    bool same = c->net == r.net && c->mask == r.mask && c->gateway == r.gateway;
    c->net = r.net;
    c->mask = r.mask;
    c->gateway = r.gateway;
    return !same;
}

void vs_follow_routes(struct vs *v)
{
    if (read_route(&v->config))
        vs_config_write(v, NULL);
}

int vs_config_write(struct vs *v, struct err *e)
{
    uint32_t zero = 0;
    if (bpf_map__update_elem(v->skel->maps.vs_config, &zero, sizeof zero, &v->config, sizeof v->config,
                             BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "writing CubeVS's configuration");
    return 0;
}

static int claim_uplink(struct vs *v, const struct vs_options *o, struct err *e)
{
    struct vs_ports p;
    uint32_t zero = 0, priority = tc_priority(v->pin_dir);
    struct vs_config *c = &v->config;
    _cleanup_close_ int held = -1;
    if (vs_ports_choose(c->uplink_ifindex, priority, o->ports, &p, &held, e) < 0)
        return -1;
    c->port_first = p.first;
    c->port_count = (uint32_t)(p.last - p.first + 1);
    struct vs_config before;
    struct vs_range_key key;
    if (bpf_map__lookup_elem(v->skel->maps.vs_config, &zero, sizeof zero, &before, sizeof before, 0) == 0)
        c->epoch = before.epoch + (before.uplink_ip != c->uplink_ip);
    read_route(c);
    if (vs_config_write(v, e) < 0)
        return -1;
    uint32_t handle = vs_ports_handle(p);
    bool fresh = bpf_map__get_next_key(v->skel->maps.vs_ranges, NULL, &key, sizeof key) < 0;
    if ((fresh && vs_set_ranges(v, NULL, 0, NULL, 0, e) < 0) ||
        tc_attach(v->pin_dir, (int)c->uplink_ifindex, handle, v->skel->progs.from_world, o->uplink, e) < 0)
        return -1;
    return vs_ports_release(c->uplink_ifindex, priority, handle, e);
}

int vs_open(struct vs **out, const struct vs_options *o, struct err *e)
{
    struct vs *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(e, ERR_INTERNAL, "out of memory");
    snprintf(v->pin_dir, sizeof v->pin_dir, "%s", o->pin_dir);
    if (mkdir(v->pin_dir, 0700) < 0 && errno != EEXIST) {
        err_sys(e, ERR_INTERNAL, "making %s", v->pin_dir);
        vs_close(v);
        return -1;
    }
    struct vs_config old;
    if ((pinned_config(v->pin_dir, &old) && old.abi != VS_ABI && clear(v->pin_dir, &old, e) < 0) ||
        read_config(o, &v->config, e) < 0 || load(v, e) < 0 || vs_tables_open(v, e) < 0 ||
        claim_uplink(v, o, e) < 0 ||
        (v->config.service_ifindex && tc_attach(v->pin_dir, (int)v->config.service_ifindex, TC_HANDLE,
                                                v->skel->progs.from_host, o->service_far, e) < 0)) {
        vs_close(v);
        return -1;
    }
    each_tap(v->pin_dir, replace_on_tap, v);
    *out = v;
    return 0;
}

struct vs_ports vs_ports_of(const struct vs *v)
{
    return (struct vs_ports){v->config.port_first,
                             (uint16_t)(v->config.port_first + v->config.port_count - 1)};
}

void vs_close(struct vs *v)
{
    if (!v)
        return;
    vs_tables_close(v);
    if (v->skel)
        cubevs__destroy(v->skel);
    free(v);
}

int vs_remove(const char *pin_dir, struct err *e)
{
    struct vs_config c;
    char name[IF_NAMESIZE];
    bool known = pinned_config(pin_dir, &c);
    if (clear(pin_dir, known ? &c : NULL, e) < 0)
        return -1;
    if (known && c.service_ifindex && if_indextoname(c.service_ifindex, name) &&
        vs_host_pair_remove(name, e) < 0)
        return -1;
    return rmdir(pin_dir) < 0 && errno != ENOENT ? err_sys(e, ERR_INTERNAL, "removing %s", pin_dir) : 0;
}

static int put_sandbox(struct vs *v, unsigned tap_ifindex, const struct vs_sandbox *sb, struct err *e)
{
    if (bpf_map__update_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, sb, sizeof *sb,
                             BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "registering TAP %u", tap_ifindex);
    return 0;
}

int vs_prepare(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct err *e)
{
    if (slot >= VS_MAX_SANDBOXES)
        return err_set(e, ERR_INVALID, "network slot %u is out of range", slot);
    if (tap_ifindex == 0)
        return err_set(e, ERR_NOT_FOUND, "the TAP for network slot %u is gone", slot);
    struct vs_sandbox sb = {.slot = slot};
    bpf_map__delete_elem(v->skel->maps.vs_sampled, &slot, sizeof slot, 0);
    int cpus = libbpf_num_possible_cpus();
    _cleanup_free_ void *zero = calloc((size_t)(cpus > 0 ? cpus : 1), sizeof(struct vs_drops));
    if (!zero ||
        bpf_map__update_elem(v->skel->maps.vs_counters, &slot, sizeof slot, zero,
                             sizeof(struct vs_counters) * (size_t)cpus, BPF_ANY) < 0 ||
        bpf_map__update_elem(v->skel->maps.vs_drops, &slot, sizeof slot, zero,
                             sizeof(struct vs_drops) * (size_t)cpus, BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "making the counters of slot %u", slot);
    if (bpf_map__update_elem(v->skel->maps.vs_slots, &slot, sizeof slot, &tap_ifindex, sizeof tap_ifindex,
                             BPF_ANY) < 0)
        return err_sys(e, ERR_INTERNAL, "registering TAP %u", tap_ifindex);
    char what[32];
    snprintf(what, sizeof what, "TAP %u", tap_ifindex);
    if (put_sandbox(v, tap_ifindex, &sb, e) < 0 ||
        tc_attach(v->pin_dir, (int)tap_ifindex, TC_HANDLE, v->skel->progs.from_cube, what, e) < 0) {
        vs_detach(v, tap_ifindex, slot, NULL);
        return -1;
    }
    return 0;
}

int vs_attach(struct vs *v, unsigned tap_ifindex, uint32_t slot, const struct vs_limits *limits,
              struct err *e)
{
    struct vs_sandbox sb;
    bool prepared = bpf_map__lookup_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, &sb,
                                         sizeof sb, 0) == 0 &&
                    sb.slot == slot && !(sb.flags & VS_LIVE);
    if (!prepared && vs_prepare(v, tap_ifindex, slot, e) < 0)
        return -1;
    sb = (struct vs_sandbox){.slot = slot,
                             .max_sessions = limits->max_sessions,
                             .max_new_per_s = limits->max_new_per_s,
                             .flags = VS_LIVE};
    if (vs_set_rate(v, slot, limits->up_bytes_per_s, limits->down_bytes_per_s, e) < 0)
        return -1;
    return put_sandbox(v, tap_ifindex, &sb, e);
}

int vs_detach_tap(struct vs *v, unsigned tap_ifindex, uint32_t slot, bool whole, struct err *e)
{
    uint32_t removed = 0;
    struct vs_sandbox sb = {0};
    tc_detach(v->pin_dir, (int)tap_ifindex);
    bool known = bpf_map__lookup_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, &sb,
                                      sizeof sb, 0) == 0;
    bpf_map__delete_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, 0);
    int rc = known && sb.sessions == 0 ? 0 : vs_sweep_tap(v, tap_ifindex, &removed, NULL, e);
    if (!whole)
        return rc;
    bpf_map__delete_elem(v->skel->maps.vs_slots, &slot, sizeof slot, 0);
    vs_forget_policy(v, slot);
    vs_set_rate(v, slot, 0, 0, NULL);
    bpf_map__delete_elem(v->skel->maps.vs_drops, &slot, sizeof slot, 0);
    return rc;
}

int vs_detach(struct vs *v, unsigned tap_ifindex, uint32_t slot, struct err *e)
{
    return vs_detach_tap(v, tap_ifindex, slot, true, e);
}

size_t vs_taps(struct vs *v, unsigned *taps, uint32_t *slots, size_t max)
{
    uint32_t tap, *previous = NULL;
    struct vs_sandbox sb;
    size_t n = 0;
    while (n < max && bpf_map__get_next_key(v->skel->maps.vs_sandboxes, previous, &tap, sizeof tap) == 0) {
        previous = &tap;
        if (bpf_map__lookup_elem(v->skel->maps.vs_sandboxes, &tap, sizeof tap, &sb, sizeof sb, 0) < 0)
            continue;
        taps[n] = tap;
        slots[n++] = sb.slot;
    }
    return n;
}

int vs_program_fd(struct vs *v, const char *name)
{
    struct bpf_program *p = bpf_object__find_program_by_name(v->skel->obj, name);
    return p ? bpf_program__fd(p) : -1;
}

uint32_t vs_slot(struct vs *v, unsigned tap_ifindex)
{
    struct vs_sandbox sb;
    if (bpf_map__lookup_elem(v->skel->maps.vs_sandboxes, &tap_ifindex, sizeof tap_ifindex, &sb, sizeof sb,
                             0) < 0)
        return 0;
    return sb.slot;
}
