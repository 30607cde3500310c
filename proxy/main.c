/* cube-proxy: the keys of its section; everything else is start.c. */
#include "proxy/proxy.h"

#include "lib/net/daemon.h"

static const struct config_key keys[] = {
    {"listen", CONFIG_STR, offsetof(struct proxy_config, listen), "127.0.0.1:3020", 0, 0,
     "plain HTTP: sandboxes and, by IP or localhost, the API"},
    {"tls_listen", CONFIG_STR, offsetof(struct proxy_config, tls_listen), "127.0.0.1:3021", 0, 0,
     "TLS with h1 and h2; empty = off"},
    {"admin_listen", CONFIG_STR, offsetof(struct proxy_config, admin_listen), "127.0.0.1:3120", 0, 0,
     "metrics and health, loopback only"},
    {"domain", CONFIG_STR, offsetof(struct proxy_config, domain), NULL, 0, 0,
     "wildcard domain: <port>-<id>.DOMAIN and api.DOMAIN"},
    {"api", CONFIG_STR, offsetof(struct proxy_config, api), "127.0.0.1:3000", 0, 0, "cube-api"},
    {"lifecycle", CONFIG_STR, offsetof(struct proxy_config, lifecycle), "127.0.0.1:3030", 0, 0,
     "cube-lifecycle, for waking"},
    {"redis", CONFIG_STR, offsetof(struct proxy_config, redis), NULL, 0, 0, "Redis"},
    {"redis_user", CONFIG_STR, offsetof(struct proxy_config, redis_user), NULL, 0, 0, "its ACL user"},
    {"redis_password_file", CONFIG_STR, offsetof(struct proxy_config, redis_password_file), NULL, 0, 0,
     "file with its password"},
    {"run_dir", CONFIG_STR, offsetof(struct proxy_config, run_dir), NULL, 0, 0, "for the hand-over socket"},
    {"relay_link", CONFIG_STR, offsetof(struct proxy_config, relay_link), "${run_dir}/relay/link.sock", 0, 0,
     "where the relay of this host hands streams over; what it does not serve goes over TCP; empty = off"},
    {"state_dir", CONFIG_STR, offsetof(struct proxy_config, state_dir), NULL, 0, 0,
     "tls/ below it holds the local CA"},
    {"key_dir", CONFIG_STR, offsetof(struct proxy_config, key_dir), NULL, 0, 0, "role keys"},
    {"cell", CONFIG_STR, offsetof(struct proxy_config, cell), NULL, 0, 0, "cell of this cluster"},
    {"access_log", CONFIG_STR, offsetof(struct proxy_config, access_log), "", 0, 0,
     "file for JSON lines, - = stderr, empty = off"},
    {"tls_cert", CONFIG_STR, offsetof(struct proxy_config, tls_cert), "", 0, 0,
     "PEM chain; empty = a certificate of the local CA"},
    {"tls_key", CONFIG_STR, offsetof(struct proxy_config, tls_key), "", 0, 0, "its key"},
    {"ca", CONFIG_STR, offsetof(struct proxy_config, relay_ca), NULL, 0, 0,
     "CA of the cluster, for relays off loopback"},
    {"cert", CONFIG_STR, offsetof(struct proxy_config, relay_cert), NULL, 0, 0, "certificate of this proxy"},
    {"key", CONFIG_STR, offsetof(struct proxy_config, relay_key), NULL, 0, 0, "its key"},
    {"threads", CONFIG_INT, offsetof(struct proxy_config, threads), "0", 0, 64,
     "worker threads; 0 = one per core"},
    {"max_connections_per_sandbox", CONFIG_INT, offsetof(struct proxy_config, max_per_sandbox), "2500", 1,
     1000000, "requests in flight, of the process"},
    {"max_connections_per_client", CONFIG_INT, offsetof(struct proxy_config, max_per_client), "20000", 1,
     1000000, "connections of one address, of the process"},
    {"head_timeout", CONFIG_MS, offsetof(struct proxy_config, head_timeout_ms), "30s", 1, 86400000,
     "first to last byte of a request head, TLS handshake"},
    {"body_timeout", CONFIG_MS, offsetof(struct proxy_config, body_timeout_ms), "620s", 0, 86400000,
     "how long in all a request's body may keep a service waiting that would take it; 0 = no bound"},
    {"body_min_rate", CONFIG_INT, offsetof(struct proxy_config, body_min_rate), "500", 1, 1073741824,
     "bytes of a body that allow it a second more"},
    {"keepalive_timeout", CONFIG_MS, offsetof(struct proxy_config, keepalive_timeout_ms), "620s", 1, 86400000,
     "idle client connection"},
    {"idle_timeout", CONFIG_MS, offsetof(struct proxy_config, idle_timeout_ms), "1h", 1, 86400000,
     "open stream without a byte"},
    {"connect_timeout", CONFIG_MS, offsetof(struct proxy_config, connect_timeout_ms), "10s", 1, 86400000,
     "relay and guest"},
    {"wake_timeout", CONFIG_MS, offsetof(struct proxy_config, wake_timeout_ms), "60s", 1, 86400000,
     "resume of a paused sandbox"},
    {"stream_buffer", CONFIG_INT, offsetof(struct proxy_config, stream_buffer), "4194304", 0, 1073741824,
     "bytes that the kernel may hold per stream and direction; 0 = its own maximum"},
    {"max_buffered", CONFIG_INT, offsetof(struct proxy_config, max_buffered), "268435456", 1048576,
     1099511627776, "bytes that may wait in the process; above it the connections that hold most are reset"},
    {"drain_timeout", CONFIG_MS, offsetof(struct proxy_config, drain_timeout_ms), "10s", 1, 86400000,
     "SIGTERM: open streams get this long"},
    {0},
};

static struct proxy proxy;

static int start(struct loop *l, struct err *e)
{
    return proxy_start(&proxy, l, e);
}

static void drain(void)
{
    proxy_stop(&proxy);
}

int main(int argc, char **argv)
{
    static const struct daemon_spec spec = {
        .name = "cube-proxy",
        .section = "proxy",
        .summary = "ingress of the sandboxes",
        .description = "Routes each request to a port of a sandbox, by Host, headers or path, or to the API; "
                       "HTTP/1.1 and HTTP/2, plain and TLS.",
        .keys = keys,
        .config = &proxy.cfg,
        .start = start,
        .drain = drain};
    stats_init();
    return daemon_main(&spec, argc, argv);
}
