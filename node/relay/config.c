/* Configuration of cube-relay: the section `relay` of cube.yaml. */
#include "node/relay/relay.h"

#include <stddef.h>

const struct config_key relay_keys[] = {
    {"listen", CONFIG_STR, offsetof(struct relay_config, listen), "127.0.0.1:3041", 0, 0,
     "where proxies connect"},
    {"address", CONFIG_STR, offsetof(struct relay_config, address), "${listen}", 0, 0,
     "what routes name for this relay (node.relay_address): proxies of this host take these over "
     "<run_dir>/relay/link.sock"},
    {"admin_listen", CONFIG_STR, offsetof(struct relay_config, admin_listen), "127.0.0.1:3141", 0, 0,
     "metrics, loopback only"},
    {"run_dir", CONFIG_STR, offsetof(struct relay_config, run_dir), NULL, 0, 0,
     "where cube-node puts sb/<id>/<gen>"},
    {"log_level", CONFIG_STR, offsetof(struct relay_config, log_level), "info", 0, 0,
     "debug, info, warn or error"},
    {"ca", CONFIG_STR, offsetof(struct relay_config, tls_ca), NULL, 0, 0,
     "CA of the cluster; required off loopback"},
    {"cert", CONFIG_STR, offsetof(struct relay_config, tls_cert), NULL, 0, 0, "certificate of this node"},
    {"key", CONFIG_STR, offsetof(struct relay_config, tls_key), NULL, 0, 0, "its key"},
    {"handshake_timeout", CONFIG_MS, offsetof(struct relay_config, handshake_timeout_ms), "10s", 10, 600000,
     "preface and guest connect"},
    {"max_streams_per_sandbox", CONFIG_INT, offsetof(struct relay_config, max_streams_per_sandbox), "4096", 1,
     1000000, "open streams"},
    {"max_streams", CONFIG_INT, offsetof(struct relay_config, max_streams), "200000", 1, 10000000,
     "open streams of all sandboxes"},
    {"stream_buffer", CONFIG_INT, offsetof(struct relay_config, stream_buffer), "4194304", 0, 1073741824,
     "bytes that the kernel may hold per stream and direction; 0 = its own maximum"},
    {"proxy_uid", CONFIG_INT, offsetof(struct relay_config, proxy_uid), "59007", 0, 4294967294,
     "user of this host's proxies: links of others than it, root and the relay's own are few"},
    {0},
};
