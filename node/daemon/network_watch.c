/* Owns what is remembered of denied packets and of who sends. Invariants: memory per sandbox is bounded,
 * whatever a guest sends; only bytes that left the sandbox count as its activity, never what was dropped. */
#include "node/daemon/network_watch.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/metrics.h"
#include "node/daemon/network.h"
#include "node/daemon/network_names.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 16384
#define TICK_MS 1000
#define ACTIVE_MS 2500 /* a sandbox that sends counts as active until so long after its last byte */
#define DENIED_MAX 32  /* destinations remembered per sandbox */
#define REPLY_SESSIONS 128

struct denied {
    uint32_t reason, ip;
    uint16_t port;
    uint8_t proto;
    uint64_t packets;
    int64_t last_ms;
};

struct seen {
    uint64_t up_bytes;
    int64_t sent_ms; /* CLOCK_BOOTTIME of the last tick that saw new bytes */
    struct denied *denied;
    uint32_t n_denied;
};

static struct {
    struct node *node;
    struct vs *vs;
    struct vs_watch *samples;
    struct loop_timer tick;
    struct seen seen[SLOTS];
} w;

static void on_denied(const struct vs_drop_info *d, void *data)
{
    (void)data;
    if (!network_vm(d->slot))
        return;
    struct seen *s = &w.seen[d->slot];
    if (!s->denied && !(s->denied = calloc(DENIED_MAX, sizeof *s->denied)))
        return;
    struct denied *at = NULL, *oldest = s->denied;
    for (uint32_t i = 0; i < s->n_denied && !at; i++) {
        struct denied *x = &s->denied[i];
        if (x->reason == d->reason && x->ip == d->remote_ip && x->port == d->remote_port &&
            x->proto == d->proto)
            at = x;
        if (x->last_ms < oldest->last_ms)
            oldest = x;
    }
    if (!at) {
        at = s->n_denied < DENIED_MAX ? &s->denied[s->n_denied++] : oldest;
        *at = (struct denied){
            .reason = d->reason, .ip = d->remote_ip, .port = d->remote_port, .proto = d->proto};
    }
    at->packets++;
    at->last_ms = clock_realtime_ms();
}

static void look_at(uint32_t slot, struct vm *vm, int64_t now)
{
    struct seen *s = &w.seen[slot];
    struct sandbox *sb = vm->owner;
    uint64_t bytes = vs_up_bytes(w.vs, slot);
    bool sent = bytes != s->up_bytes;
    s->up_bytes = bytes;
    if (sent)
        s->sent_ms = now;
    if (!sb || sb->vm != vm || sb->state != SB_STATE(RUNNING))
        return;
    if (sent) {
        sb->last_activity_ms = clock_realtime_ms();
        sb->changed = true;
    }
    bool active = network_active(vm);
    if (active == (strcmp(sb->awake, "egress") == 0) || (active && *sb->awake))
        return;
    sb->awake = active ? "egress" : "";
    sb->changed = true;
}

static void on_tick(struct loop_timer *t)
{
    (void)t;
    int64_t now = clock_boot_ms();
    if (w.samples)
        vs_watch_read(w.samples);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct vm *vm = network_vm(slot);
        if (vm && vm->owner)
            look_at(slot, vm, now);
    }
    loop_timer_start(w.node->loop, &w.tick, TICK_MS);
}

bool network_active(const struct vm *vm)
{
    return vm->net_slot && w.seen[vm->net_slot].sent_ms &&
           clock_boot_ms() - w.seen[vm->net_slot].sent_ms < ACTIVE_MS;
}

void network_watch_forget(uint32_t slot)
{
    free(w.seen[slot].denied);
    w.seen[slot] = (struct seen){0};
}

static void metric_line(struct buf *out, const char *name, const char *id, const char *tags, uint64_t value)
{
    buf_printf(out, "%s{sandbox=\"%s\",%s} %" PRIu64 "\n", name, id, tags, value);
}

/* One family after the other, as the format wants it. */
static void write_metrics(struct buf *out)
{
    static const char *const families[][2] = {
        {"cube_node_sandbox_net_bytes_total", "bytes of IP packets between a sandbox and others"},
        {"cube_node_sandbox_net_packets_total", "packets between a sandbox and others"},
        {"cube_node_sandbox_net_drops_total", "packets that were dropped, by reason"},
        {"cube_node_sandbox_net_sessions", "open connections of a sandbox"}};
    char tags[64];
    for (unsigned f = 0; f < 4; f++) {
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", families[f][0], families[f][1], families[f][0],
                   f == 3 ? "gauge" : "counter");
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            struct vm *vm = network_vm(slot);
            struct vs_totals t;
            if (!vm || !vm->owner || !network_read(vm, &t))
                continue;
            const char *id = vm->owner->id;
            if (f == 3) {
                buf_printf(out, "%s{sandbox=\"%s\"} %" PRId64 "\n", families[f][0], id, t.sessions);
                continue;
            }
            if (f < 2) {
                metric_line(out, families[f][0], id, "direction=\"up\"", f == 0 ? t.up_bytes : t.up_packets);
                metric_line(out, families[f][0], id, "direction=\"down\"",
                            f == 0 ? t.down_bytes : t.down_packets);
                continue;
            }
            for (unsigned r = 1; r < sizeof t.drops / sizeof *t.drops; r++) {
                if (!t.drops[r])
                    continue;
                snprintf(tags, sizeof tags, "reason=\"%s\"", vs_drop_name(r));
                metric_line(out, families[f][0], id, tags, t.drops[r]);
            }
        }
    }
}

