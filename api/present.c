/* Owns the JSON of answers. Invariant: a field that the SDKs require is always there; `network` and
 * `lifecycle` are absent rather than null, and a secret that the client sent (the proxy's password) never
 * comes back. */
#include "api/present.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

const char *present_state(Cube__V1__SandboxState s)
{
    switch (s) {
    case CUBE__V1__SANDBOX_STATE__CREATING:
    case CUBE__V1__SANDBOX_STATE__RUNNING:
    case CUBE__V1__SANDBOX_STATE__RESUMING:
        return "running";
    case CUBE__V1__SANDBOX_STATE__PAUSING:
    case CUBE__V1__SANDBOX_STATE__PAUSED:
        return "paused";
    default:
        return NULL;
    }
}

const char *present_state_name(Cube__V1__SandboxState s)
{
    static const char *const names[] = {"unspecified", "creating", "running", "pausing", "paused",
                                        "resuming",    "killing",  "killed",  "failed",  "lost"};
    return (unsigned)s < sizeof names / sizeof *names ? names[s] : "unspecified";
}

static void optional(struct jsonw *w, const char *key, const char *value)
{
    if (value && *value)
        jsonw_kstr(w, key, value);
}

static void or_null(struct jsonw *w, const char *key, const char *value)
{
    jsonw_kstr(w, key, value && *value ? value : NULL);
}

static void pairs(struct jsonw *w, const char *key, Cube__V1__Pair *const *list, size_t n)
{
    jsonw_key(w, key);
    jsonw_obj(w);
    for (size_t i = 0; i < n; i++)
        jsonw_kstr(w, list[i]->key, list[i]->value);
    jsonw_obj_end(w);
}

static void ktime(struct jsonw *w, const char *key, int64_t ms)
{
    jsonw_key(w, key);
    jsonw_time_ms(w, ms);
}

void present_sandbox(struct jsonw *w, const Cube__V1__Sandbox *s, const char *domain)
{
    jsonw_obj(w);
    jsonw_kstr(w, "templateID", s->spec->template_id);
    jsonw_kstr(w, "sandboxID", s->spec->sandbox_id);
    jsonw_kstr(w, "clientID", CLIENT_ID);
    jsonw_kstr(w, "envdVersion", s->envd_version);
    optional(w, "alias", s->spec->alias);
    if (s->spec->secure)
        optional(w, "envdAccessToken", s->envd_token);
    or_null(w, "trafficAccessToken", s->spec->private_traffic ? s->traffic_token : NULL);
    or_null(w, "domain", domain);
    jsonw_obj_end(w);
}

static void common(struct jsonw *w, const Cube__V1__Sandbox *s)
{
    const Cube__V1__Limits *limits = s->spec->limits;
    const char *state = present_state(s->state);
    jsonw_kstr(w, "templateID", s->spec->template_id);
    jsonw_kstr(w, "sandboxID", s->spec->sandbox_id);
    jsonw_kstr(w, "clientID", CLIENT_ID);
    optional(w, "alias", s->spec->alias);
    ktime(w, "startedAt", s->started_ms);
    ktime(w, "endAt", s->end_ms);
    jsonw_kint(w, "cpuCount", limits ? limits->vcpus : 0);
    jsonw_kint(w, "memoryMB", limits ? limits->memory_mib : 0);
    jsonw_kint(w, "diskSizeMB", limits ? limits->disk_mib : 0);
    jsonw_kstr(w, "state", state ? state : "running");
    jsonw_kstr(w, "envdVersion", s->envd_version);
    pairs(w, "metadata", s->spec->metadata, s->spec->n_metadata);
}

/* The rules of the way out as they were set last; those of the way in are the sandbox's from its create on.
 */
static void network(struct jsonw *w, const Cube__V1__SandboxSpec *spec)
{
    const char *json = spec->network_json;
    if (!json || !*json)
        return;
    json_t *net = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(net)) {
        json_decref(net);
        return;
    }
    json_object_del(json_object_get(net, "egressProxy"), "password");
    if (spec->private_traffic)
        json_object_set_new(net, "allowPublicTraffic", json_false());
    if (*spec->mask_request_host)
        json_object_set_new(net, "maskRequestHost", json_string(spec->mask_request_host));
    char *text = json_dumps(net, JSON_COMPACT);
    if (text) {
        jsonw_key(w, "network");
        jsonw_raw(w, text, strlen(text));
    }
    free(text);
    json_decref(net);
}

