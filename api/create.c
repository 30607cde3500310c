/* Owns the validation of create bodies. Invariant: every field of the contract is either carried into the
 * spec, has its default value, or is refused by name; fields outside the contract are only recorded. */
#include "api/create.h"

#include "api/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds of ours, so that a record stays small in Redis; the contract names none. */
#define MAX_MAP_ENTRIES 1024
#define MAX_METADATA_BYTES (64 << 10)
#define MAX_ENV_BYTES (256 << 10)
#define MAX_IDLE_S (30 * 86400)

int timeout_check(int64_t seconds, int64_t max_timeout_ms, struct err *e)
{
    if (seconds <= 0)
        return err_set(e, ERR_INVALID, "Timeout must be greater than 0");
    if (max_timeout_ms > 0 && seconds > max_timeout_ms / 1000) {
        if (max_timeout_ms % 3600000 == 0)
            return err_set(e, ERR_INVALID, "Timeout cannot be greater than %lld hours",
                           (long long)(max_timeout_ms / 3600000));
        return err_set(e, ERR_INVALID, "Timeout cannot be greater than %lld seconds",
                       (long long)(max_timeout_ms / 1000));
    }
    return 0;
}

static int check_map(const json_t *map, const char *key, size_t max_bytes, bool env, struct err *e)
{
    size_t bytes = 0;
    const char *name;
    json_t *v;
    if (json_object_size(map) > MAX_MAP_ENTRIES)
        return err_set(e, ERR_INVALID, "validation error: '%s' has more than %d entries", key,
                       MAX_MAP_ENTRIES);
    json_object_foreach((json_t *)map, name, v)
    {
        if (!json_is_string(v))
            return err_set(e, ERR_INVALID, "validation error: '%s.%.64s' must be a string", key, name);
        if (!*name || (env && strchr(name, '=')))
            return err_set(e, ERR_INVALID, "validation error: '%s' has an illegal name: '%.64s'", key, name);
        bytes += strlen(name) + json_string_length(v);
    }
    if (bytes > max_bytes)
        return err_set(e, ERR_INVALID, "validation error: '%s' is larger than %zu bytes", key, max_bytes);
    return 0;
}

/* Puts a checked map into the spec's list of pairs, from pair number `at` on. */
static size_t fill_pairs(struct create *c, const json_t *map, size_t at)
{
    const char *name;
    json_t *v;
    size_t n = 0;
    json_object_foreach((json_t *)map, name, v)
    {
        Cube__V1__Pair *p = &c->pairs[at + n];
        cube__v1__pair__init(p);
        p->key = (char *)name;
        p->value = (char *)json_string_value(v);
        c->pair_refs[at + n] = p;
        n++;
    }
    return n;
}

static int take_maps(struct create *c, const json_t *body, struct err *e)
{
    const json_t *metadata = NULL, *envs = NULL;
    if (body_obj(body, "", "metadata", &metadata, e) < 0 || body_obj(body, "", "envVars", &envs, e) < 0 ||
        check_map(metadata, "metadata", MAX_METADATA_BYTES, false, e) < 0 ||
        check_map(envs, "envVars", MAX_ENV_BYTES, true, e) < 0)
        return -1;
    size_t n = json_object_size(metadata) + json_object_size(envs);
    if (n == 0)
        return 0;
    c->pairs = calloc(n, sizeof *c->pairs);
    c->pair_refs = calloc(n, sizeof(Cube__V1__Pair *));
    if (!c->pairs || !c->pair_refs)
        return err_set(e, ERR_INTERNAL, "reading the create body: out of memory");
    c->spec.n_metadata = fill_pairs(c, metadata, 0);
    c->spec.metadata = c->pair_refs;
    c->spec.n_envs = fill_pairs(c, envs, c->spec.n_metadata);
    c->spec.envs = c->pair_refs + c->spec.n_metadata;
    const char *idle = json_string_value(json_object_get(metadata, "cube.idle"));
    if (idle) {
        size_t digits = strspn(idle, "0123456789");
        long s = digits >= 1 && digits <= 7 && !idle[digits] ? atol(idle) : 0;
        if (s < 1 || s > MAX_IDLE_S)
            return err_set(e, ERR_INVALID, "metadata 'cube.idle' must be a number of seconds from 1 to %d",
                           MAX_IDLE_S);
        c->spec.idle_ms = s * 1000;
    }
    return 0;
}

