/* The platform's endpoints. Invariant: an /init either takes effect whole or answers an error; a token, once
 * set, is only replaced by somebody who knows it, or by cube-init on the control connection. */
#include "guest/envd/platform_api.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "guest/common/sysinfo.h"
#include "guest/envd/conn.h"
#include "guest/envd/messages.h"
#include "guest/envd/state.h"
#include "guest/envd/trust.h"
#include "guest/envd/version.h"
#include "lib/base/log.h"

#define RUN_DIR "/run/e2b"

static void no_content(struct conn *c)
{
    conn_reply(c, 204, NULL, "Cache-Control: no-store\r\nX-Envd-Version: " ENVD_VERSION "\r\n", NULL, 0);
}

void api_health(struct conn *c)
{
    no_content(c);
}

void api_nothing(struct conn *c)
{
    no_content(c);
}

void api_freeze(struct conn *c)
{
    state.frozen = true;
    no_content(c);
}

void api_unfreeze(struct conn *c)
{
    state.frozen = false;
    no_content(c);
}

void api_fsfreeze(struct conn *c)
{
    sync();
    no_content(c);
}

/* RFC 3339 with optional fraction and offset; false when malformed. */
static bool parse_time(const char *s, int64_t *ns)
{
    struct tm tm = {0};
    const char *p = strptime(s, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!p)
        return false;
    int64_t frac = 0, unit = 100000000, offset = 0;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++, unit /= 10)
            frac += (*p - '0') * unit;
    if (*p == 'Z' || *p == 'z') {
        p++;
    } else if (*p == '+' || *p == '-') {
        int h, m, n = 0;
        if (sscanf(p + 1, "%2d:%2d%n", &h, &m, &n) != 2 || n != 5)
            return false;
        offset = (h * 3600 + m * 60) * (*p == '-' ? -1 : 1);
        p += 6;
    }
    *ns = ((int64_t)timegm(&tm) - offset) * 1000000000 + frac;
    return !*p;
}

/* What the sandbox's own programs read about themselves. Best effort: a read-only /run is no reason to
 * refuse. */
