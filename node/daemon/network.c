/* Owns slots and rules of the sandboxes' network. Invariants: a slot belongs to one VM from attach to detach;
 * rules are set before the VM's TAP may send; what CubeVS knows outlives this process and is found again by
 * the TAP. */
#include "node/daemon/network.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/jailer.h"
#include "node/daemon/network_dns.h"
#include "node/daemon/network_names.h"
#include "node/daemon/network_watch.h"
#include "node/net/vs.h"
#include "node/net/vs_host.h"
#include "node/net/vs_rules.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 16384
#define SLOT_FIRST 16 /* the first addresses of the service net are the node's own */
#define SERVICE_BITS 18
#define SWEEP_MS 5000
#define NAME_MIN_S 5 /* an answer without a life of its own is still there to be used once */
#define NAME_MAX_S 86400
#define RETRY_MS 5000

static struct {
    struct node *node;
    struct vs *vs;
    char why[160];
    struct vm *slots[SLOTS];
    struct vs_rules rules[SLOTS];
    uint32_t next;
    struct loop_timer sweep;
    bool failed; /* wanted, and not there; it is tried again */
} net = {.why = "not started"};

const char *network_state(void)
{
    return net.why;
}

const char *network_fault(void)
{
    return net.failed ? net.why : "";
}

int network_admit(struct err *e)
{
    return net.failed ? err_set(e, ERR_UNAVAILABLE, "sandboxes would have no network here: %s", net.why) : 0;
}

static void on_sweep(struct loop_timer *t)
{
    struct err e = {0};
    if (vs_sweep(net.vs, NULL, NULL, &e) < 0)
        log_fail(&e, "sweeping network sessions");
    loop_timer_start(net.node->loop, &net.sweep, SWEEP_MS);
}

static int find_uplink(struct node *n, char out[16], struct err *e)
{
    if (strcmp(n->cfg.uplink, "auto") == 0)
        return vs_host_uplink(out, e);
    snprintf(out, 16, "%s", n->cfg.uplink);
    return 0;
}

/* VMs that are not adopted yet keep their slots: new ones are counted on from the highest. */
static void skip_used_slots(void)
{
    _cleanup_free_ unsigned *taps = calloc(SLOTS, sizeof *taps);
    _cleanup_free_ uint32_t *slots = calloc(SLOTS, sizeof *slots);
    size_t n = taps && slots ? vs_taps(net.vs, taps, slots, SLOTS) : 0;
    for (size_t i = 0; i < n; i++)
        if (slots[i] >= net.next)
            net.next = slots[i] + 1 < SLOTS ? slots[i] + 1 : SLOT_FIRST;
}

/* The pair's names hold the node's prefix, so that two nodes on one host have one each, behind a letter that
 * no TAP's begins with. */
static int open_network(struct node *n, struct err *e)
{
    char uplink[16], near[16], far[16], pins[256];
    struct in_addr service;
    if (inet_pton(AF_INET, n->cfg.service_net, &service) != 1 || (ntohl(service.s_addr) & (SLOTS - 1)))
        return err_set(e, ERR_INVALID, "node.service_net %s is no /18 network", n->cfg.service_net);
    snprintf(near, sizeof near, "s%s0", n->tap_prefix);
    snprintf(far, sizeof far, "s%s1", n->tap_prefix);
    snprintf(pins, sizeof pins, "%s/bpf/vs", n->cfg.run_dir);
    uint32_t ip = htonl(ntohl(service.s_addr) + 1);
    struct vs_ports ports;
    if (vs_ports_parse(n->cfg.net_ports, &ports, e) < 0)
        return err_wrap(e, "node.net_ports");
    if (find_uplink(n, uplink, e) < 0 || vs_host_pair(near, far, ip, SERVICE_BITS, e) < 0)
        return -1;
    struct vs_options o = {.pin_dir = pins,
                           .ports = ports,
                           .uplink = uplink,
                           .service_near = near,
                           .service_far = far,
                           .service_ip = ip,
                           .service_net = ntohl(service.s_addr)};
    if (vs_open(&net.vs, &o, e) < 0)
        return -1;
    ports = vs_ports_of(net.vs);
    if (vs_host_reserve_ports(ports, e) < 0)
        return -1;
    struct vs_rules opened = {0};
    char json[2048];
    snprintf(json, sizeof json, "{\"allowOut\":[%s]}", n->cfg.opened_ranges);
    if (vs_rules_parse(json, false, &opened, e) < 0)
        return err_wrap(e, "node.opened_ranges");
    int rc = vs_set_ranges(net.vs, NULL, 0, opened.allow, opened.n_allow, e);
    vs_rules_free(&opened);
    skip_used_slots();
    if (rc == 0)
        log_info("sandboxes reach the world through %s, from its ports %u to %u", uplink, ports.first,
                 ports.last);
    return rc;
}

