/* Owns the validation of network options (contracts/e2b.md §1.4, §9.2). Invariant: an option passes only when
 * it is legal and either the nodes enforce it or it asks for nothing; a policy that nobody enforces is never
 * accepted silently. */
#include "api/network.h"

#include "api/names.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LIST 1024 /* entries of allowOut and denyOut each */
#define MAX_RULES 10
#define MAX_HEADERS 20
#define ENVD_PORT 49983

const struct network_support network_supported = {.lists = true, .domains = true};

static int unsupported(struct err *e, const char *path, const char *key)
{
    err_set(e, ERR_INVALID, "'%s%s%s' is not supported by this version with a value other than its default",
            path, *path ? "." : "", key);
    return err_remedy(e, "leave the option out");
}

static int check_out_list(const json_t *list, const char *path, const char *key, bool domains,
                          bool *has_domain, bool *has_all, struct err *e)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)list, i, v)
    {
        const char *s = json_string_value(v);
        if (!s)
            return err_set(e, ERR_INVALID, "validation error: '%s%s%s[%zu]' must be a string", path,
                           *path ? "." : "", key, i);
        if (name_is_ip_or_cidr(s)) {
            if (strcmp(s, "0.0.0.0/0") == 0)
                *has_all = true;
            continue;
        }
        if (!domains || !name_is_domain(s, true))
            return err_set(e, ERR_INVALID, "validation error: '%s%s%s' has an entry that is no %s: %.64s",
                           path, *path ? "." : "", key,
                           domains ? "CIDR block, address or domain" : "CIDR block or address", s);
        *has_domain = true;
    }
    return 0;
}

static int check_egress_proxy(const json_t *net, const char *path, bool *wanted, struct unknown *u,
                              struct err *e)
{
    const json_t *proxy = NULL, *tls = NULL;
    if (body_obj(net, path, "egressProxy", &proxy, e) < 0)
        return -1;
    if (!proxy)
        return 0;
    *wanted = true;
    const char *address = NULL, *text = NULL;
    if (body_str(proxy, "network.egressProxy", "address", 255, &address, e) < 0 ||
        body_str(proxy, "network.egressProxy", "username", 255, &text, e) < 0 ||
        body_str(proxy, "network.egressProxy", "password", 255, &text, e) < 0 ||
        body_obj(proxy, "network.egressProxy", "tls", &tls, e) < 0)
        return -1;
    const char *colon = address ? strrchr(address, ':') : NULL;
    if (!colon || colon == address || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5 || atoi(colon + 1) < 1 || atoi(colon + 1) > 65535)
        return err_set(e, ERR_INVALID, "validation error: 'network.egressProxy.address' must be host:port");
    static const char *const known[] = {"address", "username", "password", "tls", NULL};
    body_unknown(proxy, "network.egressProxy", known, u);
    return 0;
}

static int check_transform(const char *domain, const json_t *rule, struct unknown *u, struct err *e)
{
    const json_t *transform = NULL, *headers = NULL;
    if (body_obj(rule, "network.rules", "transform", &transform, e) < 0)
        return -1;
    static const char *const known_rule[] = {"transform", NULL};
    body_unknown(rule, "network.rules", known_rule, u);
    if (!transform)
        return 0;
    if (body_obj(transform, "network.rules.transform", "headers", &headers, e) < 0)
        return -1;
    static const char *const known[] = {"headers", NULL};
    body_unknown(transform, "network.rules.transform", known, u);
    if (json_object_size(headers) > MAX_HEADERS)
        return err_set(e, ERR_INVALID, "validation error: the rule of '%.64s' sets more than %d headers",
                       domain, MAX_HEADERS);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)headers, name, value)
    {
        if (!name_is_token(name, 64))
            return err_set(e, ERR_INVALID, "validation error: the rule of '%.64s' has an illegal header name",
                           domain);
        const char *s = json_string_value(value);
        if (!s || strlen(s) > 2048 || strpbrk(s, "\r\n"))
            return err_set(e, ERR_INVALID,
                           "validation error: header '%s' of '%.64s' must be a string of at most 2048 bytes "
                           "without line breaks",
                           name, domain);
    }
    return 0;
}

static int check_rules(const json_t *net, const char *path, bool *wanted, struct unknown *u, struct err *e)
{
    const json_t *rules = NULL;
    if (body_obj(net, path, "rules", &rules, e) < 0)
        return -1;
    if (json_object_size(rules) > MAX_RULES)
        return err_set(e, ERR_INVALID, "validation error: 'network.rules' names more than %d domains",
                       MAX_RULES);
    const char *domain;
    json_t *list;
    json_object_foreach((json_t *)rules, domain, list)
    {
        if (!name_is_domain(domain, true))
            return err_set(e, ERR_INVALID, "validation error: 'network.rules' names no domain: %.64s",
                           domain);
        if (!json_is_array(list) || json_array_size(list) > 1)
            return err_set(e, ERR_INVALID,
                           "validation error: 'network.rules.%.64s' must be an array of at most one rule",
                           domain);
        const json_t *rule = json_array_get(list, 0);
        if (rule && !json_is_object(rule))
            return err_set(e, ERR_INVALID, "validation error: 'network.rules.%.64s[0]' must be an object",
                           domain);
        if (rule && check_transform(domain, rule, u, e) < 0)
            return -1;
        *wanted = *wanted || rule;
    }
    return 0;
}