void network_watch_start(struct node *n, struct vs *v)
{
    w.node = n;
    w.vs = v;
    w.samples = vs_watch_open(v, on_denied, NULL);
    if (!w.samples)
        log_warn("samples of dropped packets cannot be read");
    metrics_add_writer(write_metrics);
    w.tick.fire = on_tick;
    loop_timer_start(n->loop, &w.tick, TICK_MS);
}

/* ---- the answer ---- */

static char *address_text(uint32_t ip)
{
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &ip, text, sizeof text);
    char *copy = strdup(text);
    if (!copy)
        abort();
    return copy;
}

static char *protocol_name(uint8_t proto)
{
    return proto == IPPROTO_TCP ? "tcp" : proto == IPPROTO_UDP ? "udp" : proto == IPPROTO_ICMP ? "icmp" : "";
}

static void *list_add(size_t *n, void *list, size_t size)
{
    void ***at = list;
    *at = realloc(*at, (*n + 1) * sizeof **at);
    void *one = calloc(1, size);
    if (!*at || !one)
        abort();
    return (*at)[(*n)++] = one;
}

static void add_name(const char *name, uint32_t ip, int64_t left_s, void *data)
{
    Cube__Master__V1__NetworkReply *out = data;
    Cube__Master__V1__NetworkName *m = list_add(&out->n_names, &out->names, sizeof *m);
    cube__master__v1__network_name__init(m);
    m->name = strdup(name);
    m->address = address_text(ip);
    m->left_s = left_s;
}

static void add_sessions(struct vm *vm, unsigned tap, Cube__Master__V1__NetworkReply *out)
{
    (void)vm;
    struct vs_session_info list[REPLY_SESSIONS];
    size_t n = vs_sessions(w.vs, tap, list, REPLY_SESSIONS);
    for (size_t i = 0; i < n; i++) {
        Cube__Master__V1__NetworkSession *m = list_add(&out->n_sessions, &out->sessions, sizeof *m);
        cube__master__v1__network_session__init(m);
        m->protocol = protocol_name(list[i].proto);
        m->remote = address_text(list[i].remote_ip);
        m->remote_port = list[i].remote_port;
        m->guest_port = list[i].guest_port;
        m->state = (char *)list[i].state;
        m->idle_s = list[i].idle_s;
    }
}

static void add_denied(const struct seen *s, Cube__Master__V1__NetworkReply *out)
{
    for (uint32_t i = 0; i < s->n_denied; i++) {
        Cube__Master__V1__NetworkDenied *m = list_add(&out->n_denied, &out->denied, sizeof *m);
        cube__master__v1__network_denied__init(m);
        m->last_ms = s->denied[i].last_ms;
        m->reason = (char *)vs_drop_name(s->denied[i].reason);
        m->protocol = protocol_name(s->denied[i].proto);
        m->remote = address_text(s->denied[i].ip);
        m->remote_port = s->denied[i].port;
        m->packets = s->denied[i].packets;
    }
}

void network_reply(struct sandbox *sb, Cube__Master__V1__NetworkReply *out)
{
    struct vm *vm = sb->vm;
    struct vs_totals t;
    out->network_json = sb->spec->network_json;
    out->deny_internet = sb->spec->deny_internet;
    if (*network_state()) {
        out->away = (char *)network_state();
        return;
    }
    if (!vm || !vm->net_slot || !network_read(vm, &t)) {
        out->away = sb->state == SB_STATE(PAUSED) ? "it is paused" : "it does not run";
        return;
    }
    if (w.samples)
        vs_watch_read(w.samples);
    out->session_count = t.sessions;
    out->up_packets = t.up_packets;
    out->up_bytes = t.up_bytes;
    out->down_packets = t.down_packets;
    out->down_bytes = t.down_bytes;
    for (unsigned r = 1; r < sizeof t.drops / sizeof *t.drops; r++) {
        if (!t.drops[r])
            continue;
        Cube__Master__V1__NetworkDrops *m = list_add(&out->n_drops, &out->drops, sizeof *m);
        cube__master__v1__network_drops__init(m);
        m->reason = (char *)vs_drop_name(r);
        m->packets = t.drops[r];
    }
    add_sessions(vm, network_tap(vm), out);
    add_denied(&w.seen[vm->net_slot], out);
    network_names_each(vm->net_slot, add_name, out);
}

void network_reply_free(Cube__Master__V1__NetworkReply *out)
{
    for (size_t i = 0; i < out->n_sessions; i++) {
        free(out->sessions[i]->remote);
        free(out->sessions[i]);
    }
    for (size_t i = 0; i < out->n_drops; i++)
        free(out->drops[i]);
    for (size_t i = 0; i < out->n_denied; i++) {
        free(out->denied[i]->remote);
        free(out->denied[i]);
    }
    for (size_t i = 0; i < out->n_names; i++) {
        free(out->names[i]->name);
        free(out->names[i]->address);
        free(out->names[i]);
    }
    free(out->sessions);
    free(out->drops);
    free(out->denied);
    free(out->names);
}
