/* cube-dns: the name service of a node's sandboxes. It forwards to the node's resolvers, keeps answers while
 * they live, refuses answers that point into ranges no sandbox may reach, and tells cube-node which addresses
 * it handed out for sandboxes that have rules by name. */
#include "lib/net/admin.h"
#include "lib/net/daemon.h"
#include "lib/net/metrics.h"
#include "node/dns/dns.h"

struct dns_config dns_config;

struct metric dns_queries = {
    .name = "cube_dns_queries_total", .help = "questions from sandboxes", .kind = METRIC_COUNTER};
struct metric dns_cache_hits = {
    .name = "cube_dns_cache_hits_total", .help = "answered from the cache", .kind = METRIC_COUNTER};
struct metric dns_limited = {.name = "cube_dns_limited_total",
                             .help =
                                 "refused: more questions per second, or at once, than a sandbox may have",
                             .kind = METRIC_COUNTER};
struct metric dns_malformed = {
    .name = "cube_dns_malformed_total", .help = "messages that are none", .kind = METRIC_COUNTER};
struct metric dns_rebinds = {
    .name = "cube_dns_denied_answers_total", .help = "answers into denied ranges", .kind = METRIC_COUNTER};
struct metric dns_failures = {
    .name = "cube_dns_failures_total", .help = "no answer from the resolvers", .kind = METRIC_COUNTER};

static const struct config_key keys[] = {
    {"listen", CONFIG_STR, offsetof(struct dns_config, listen), "", 0, 0,
     "address to bind; empty: cube-node passes the sockets that the jailer bound"},
    {"admin_listen", CONFIG_STR, offsetof(struct dns_config, admin_listen), "127.0.0.1:3144", 0, 0,
     "metrics and health"},
    {"upstreams", CONFIG_STR, offsetof(struct dns_config, upstreams), "", 0, 0,
     "resolvers, by comma; default: /etc/resolv.conf"},
    {"slot_net", CONFIG_STR, offsetof(struct dns_config, slot_net), "169.254.64.0", 0, 0,
     "sandbox slot n asks from this + n"},
    {"opened", CONFIG_STR, offsetof(struct dns_config, opened), "", 0, 0,
     "ranges the operator opened, by comma"},
    {"run_dir", CONFIG_STR, offsetof(struct dns_config, run_dir), NULL, 0, 0, "directory of sockets"},
    {"rate", CONFIG_INT, offsetof(struct dns_config, rate), "100", 1, 100000,
     "questions per second and sandbox"},
    {"log_names", CONFIG_BOOL, offsetof(struct dns_config, log_names), "true", 0, 0,
     "log which names sandboxes ask for, 20 lines per second and sandbox at most"},
    {0},
};

static bool ready(char why[128], void *data)
{
    return true;
}

static int start(struct loop *l, struct err *e)
{
    struct metric *all[] = {&dns_queries,   &dns_cache_hits, &dns_limited,
                            &dns_malformed, &dns_rebinds,    &dns_failures};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        metric_register(all[i]);
    if (dns_notify_open(l, e) < 0 || dns_resolver_open(l, e) < 0 || dns_serve_open(l, e) < 0)
        return -1;
    return admin_listen(l, dns_config.admin_listen, ready, NULL, e) < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    static const struct daemon_spec spec = {.name = "cube-dns",
                                            .section = "dns",
                                            .summary = "name service of a node's sandboxes",
                                            .keys = keys,
                                            .config = &dns_config,
                                            .start = start};
    return daemon_main(&spec, argc, argv);
}