static int check_dns(const json_t *net, const char *path, bool *wanted, struct err *e)
{
    const json_t *list = NULL;
    if (body_arr(net, path, "dnsServers", 10, &list, e) < 0)
        return -1;
    size_t i;
    json_t *v;
    json_array_foreach(
        (json_t *)list, i,
        v) if (!json_is_string(v) ||
               !name_is_ipv4(json_string_value(
                   v))) return err_set(e, ERR_INVALID,
                                       "validation error: 'network.dnsServers' must hold IPv4 addresses");
    *wanted = list != NULL; /* an empty list means "no DNS", which is not the default */
    return 0;
}

static int check_https_ports(const json_t *net, const char *path, bool *wanted, struct err *e)
{
    const json_t *list = NULL;
    if (body_arr(net, path, "httpsPorts", 64, &list, e) < 0)
        return -1;
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)list, i, v)
    {
        json_int_t port = json_is_integer(v) ? json_integer_value(v) : 0;
        if (port < 1 || port > 65535 || port == ENVD_PORT)
            return err_set(
                e, ERR_INVALID,
                "validation error: 'network.httpsPorts' must hold ports from 1 to 65535 other than %d",
                ENVD_PORT);
    }
    *wanted = json_array_size(list) > 0;
    return 0;
}

static int check_ingress(const json_t *net, const char *path, bool secured, const struct network_support *can,
                         struct network *out, struct err *e)
{
    bool public_traffic = true, ports = false;
    if (body_bool(net, path, "allowPublicTraffic", &public_traffic, NULL, e) < 0 ||
        body_str(net, path, "maskRequestHost", 255, &out->mask_request_host, e) < 0 ||
        check_https_ports(net, path, &ports, e) < 0)
        return -1;
    if (!public_traffic && !secured)
        return err_set(e, ERR_INVALID,
                       "'network.allowPublicTraffic: false' needs a secured sandbox ('secure: true')");
    /* What cube-proxy writes into a Host line; it refuses a route with anything else. */
    static const char host_chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]${}";
    if (out->mask_request_host[strspn(out->mask_request_host, host_chars)])
        return err_set(
            e, ERR_INVALID,
            "validation error: 'network.maskRequestHost' must be a host, with ${PORT} for the port");
    if (ports && !can->https_ports)
        return unsupported(e, path, "httpsPorts");
    out->private_traffic = !public_traffic;
    return 0;
}

/* Of the options above, in one list for both forms. */
static const char *const update_keys[] = {"allowOut", "denyOut",    "egressProxy",
                                          "rules",    "dnsServers", "allow_internet_access",
                                          NULL},
                         *const create_keys[] = {"allowOut",        "denyOut",    "egressProxy",
                                                 "rules",           "dnsServers", "allowPublicTraffic",
                                                 "maskRequestHost", "httpsPorts", NULL};

char *network_text(const json_t *net, bool update)
{
    json_t *known = json_object();
    for (const char *const *key = update ? update_keys : create_keys; *key; key++) {
        json_t *v = json_object_get(net, *key);
        if (v && strcmp(*key, "allow_internet_access") != 0) /* travels as a field of its own */
            json_object_set(known, *key, v);
    }
    char *text = json_dumps(known, JSON_COMPACT);
    json_decref(known);
    return text;
}

int network_parse(const json_t *net, const char *path, bool update, bool secured,
                  const struct network_support *can, struct network *out, struct unknown *u, struct err *e)
{
    *out = (struct network){.mask_request_host = ""};
    const json_t *allow = NULL, *deny = NULL;
    bool allow_domain = false, allow_all = false, deny_domain = false, deny_all = false;
    bool proxy = false, rules = false, dns = false;
    if (body_arr(net, path, "allowOut", MAX_LIST, &allow, e) < 0 ||
        body_arr(net, path, "denyOut", MAX_LIST, &deny, e) < 0 ||
        check_out_list(allow, path, "allowOut", true, &allow_domain, &allow_all, e) < 0 ||
        check_out_list(deny, path, "denyOut", false, &deny_domain, &deny_all, e) < 0 ||
        check_egress_proxy(net, path, &proxy, u, e) < 0 || check_rules(net, path, &rules, u, e) < 0 ||
        check_dns(net, path, &dns, e) < 0)
        return -1;
    if (allow_domain && !deny_all)
        return err_set(
            e, ERR_INVALID,
            "When specifying allowed domains in allow out, you must include '0.0.0.0/0' in deny out");
    if (!update && check_ingress(net, path, secured, can, out, e) < 0)
        return -1;
    if (proxy && !can->egress_proxy)
        return unsupported(e, path, "egressProxy");
    if (dns && !can->dns_servers)
        return unsupported(e, path, "dnsServers");
    if (rules && !can->rules)
        return unsupported(e, path, "rules");
    if (allow_domain && !can->domains)
        return unsupported(e, path, "allowOut");
    if (!can->lists && json_array_size(allow) > 0)
        return unsupported(e, path, "allowOut");
    if (!can->lists && json_array_size(deny) > 0 && !deny_all)
        return unsupported(e, path, "denyOut");
    out->deny_internet = deny_all && json_array_size(allow) == 0;
    body_unknown(net, path, update ? update_keys : create_keys, u);
    return 0;
}
