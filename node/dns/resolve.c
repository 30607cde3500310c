/* Owns questions in flight: rate, cache, the resolvers (c-ares) and the check of their answers. Invariants:
 * at most QUESTIONS_MAX are open, and QUESTIONS_PER_SANDBOX of one; an answer is given only when it was read
 * whole and none of its addresses lies in a denied range. */
#include "node/dns/dns.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/metrics.h"
#include "node/net/vs_ranges.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define QUESTIONS_MAX 4096
#define QUESTIONS_PER_SANDBOX 128 /* or few sandboxes with dead names would take all */
#define TRY_MS 1500
#define TRIES 3
#define TICK_MS 250
#define LOG_LINES 20 /* per second and sandbox */

struct question {
    struct dns_asker who;
    struct dns_question q;
    size_t len;
    uint8_t query[512];
};

/* An answer that waits for the node to open its addresses. */
struct waiting {
    struct dns_asker who;
    uint16_t udp_size;
    size_t len;
    uint8_t answer[DNS_MESSAGE_MAX];
};

static struct {
    struct loop *loop;
    ares_channel channel;
    int epoll; /* holds c-ares' descriptors; itself readable when one of them is ready */
    struct loop_timer tick;
    struct dns_cache *cache;
    unsigned open;
    struct {
        int64_t at_ms;
        double tokens;
        int64_t log_s; /* lines of this sandbox in this second */
        int logged;
        unsigned open;
    } * rates;
} r;

static int64_t now_s(void)
{
    return clock_boot_ms() / 1000;
}

static bool rate_passed(uint32_t slot)
{
    int64_t now = clock_boot_ms();
    double burst = (double)dns_config.rate;
    double tokens = r.rates[slot].tokens + (double)(now - r.rates[slot].at_ms) * burst / 1000;
    r.rates[slot].at_ms = now;
    r.rates[slot].tokens = tokens > burst ? burst : tokens;
    if (r.rates[slot].tokens < 1)
        return false;
    r.rates[slot].tokens -= 1;
    return true;
}

/* Who asked for what, and what came of it. A sandbox has a few lines per second, so that a flood of questions
 * fills no disk; how many were left out is in the next second's first line. */
static void note(uint32_t slot, const struct dns_question *q, const char *outcome, unsigned addresses)
{
    if (!dns_config.log_names)
        return;
    int left_out = 0;
    if (r.rates[slot].log_s != now_s()) {
        left_out = r.rates[slot].logged > LOG_LINES ? r.rates[slot].logged - LOG_LINES : 0;
        r.rates[slot].log_s = now_s();
        r.rates[slot].logged = 0;
    }
    if (r.rates[slot].logged++ >= LOG_LINES)
        return;
    if (left_out)
        log_info("slot %u asked for %s, type %u: %s, %u addresses (%d earlier questions are not in this log)",
                 slot, q->name, q->type, outcome, addresses, left_out);
    else
        log_info("slot %u asked for %s, type %u: %s, %u addresses", slot, q->name, q->type, outcome,
                 addresses);
}

static void refuse(const struct dns_asker *who, const uint8_t *p, const struct dns_question *q, uint8_t rcode)
{
    uint8_t out[512];
    size_t n = dns_refusal(p, q, rcode, out, sizeof out);
    if (n)
        dns_reply(who, out, n, q->udp_size);
}

static void on_opened(void *data)
{
    struct waiting *w = data;
    dns_reply(&w->who, w->answer, w->len, w->udp_size);
    free(w);
}

/* Gives an answer whose records were checked; for a watched sandbox only after the node has heard of its
 * addresses. */
static void give(const struct dns_asker *who, const struct dns_question *q, const struct dns_answer *a,
                 const uint8_t *p, size_t n)
{
    uint8_t out[DNS_MESSAGE_MAX];
    memcpy(out, p, n);
    out[0] = (uint8_t)(q->id >> 8);
    out[1] = (uint8_t)q->id;
    struct waiting *w;
    if (a->n_addresses == 0 || !dns_notify_watched(who->slot) || !(w = malloc(sizeof *w))) {
        dns_reply(who, out, n, q->udp_size);
        return;
    }
    w->who = *who;
    w->udp_size = q->udp_size;
    w->len = n;
    memcpy(w->answer, out, n);
    struct dns_report report = {
        .op = DNS_ANSWERED, .slot = who->slot, .ttl_s = a->ttl, .n_addresses = (uint16_t)a->n_addresses};
    memcpy(report.addresses, a->addresses, a->n_addresses * sizeof *a->addresses);
    memcpy(report.name, q->name, sizeof report.name);
    dns_notify(&report, on_opened, w);
}

static bool points_into_denied(const struct dns_answer *a, const char *name)
{
    for (size_t i = 0; i < a->n_addresses; i++) {
        if (!vs_range_denied(a->addresses[i], dns_config.opened))
            continue;
        metric_add(&dns_rebinds, 1);
        log_warn("the answer for %s points into a denied range", name);
        return true;
    }
    return false;
}