static int take_lifecycle(struct create *c, const json_t *body, bool v2, int64_t max_timeout_ms,
                          struct err *e)
{
    int64_t timeout = 0;
    bool has_timeout = false, auto_pause = false, memory = true, resume = false;
    const json_t *auto_resume = NULL;
    if (body_int(body, "", "timeout", INT32_MIN, INT32_MAX, &timeout, &has_timeout, e) < 0 ||
        body_bool(body, "", "autoPause", &auto_pause, NULL, e) < 0 ||
        body_bool(body, "", "autoPauseMemory", &memory, NULL, e) < 0 ||
        body_obj(body, "", "autoResume", &auto_resume, e) < 0)
        return -1;
    if (auto_resume) {
        static const char *const known[] = {"enabled", NULL};
        if (body_bool(auto_resume, "autoResume", "enabled", &resume, NULL, e) < 0)
            return -1;
        body_unknown(auto_resume, "autoResume", known, &c->unknown);
    }
    if (has_timeout && timeout_check(timeout, max_timeout_ms, e) < 0)
        return -1;
    if (!memory && !auto_pause)
        return err_set(e, ERR_INVALID, "'autoPauseMemory: false' is only valid with 'autoPause: true'");
    if (!memory && resume)
        return err_set(e, ERR_INVALID,
                       "'autoPauseMemory: false' is incompatible with 'autoResume': a filesystem-only pause "
                       "cannot be resumed by traffic");
    c->spec.timeout_ms = has_timeout ? timeout * 1000 : v2 ? CREATE_TIMEOUT_V2_MS : CREATE_TIMEOUT_V1_MS;
    if (!has_timeout && max_timeout_ms > 0 && c->spec.timeout_ms > max_timeout_ms)
        c->spec.timeout_ms = max_timeout_ms;
    c->spec.auto_pause = auto_pause;
    c->spec.auto_pause_memory = memory;
    c->spec.auto_resume = resume;
    return 0;
}

static int take_network(struct create *c, const json_t *body, struct err *e)
{
    bool internet = true;
    const json_t *net = NULL;
    struct network parsed = {.mask_request_host = ""};
    if (body_bool(body, "", "allow_internet_access", &internet, NULL, e) < 0 ||
        body_obj(body, "", "network", &net, e) < 0)
        return -1;
    if (net &&
        network_parse(net, "network", false, c->spec.secure, &network_supported, &parsed, &c->unknown, e) < 0)
        return -1;
    c->spec.deny_internet = !internet || parsed.deny_internet;
    c->spec.private_traffic = parsed.private_traffic;
    c->spec.mask_request_host = (char *)parsed.mask_request_host;
    if (json_object_size(net) > 0) {
        c->network_json = network_text(net, false);
        if (!c->network_json)
            return err_set(e, ERR_INTERNAL, "reading the create body: out of memory");
        c->spec.network_json = c->network_json;
    }
    return 0;
}

/* Options of the contract that wait for a later part: their shape is checked, then any value but "nothing" is
 * refused by name. */
static int refuse_later_parts(struct create *c, const json_t *body, struct err *e)
{
    const json_t *mcp = NULL, *iam = NULL, *tokens = NULL, *mounts = NULL;
    if (body_obj(body, "", "mcp", &mcp, e) < 0 || body_obj(body, "", "iam", &iam, e) < 0 ||
        body_arr(body, "", "volumeMounts", 64, &mounts, e) < 0)
        return -1;
    if (iam) {
        static const char *const known[] = {"tokens", NULL};
        if (body_obj(iam, "iam", "tokens", &tokens, e) < 0)
            return -1;
        body_unknown(iam, "iam", known, &c->unknown);
    }
    const char *name = json_object_size(tokens) > 0  ? "iam.tokens"
                       : json_array_size(mounts) > 0 ? "volumeMounts"
                                                     : NULL;
    if (!name)
        return 0;
    err_set(e, ERR_INVALID, "'%s' is not supported by this version with a value other than its default",
            name);
    return err_remedy(e, "leave the option out");
}

int create_parse(const json_t *body, bool v2, int64_t max_timeout_ms, struct create *out, struct err *e)
{
    static const char *const known_v1[] = {"templateID", "timeout", "autoPause",    "autoPauseMemory",
                                           "autoResume", "secure",  "network",      "allow_internet_access",
                                           "metadata",   "envVars", "volumeMounts", "mcp",
                                           "iam",        NULL};
    static const char *const known_v2[] = {"templateID",
                                           "timeout",
                                           "autoPause",
                                           "autoPauseMemory",
                                           "autoResume",
                                           "network",
                                           "allow_internet_access",
                                           "metadata",
                                           "envVars",
                                           "volumeMounts",
                                           "mcp",
                                           "iam",
                                           NULL};
    memset(out, 0, sizeof *out);
    cube__v1__sandbox_spec__init(&out->spec);
    const char *ref = NULL;
    bool secure = v2;
    if (body_str(body, "", "templateID", 1024, &ref, e) < 0)
        return -1;
    if (!ref)
        return err_set(e, ERR_INVALID, "validation error: property 'templateID' is missing");
    if (template_ref_parse(ref, out->template_ref, e) < 0)
        return -1;
    if (!v2 && body_bool(body, "", "secure", &secure, NULL, e) < 0)
        return -1;
    out->spec.template_id = out->template_ref;
    out->spec.secure = secure;
    if (take_lifecycle(out, body, v2, max_timeout_ms, e) < 0 || take_maps(out, body, e) < 0 ||
        take_network(out, body, e) < 0 || refuse_later_parts(out, body, e) < 0)
        return -1;
    body_unknown(body, "", v2 ? known_v2 : known_v1, &out->unknown);
    return 0;
}

void create_free(struct create *c)
{
    free(c->network_json);
    free(c->pairs);
    free(c->pair_refs);
    c->network_json = NULL;
    c->pairs = NULL;
    c->pair_refs = NULL;
}