void present_detail(struct jsonw *w, const Cube__V1__Sandbox *s, const char *domain)
{
    jsonw_obj(w);
    common(w, s);
    if (s->spec->secure)
        optional(w, "envdAccessToken", s->envd_token);
    if (s->spec->private_traffic)
        optional(w, "trafficAccessToken", s->traffic_token);
    jsonw_kbool(w, "allowInternetAccess", !s->spec->deny_internet);
    or_null(w, "domain", domain);
    if (s->state == CUBE__V1__SANDBOX_STATE__PAUSED) {
        jsonw_kstr(w, "pauseMode", s->filesystem_only ? "filesystem" : "full");
        jsonw_kbool(w, "envdUnresponsiveAtPause", s->guest_unresponsive);
    }
    network(w, s->spec);
    jsonw_key(w, "lifecycle");
    jsonw_obj(w);
    jsonw_kbool(w, "autoResume", s->spec->auto_resume);
    jsonw_kstr(w, "onTimeout", s->spec->auto_pause ? "pause" : "kill");
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

void present_listed(struct jsonw *w, const Cube__V1__Sandbox *s)
{
    jsonw_obj(w);
    common(w, s);
    jsonw_obj_end(w);
}

void present_metric(struct jsonw *w, const Cube__Master__V1__MetricPoint *p)
{
    jsonw_obj(w);
    ktime(w, "timestamp", p->ts_ms);
    jsonw_kint(w, "timestampUnix", p->ts_ms / 1000);
    jsonw_kint(w, "cpuCount", p->cpu_count);
    jsonw_key(w, "cpuUsedPct");
    jsonw_double(w, p->cpu_used_pct, 2);
    jsonw_kint(w, "memUsed", (int64_t)p->mem_used);
    jsonw_kint(w, "memTotal", (int64_t)p->mem_total);
    jsonw_kint(w, "memCache", (int64_t)p->mem_cache);
    jsonw_kint(w, "diskUsed", (int64_t)p->disk_used);
    jsonw_kint(w, "diskTotal", (int64_t)p->disk_total);
    /* Ours: E2B's SDKs leave out what they do not know. */
    jsonw_kint(w, "networkReceivedBytes", (int64_t)p->net_rx_bytes);
    jsonw_kint(w, "networkSentBytes", (int64_t)p->net_tx_bytes);
    jsonw_kint(w, "networkReceivedPackets", (int64_t)p->net_rx_packets);
    jsonw_kint(w, "networkSentPackets", (int64_t)p->net_tx_packets);
    jsonw_obj_end(w);
}

static void strings(struct jsonw *w, const char *key, char *const *list, size_t n)
{
    jsonw_key(w, key);
    jsonw_arr(w);
    for (size_t i = 0; i < n; i++)
        jsonw_str(w, list[i]);
    jsonw_arr_end(w);
}

void present_snapshot(struct jsonw *w, const Cube__Master__V1__SnapshotReply *s)
{
    jsonw_obj(w);
    jsonw_kstr(w, "snapshotID", s->snapshot_id);
    strings(w, "names", s->names, s->n_names);
    jsonw_obj_end(w);
}

/* "aliases" are the bare names, "names" those with their namespace; a global name has none. */
static void template_names(struct jsonw *w, const Cube__Master__V1__Template *t)
{
    jsonw_key(w, "aliases");
    jsonw_arr(w);
    for (size_t i = 0; i < t->n_aliases; i++) {
        const char *slash = strchr(t->aliases[i], '/');
        jsonw_str(w, slash ? slash + 1 : t->aliases[i]);
    }
    jsonw_arr_end(w);
    strings(w, "names", t->aliases, t->n_aliases);
}

static void template_limits(struct jsonw *w, const Cube__Master__V1__Template *t)
{
    jsonw_kint(w, "cpuCount", t->limits ? t->limits->vcpus : 0);
    jsonw_kint(w, "memoryMB", t->limits ? t->limits->memory_mib : 0);
    jsonw_kint(w, "diskSizeMB", t->limits ? t->limits->disk_mib : 0);
    jsonw_kstr(w, "envdVersion", t->envd_version);
}

static void last_spawned(struct jsonw *w, const Cube__Master__V1__Template *t)
{
    jsonw_key(w, "lastSpawnedAt");
    if (t->last_spawned_ms)
        jsonw_time_ms(w, t->last_spawned_ms);
    else
        jsonw_null(w);
    jsonw_kint(w, "spawnCount", (int64_t)t->spawn_count);
}

void present_template(struct jsonw *w, const Cube__Master__V1__Template *t)
{
    jsonw_obj(w);
    jsonw_kstr(w, "templateID", t->template_id);
    jsonw_kstr(w, "buildID", t->build_id);
    template_limits(w, t);
    jsonw_kbool(w, "public", t->public_);
    template_names(w, t);
    ktime(w, "createdAt", t->created_ms);
    ktime(w, "updatedAt", t->updated_ms);
    jsonw_kstr(w, "createdBy", NULL);
    last_spawned(w, t);
    jsonw_kint(w, "buildCount", 1);
    jsonw_kstr(w, "buildStatus", t->status && *t->status ? t->status : "ready");
    jsonw_obj_end(w);
}

void present_template_builds(struct jsonw *w, const Cube__Master__V1__Template *t)
{
    jsonw_obj(w);
    jsonw_kstr(w, "templateID", t->template_id);
    jsonw_kbool(w, "public", t->public_);
    template_names(w, t);
    ktime(w, "createdAt", t->created_ms);
    ktime(w, "updatedAt", t->updated_ms);
    last_spawned(w, t);
    jsonw_key(w, "builds");
    jsonw_arr(w);
    jsonw_obj(w);
    jsonw_kstr(w, "buildID", t->build_id);
    jsonw_kstr(w, "status", t->status && *t->status ? t->status : "ready");
    ktime(w, "createdAt", t->created_ms);
    ktime(w, "updatedAt", t->updated_ms);
    ktime(w, "finishedAt", t->updated_ms);
    template_limits(w, t);
    jsonw_obj_end(w);
    jsonw_arr_end(w);
    jsonw_obj_end(w);
}