static void on_answer(void *arg, int status, int timeouts, unsigned char *p, int len)
{
    struct question *x = arg;
    struct dns_answer a;
    r.open--;
    r.rates[x->who.slot].open--;
    bool have = p && len > 0 && len <= DNS_MESSAGE_MAX &&
                (status == ARES_SUCCESS || status == ARES_ENODATA || status == ARES_ENOTFOUND);
    if (status == ARES_EDESTRUCTION) {
        free(x);
        return;
    }
    if (!have || !dns_answer_parse(p, (size_t)len, &a)) {
        note(x->who.slot, &x->q, "no answer", 0);
        metric_add(&dns_failures, 1);
        refuse(&x->who, x->query, &x->q, DNS_RCODE_SERVFAIL);
    } else if (points_into_denied(&a, x->q.name)) {
        note(x->who.slot, &x->q, "denied, it points into a range that no sandbox may reach", 0);
        refuse(&x->who, x->query, &x->q, DNS_RCODE_NXDOMAIN);
    } else {
        note(x->who.slot, &x->q, status == ARES_ENOTFOUND ? "no such name" : "answered",
             (unsigned)a.n_addresses);
        dns_cache_put(r.cache, &x->q, p, (size_t)len, a.ttl, now_s());
        give(&x->who, &x->q, &a, p, (size_t)len);
    }
    free(x);
}

static void refuse_flood(const struct dns_asker *who, const uint8_t *p, const struct dns_question *q)
{
    metric_add(&dns_limited, 1);
    note(who->slot, q, "refused, too many questions", 0);
    refuse(who, p, q, DNS_RCODE_REFUSED);
}

void dns_ask(const uint8_t *p, size_t n, const struct dns_asker *who)
{
    struct dns_question q;
    metric_add(&dns_queries, 1);
    if (n > sizeof(((struct question *)0)->query) || !dns_question_parse(p, n, &q)) {
        metric_add(&dns_malformed, 1);
        return;
    }
    if (!rate_passed(who->slot)) {
        refuse_flood(who, p, &q);
        return;
    }
    uint8_t kept[DNS_MESSAGE_MAX];
    struct dns_answer a;
    size_t have = dns_cache_get(r.cache, &q, now_s(), kept, sizeof kept);
    if (have && dns_answer_parse(kept, have, &a)) {
        metric_add(&dns_cache_hits, 1);
        note(who->slot, &q, "answered from the cache", (unsigned)a.n_addresses);
        give(who, &q, &a, kept, have);
        return;
    }
    if (r.open >= QUESTIONS_MAX || r.rates[who->slot].open >= QUESTIONS_PER_SANDBOX) {
        refuse_flood(who, p, &q);
        return;
    }
    struct question *x = malloc(sizeof *x);
    if (!x) {
        refuse(who, p, &q, DNS_RCODE_SERVFAIL);
        return;
    }
    x->who = *who;
    x->q = q;
    x->len = n;
    memcpy(x->query, p, n);
    r.open++;
    r.rates[x->who.slot].open++;
    ares_query(r.channel, q.name, q.class, q.type, on_answer, x);
}

static void on_socket(void *data, ares_socket_t fd, int readable, int writable)
{
    struct epoll_event ev = {.events = (readable ? EPOLLIN : 0) | (writable ? EPOLLOUT : 0), .data.fd = fd};
    if (!readable && !writable)
        epoll_ctl(r.epoll, EPOLL_CTL_DEL, fd, NULL);
    else if (epoll_ctl(r.epoll, EPOLL_CTL_MOD, fd, &ev) < 0)
        epoll_ctl(r.epoll, EPOLL_CTL_ADD, fd, &ev);
}

static void on_ready(void *data)
{
    struct epoll_event ev[32];
    int n = epoll_wait(r.epoll, ev, 32, 0);
    for (int i = 0; i < n; i++)
        ares_process_fd(r.channel,
                        ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? ev[i].data.fd : ARES_SOCKET_BAD,
                        ev[i].events & EPOLLOUT ? ev[i].data.fd : ARES_SOCKET_BAD);
}

/* c-ares repeats and gives up when it is called with no descriptor. */
static void on_tick(struct loop_timer *t)
{
    ares_process_fd(r.channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    loop_timer_start(r.loop, &r.tick, TICK_MS);
}

int dns_resolver_open(struct loop *l, struct err *e)
{
    struct ares_options o = {.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES | ARES_FLAG_NOCHECKRESP,
                             .timeout = TRY_MS,
                             .tries = TRIES,
                             .sock_state_cb = on_socket};
    r.loop = l;
    r.cache = dns_cache_new();
    r.rates = calloc(DNS_SLOTS, sizeof *r.rates);
    r.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!r.cache || !r.rates || r.epoll < 0)
        return err_sys(e, ERR_INTERNAL, "opening the resolver");
    if (ares_library_init(ARES_LIB_INIT_ALL) ||
        ares_init_options(&r.channel, &o,
                          ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB))
        return err_set(e, ERR_INTERNAL, "opening the resolver");
    if (dns_config.upstreams[0] && ares_set_servers_ports_csv(r.channel, dns_config.upstreams))
        return err_set(e, ERR_INVALID, "dns.upstreams '%s' is no list of addresses", dns_config.upstreams);
    r.tick.fire = on_tick;
    loop_timer_start(l, &r.tick, TICK_MS);
    return loop_watch_read(l, r.epoll, on_ready, NULL) ? 0
                                                       : err_set(e, ERR_INTERNAL, "watching the resolver");
}