static int begin(struct node *n)
{
    struct err e = {0};
    if (open_network(n, &e) < 0) {
        char why[sizeof net.why];
        snprintf(why, sizeof why, "%.150s", e.msg);
        if (strcmp(net.why, why) != 0) /* once, not at each try */
            log_fail(&e, "sandboxes have no network");
        memcpy(net.why, why, sizeof why);
        net.failed = true;
        vs_close(net.vs);
        net.vs = NULL;
        return -1;
    }
    net.why[0] = '\0';
    net.failed = false;
    net.sweep.fire = on_sweep;
    loop_timer_start(n->loop, &net.sweep, 0);
    network_watch_start(n, net.vs);
    network_dns_start(n);
    return 0;
}

static void adopt_one(struct sandbox *sb, void *data)
{
    if (sb->vm && sandbox_is_live(sb))
        network_adopt(data, sb, sb->vm);
}

/* Until it is there the node refuses starts; what it runs already gets its network back. */
static void retry(void *arg)
{
    struct node *n = arg;
    do
        fiber_sleep(RETRY_MS);
    while (!n->stopping && begin(n) < 0);
    if (n->stopping)
        return;
    sandbox_each(n, adopt_one, n);
    network_settle(n);
}

void network_start(struct node *n)
{
    net.node = n;
    net.next = SLOT_FIRST;
    if (strcmp(n->cfg.uplink, "none") == 0)
        snprintf(net.why, sizeof net.why, "node.uplink is none");
    else if (begin(n) < 0)
        fiber_spawn(retry, n);
}

struct vm *network_vm(uint32_t slot)
{
    return slot < SLOTS ? net.slots[slot] : NULL;
}

/* TAPs of VMs that ended while no daemon ran, or waited in its pool. */
void network_settle(struct node *n)
{
    (void)n;
    if (!net.vs)
        return;
    _cleanup_free_ unsigned *taps = calloc(SLOTS, sizeof *taps);
    _cleanup_free_ uint32_t *slots = calloc(SLOTS, sizeof *slots);
    size_t count = taps && slots ? vs_taps(net.vs, taps, slots, SLOTS) : 0;
    for (size_t i = 0; i < count; i++) {
        struct err e = {0};
        struct vm *vm = network_vm(slots[i]);
        if (vm && vm->tap_index == taps[i])
            continue;
        if (vs_detach_tap(net.vs, taps[i], slots[i], vm == NULL, &e) < 0)
            log_fail(&e, "forgetting TAP %u of the network", taps[i]);
    }
}

static int take_slot(struct vm *vm, struct err *e)
{
    for (uint32_t i = 0; i < SLOTS - SLOT_FIRST; i++) {
        uint32_t slot = net.next;
        net.next = slot + 1 < SLOTS ? slot + 1 : SLOT_FIRST;
        if (net.slots[slot])
            continue;
        net.slots[slot] = vm;
        vm->net_slot = slot;
        vm->tap_index = if_nametoindex(vm->tap);
        return 0;
    }
    return err_set(e, ERR_CAPACITY, "every network slot of this node is in use");
}

static int set_rules(uint32_t slot, const Cube__V1__SandboxSpec *spec, struct err *e)
{
    struct vs_rules r;
    if (vs_rules_parse(spec->network_json, spec->deny_internet, &r, e) < 0)
        return -1;
    network_names_review(net.vs, slot, &r);
    if (vs_set_policy(net.vs, slot, r.allow, r.n_allow, r.deny, r.n_deny, network_names_number(&r), e) < 0) {
        vs_rules_free(&r);
        return -1;
    }
    vs_rules_free(&net.rules[slot]);
    net.rules[slot] = r;
    network_dns_watch(slot, r.n_names > 0);
    return 0;
}

