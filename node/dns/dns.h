/* Shared by the files of cube-dns. */
#pragma once

#include "lib/net/loop.h"
#include "node/dns/cache.h"
#include "node/dns/message.h"
#include "node/dns/report.h"

#include <ares.h>
#include <netinet/in.h>

#define DNS_SLOTS 16384
#define DNS_MESSAGE_MAX 4096

/** One asker: where its answer goes. UDP: `from`; TCP: the connection, by number because it may end
 * meanwhile. */
struct dns_asker {
    struct sockaddr_in from;
    uint64_t tcp; /* 0 = UDP */
    uint32_t slot;
};

struct dns_config {
    char *listen, *admin_listen, *upstreams, *slot_net, *opened;
    char *run_dir;
    int64_t rate;
    bool log_names;
};

extern struct dns_config dns_config;
extern struct metric dns_queries, dns_cache_hits, dns_limited, dns_malformed, dns_rebinds, dns_failures;

/** A question from a sandbox; answers now or later. */
void dns_ask(const uint8_t *p, size_t n, const struct dns_asker *who);
int dns_resolver_open(struct loop *l, struct err *e);

/** Sends an answer to the asker, cut to what it takes. */
void dns_reply(const struct dns_asker *who, const uint8_t *p, size_t n, uint16_t udp_size);
int dns_serve_open(struct loop *l, struct err *e);
/** Serves on these sockets from now on; takes them over. */
int dns_serve_sockets(int udp, int tcp, struct err *e);

/** The node's side: whether answers for this sandbox must wait, and the report itself. `done` is called once.
 */
int dns_notify_open(struct loop *l, struct err *e);
bool dns_notify_watched(uint32_t slot);
void dns_notify(const struct dns_report *r, void (*done)(void *data), void *data);
