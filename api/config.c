/* Configuration of cube-api: its keys, and the operator's token, of which only the digest is kept. */
#include "api/config.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define KEY(field) offsetof(struct settings, field)
const struct config_key api_keys[] = {
    {"listen", CONFIG_STR, KEY(api.listen), "127.0.0.1:3000", 0, 0, "address of the API"},
    {"admin_listen", CONFIG_STR, KEY(admin_listen), "127.0.0.1:3100", 0, 0,
     "address of /metrics, /healthz, /readyz"},
    {"master", CONFIG_STR, KEY(api.master), "discover", 0, 0,
     "addresses of masters, or \"discover\" to find them in Redis"},
    {"redis", CONFIG_STR, KEY(cell.redis), NULL, 0, 0, "for discovery, and for limits over all instances"},
    {"redis_user", CONFIG_STR, KEY(cell.redis_user), NULL, 0, 0, "ACL user of Redis"},
    {"redis_password_file", CONFIG_STR, KEY(cell.redis_password_file), NULL, 0, 0, "file with its password"},
    {"cell", CONFIG_STR, KEY(cell.cell), NULL, 0, 0, "character of this cell"},
    {"domain", CONFIG_STR, KEY(api.domain), NULL, 0, 0, "domain of the ingress, or nothing"},
    {"key_dir", CONFIG_STR, KEY(key_dir), NULL, 0, 0, "directory of the role keys"},
    {"ca", CONFIG_STR, KEY(ca), NULL, 0, 0, "the cluster's CA; with cert and key, TLS to the masters"},
    {"cert", CONFIG_STR, KEY(cert), NULL, 0, 0, "this program's certificate"},
    {"key", CONFIG_STR, KEY(key), NULL, 0, 0, "and its key"},
    {"admin_token_file", CONFIG_STR, KEY(admin_token_file), "${key_dir}/admin_token", 0, 0,
     "the operator's token"},
    {"cors_origin", CONFIG_STR, KEY(api.cors_origin), "*", 0, 0,
     "origin that browsers may call from, or nothing"},
    {"threads", CONFIG_INT, KEY(api.threads), "1", 1, MAX_THREADS, "event loops"},
    {"max_body", CONFIG_SIZE, KEY(api.max_body), "16M", 1, BODY_MAX, "largest request body"},
    {"max_connections", CONFIG_INT, KEY(api.max_connections), "20000", 1, 1000000,
     "client connections per thread"},
    {"key_ttl", CONFIG_MS, KEY(api.key_ttl_ms), "5s", 1, 3600000, "how long a checked API key is believed"},
    {"incomplete_timeout", CONFIG_MS, KEY(api.incomplete_ms), "30s", 100, 3600000,
     "for a request to become complete"},
    {"master_timeout", CONFIG_MS, KEY(api.master_timeout_ms), "70s", 100, 3600000,
     "for an answer of a master"},
    {"master_wait", CONFIG_MS, KEY(api.master_wait_ms), "5s", 0, 600000,
     "for a master that is being restarted"},
    {"rate_limit", CONFIG_INT, KEY(api.rate_limit), "20000", 0, 1000000000,
     "requests of a team per window, over all instances; 0 = no limit"},
    {"rate_window", CONFIG_MS, KEY(api.rate_window_ms), "30s", 1000, 3600000, "window of the rate limits"},
    {"wrong_keys", CONFIG_INT, KEY(api.wrong_keys), "1000", 0, 1000000000,
     "unknown API keys of an address per window, then 429; 0 = no limit"},
    {"auth_url", CONFIG_STR, KEY(auth_url), "", 0, 0,
     "http:// address asked about keys that the platform does not know, or nothing"},
    {"auth_timeout", CONFIG_MS, KEY(api.auth_timeout_ms), "3s", 10, 60000, "for its answer"},
    {0},
};

int api_config_token(struct settings *s, struct err *e)
{
    char text[129] = "";
    _cleanup_fclose_ FILE *f = fopen(s->admin_token_file, "re");
    if (!f) {
        log_warn("no operator's token in %s: %m; only admin API keys may use the operator's routes",
                 s->admin_token_file);
        return 0;
    }
    if (!fgets(text, sizeof text, f))
        text[0] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    if (strlen(text) < 32)
        return err_set(e, ERR_INVALID, "reading %s: shorter than 32 characters", s->admin_token_file);
    sha256(text, strlen(text), s->api.admin_sha256);
    explicit_bzero(text, sizeof text);
    s->api.has_admin_token = true;
    return 0;
}