void network_prepare(struct vm *vm)
{
    struct err e = {0};
    if (!net.vs || !vm->tap[0] || vm->net_slot || take_slot(vm, &e) < 0)
        return;
    if (vs_prepare(net.vs, vm->tap_index, vm->net_slot, &e) == 0)
        return;
    log_fail(&e, "preparing the network of %s", vm->name); /* network_attach tries again, and says so */
    network_detach(vm);
}

int network_attach(struct node *n, struct sandbox *sb, struct vm *vm, struct err *e)
{
    if (!net.vs || !vm->tap[0])
        return 0; /* a TAP that nobody serves carries nothing: every rule holds */
    if (vm->net_slot == 0 && take_slot(vm, e) < 0)
        return -1;
    struct vs_limits limits = {.max_sessions = (uint32_t)n->cfg.max_sessions,
                               .max_new_per_s = (uint32_t)n->cfg.max_new_sessions,
                               .up_bytes_per_s = (uint64_t)n->cfg.net_up_bytes,
                               .down_bytes_per_s = (uint64_t)n->cfg.net_down_bytes};
    if (set_rules(vm->net_slot, sb->spec, e) < 0 ||
        vs_attach(net.vs, vm->tap_index, vm->net_slot, &limits, e) < 0) {
        network_detach(vm);
        return -1;
    }
    /* cube-dns' log knows only the slot */
    log_line(LOG_INFO, &(struct log_about){.sandbox = sb->id, .gen = sb->gen}, "network slot %u",
             vm->net_slot);
    return 0;
}

int network_update(struct node *n, struct sandbox *sb, struct err *e)
{
    if (!net.vs || !sb->vm || sb->vm->net_slot == 0)
        return 0;
    return set_rules(sb->vm->net_slot, sb->spec, e);
}

void network_detach(struct vm *vm)
{
    uint32_t slot = vm->net_slot;
    struct err e = {0};
    if (slot == 0 || !net.vs)
        return;
    network_dns_watch(slot, false);
    network_names_forget(slot);
    network_watch_forget(slot);
    if (vs_detach(net.vs, vm->tap_index, slot, &e) < 0)
        log_fail(&e, "taking %s off the network", vm->tap);
    vs_rules_free(&net.rules[slot]);
    net.slots[slot] = NULL;
    vm->net_slot = 0;
}

void network_adopt(struct node *n, struct sandbox *sb, struct vm *vm)
{
    struct err e = {0};
    if (!net.vs || !vm->tap[0])
        return;
    vm->tap_index = if_nametoindex(vm->tap);
    uint32_t slot = vs_slot(net.vs, vm->tap_index);
    if (slot == 0 || slot >= SLOTS ||
        net.slots[slot]) { /* of another ABI: its sessions are gone, its network not */
        if (network_attach(n, sb, vm, &e) < 0)
            log_fail(&e, "the network of %s", sb->id);
        return;
    }
    net.slots[slot] = vm;
    vm->net_slot = slot;
    if (set_rules(slot, sb->spec, &e) < 0)
        log_fail(&e, "repeating the network rules of %s; the old ones stand", sb->id);
    network_names_unknown(slot);
}

unsigned network_tap(const struct vm *vm)
{
    return vm->tap_index;
}

bool network_read(struct vm *vm, struct vs_totals *out)
{
    return net.vs && vm->net_slot && vs_read(net.vs, vm->tap_index, vm->net_slot, out, NULL) == 0;
}

void network_name_answered(uint32_t slot, const char *name, const uint32_t *addresses, size_t n,
                           uint32_t ttl_s)
{
    struct err e = {0};
    uint32_t open_s = ttl_s < NAME_MIN_S ? NAME_MIN_S : ttl_s > NAME_MAX_S ? NAME_MAX_S : ttl_s;
    if (slot >= SLOTS || !net.slots[slot] || !vs_rules_allows_name(&net.rules[slot], name))
        return;
    for (size_t i = 0; i < n; i++)
        if (network_names_open(net.vs, slot, name, addresses[i], open_s, &e) < 0)
            log_fail(&e, "opening an address of %s", name);
}