static void file_put(const char *name, const char *value)
{
    char path[64];
    snprintf(path, sizeof(path), RUN_DIR "/%s", name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return;
    if (write(fd, value, strlen(value)) < 0)
        log_warn("writing %s: %s", path, strerror(errno));
    close(fd);
}

static void run_files_write(void)
{
    if (!state.in_vm)
        return; /* alone on a host nothing outside the API is touched */
    mkdir(RUN_DIR, 0755);
    file_put(".E2B_SANDBOX", "true");
    file_put(".E2B_SANDBOX_ID", state.sandbox_id);
    file_put(".E2B_TEMPLATE_ID", state.template_id);
}

/* The certificates are a setting like the others: present replaces, present and empty clears, absent keeps.
 */
static int trust_apply(const struct msg_init *m, struct err *e)
{
    static unsigned char installed[crypto_generichash_BYTES];
    unsigned char now[crypto_generichash_BYTES];
    if (!m->has_ca_bundle || (!*m->ca_bundle && !state.ca_bundle))
        return 0;
    crypto_generichash(now, sizeof(now), (const unsigned char *)m->ca_bundle, strlen(m->ca_bundle), NULL, 0);
    if (state.ca_bundle && !memcmp(now, installed, sizeof(now)))
        return 0;
    mkdir(RUN_DIR, 0755);
    if (trust_install(m->ca_bundle, e) < 0)
        return -1;
    memcpy(installed, now, sizeof(now));
    state.ca_bundle = *m->ca_bundle;
    return 0;
}

/* What cannot be honoured is refused by its name, and nothing of the request takes effect. */
static const char *refused(const struct msg_init *m)
{
    if (m->mounts)
        return "volumeMounts is not supported: there is no network file system in this guest";
    if (m->hyperloop)
        return "hyperloopIP is not supported: events leave through cube-init";
    if (m->has_ca_bundle && *m->ca_bundle && !state.in_vm)
        return "caBundle is not supported outside a sandbox: this host's trust stores are left alone";
    if (m->has_ca_bundle && *m->ca_bundle && !trust_valid(m->ca_bundle))
        return "caBundle must hold PEM certificates and nothing else";
    return NULL;
}

static bool init_allowed(struct conn *c, const struct msg_init *m)
{
    if (c->trusted || !state.token)
        return true;
    return state_token_matches(http_header(&c->req->http, "x-access-token")) || state_token_matches(m->token);
}

static bool fits(const char *s, size_t cap)
{
    return strlen(s) < cap;
}

static void copy(char *out, size_t cap, const char *s)
{
    if (*s)
        snprintf(out, cap, "%s", s);
}

void api_init(struct conn *c)
{
    struct msg_init m;
    const struct buf *body = &c->req->whole;
    const char *text = body->len ? body->data : "{}";
    const char *bad =
        codec_decode(CODEC_JSON, &msg_init, text, body->len ? body->len : 2, &m, &c->req->arena);
    int64_t ns = 0;
    if (!bad && m.has_timestamp && *m.timestamp && !parse_time(m.timestamp, &ns))
        bad = "malformed timestamp";
    if (!bad &&
        (!fits(m.user, sizeof(state.default_user)) || !fits(m.workdir, sizeof(state.default_workdir)) ||
         !fits(m.sandbox_id, sizeof(state.sandbox_id)) || !fits(m.template_id, sizeof(state.template_id))))
        bad = "a value is too long";
    if (!bad)
        bad = refused(&m);
    if (bad) {
        conn_error(c, 400, "%s", bad);
        return;
    }
    if (!init_allowed(c, &m)) {
        conn_error(c, 401, "access token validation failed");
        return;
    }
    if (ns && ns <= state.init_ns) { /* a retry that was overtaken by a newer one */
        no_content(c);
        return;
    }
    struct err e = {0};
    if (trust_apply(&m, &e) < 0) {
        conn_error(c, 500, "%s", e.msg);
        return;
    }
    if ((m.has_envs && state_envs_set(&m.envs) < 0) || state_token_set(m.token) < 0) {
        conn_error(c, 500, "storing the identity: %s", strerror(errno));
        return;
    }
    if (ns)
        state.init_ns = ns;
    copy(state.default_user, sizeof(state.default_user), m.user);
    copy(state.default_workdir, sizeof(state.default_workdir), m.workdir);
    copy(state.sandbox_id, sizeof(state.sandbox_id), m.sandbox_id);
    copy(state.template_id, sizeof(state.template_id), m.template_id);
    run_files_write();
    state.ready |= *state.sandbox_id != 0; /* a rehearsal is for no sandbox */
    no_content(c);
}

static void env_write(void *arg, const char *key, const char *value)
{
    jsonw_kstr(arg, key, value);
}

void api_envs(struct conn *c)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    state_envs_each(env_write, &w);
    jsonw_obj_end(&w);
    conn_reply(c, 200, "application/json; charset=utf-8", "Cache-Control: no-store\r\n", b.data, b.len);
}

void api_metrics(struct conn *c)
{
    static struct sysinfo_figures before;
    struct sysinfo_figures now;
    sysinfo_read("/", &now);
    double total = (double)(now.cpu_total_us - before.cpu_total_us),
           busy = (double)(now.cpu_busy_us - before.cpu_busy_us);
    before = now;
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kint(&w, "ts", (int64_t)time(NULL));
    jsonw_kint(&w, "cpu_count", now.cpus);
    jsonw_key(&w, "cpu_used_pct");
    jsonw_double(&w, total > 0 ? busy * 100 / total : 0, 2);
    jsonw_kint(&w, "mem_total_mib", (int64_t)(now.mem_total >> 20));
    jsonw_kint(&w, "mem_used_mib", (int64_t)(now.mem_used >> 20));
    jsonw_kint(&w, "mem_total", (int64_t)now.mem_total);
    jsonw_kint(&w, "mem_used", (int64_t)now.mem_used);
    jsonw_kint(&w, "mem_cache", (int64_t)now.mem_cache);
    jsonw_kint(&w, "disk_used", (int64_t)now.disk_used);
    jsonw_kint(&w, "disk_total", (int64_t)now.disk_total);
    jsonw_kint(&w, "root_fallbacks", (int64_t)__atomic_load_n(&state.root_fallbacks, __ATOMIC_RELAXED));
    jsonw_obj_end(&w);
    conn_reply(c, 200, "application/json; charset=utf-8", "Cache-Control: no-store\r\n", b.data, b.len);
}
