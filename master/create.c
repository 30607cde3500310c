/* Owns the way from a wish to a running sandbox: template, candidates, reservation, start on the node.
 * Invariant: the record is committed (`creating`, with an owner) before any node hears of the sandbox, and
 * each attempt on another node has a larger generation, so that whatever an earlier attempt left behind can
 * never be taken for the sandbox. */
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/ops.h"
#include "master/stats.h"
#include "proto/node.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES 3    /* asked of the scheduler at once */
#define ATTEMPTS_MAX 6  /* starts on nodes */
#define REFUSALS_MAX 32 /* reservations that did not fit */

struct placement {
    struct master *m;
    Cube__V1__SandboxSpec *spec;
    const Cube__Master__V1__Template *tpl;
    const char *trace;
    struct sched_ask ask;
    bool *excluded;
    size_t excluded_n;
    struct record rec; /* what is committed; state NONE before the first commit */
    int attempts, refusals;
    bool refreshed;   /* the fleet was read anew before giving up */
    struct err last;  /* why the last candidate was not it */
    char lacking[24]; /* the resource that the last full node lacked */
    char idem[320], idem_value[96];
    char idem_hit[160]; /* what an earlier request with the same key made */
};

static int ask_fill(struct placement *p, struct err *e)
{
    const Cube__V1__SandboxSpec *s = p->spec;
    p->ask = (struct sched_ask){
        .memory = ops_initial_memory(p->m, s->limits),
        .nominal = s->limits->memory_mib,
        .cpu = (int64_t)s->limits->vcpus * 1000,
        .template_hash = sched_hash(s->template_id),
        .team_hash = sched_hash(s->team_id),
    };
    for (size_t i = 0; i < s->n_metadata; i++) {
        if (strncmp(s->metadata[i]->key, "cube.label.", 11) != 0)
            continue;
        if (p->ask.label_count == SCHED_LABELS)
            return err_set(e, ERR_INVALID, "more than %d cube.label.* entries in the metadata", SCHED_LABELS);
        char pair[512];
        snprintf(pair, sizeof pair, "%s=%s", s->metadata[i]->key + 11, s->metadata[i]->value);
        p->ask.labels[p->ask.label_count++] = sched_hash(pair);
    }
    return 0;
}

/* Commits `creating` on a candidate: the first time as a new record, later as a move of the existing one. */
static enum commit_outcome reserve(struct placement *p, const struct node *n,
                                   const struct sched_choice *choice, struct commit_result *res,
                                   struct err *e)
{
    bool fresh = p->rec.state == STATE_NONE;
    uint64_t gen = p->rec.gen + 1;
    struct sched_policy policy = fleet_policy(p->m);
    _cleanup_commit_ struct commit c;
    commit_begin(&c, p->m, p->spec->sandbox_id, fresh ? REV_NEW : p->rec.rev, STATE_CREATING, p->trace);
    commit_gen(&c, gen);
    commit_own(&c);
    commit_reserve(&c, p->ask.memory, &policy);
    commit_set(&c, "node", n->id);
    if (fresh) {
        commit_set_int(&c, "started", p->m->now_ms());
        commit_spec(&c, p->spec);
        if (p->idem[0]) {
            commit_opt(&c, "idem", p->idem);
            commit_opt(&c, "idem_value", p->idem_value);
        }
        commit_event(&c, "state", "creating from template %s", p->spec->template_id);
    }
    commit_event(&c, "place", "node %s chosen (score %" PRId64 ", template %s, attempt %d)", n->id,
                 choice->score, choice->template_local ? "local" : "not local", p->attempts + 1);
    if (commit_run(&c, res, e) == COMMIT_OK) {
        snprintf(p->rec.id, sizeof p->rec.id, "%s", p->spec->sandbox_id);
        snprintf(p->rec.node, sizeof p->rec.node, "%s", n->id);
        snprintf(p->rec.owner, sizeof p->rec.owner, "%s", p->m->instance);
        p->rec.state = STATE_CREATING;
        p->rec.gen = gen;
        p->rec.rev = res->rev;
    }
    return res->outcome;
}

static int node_start(struct placement *p, Cube__Node__V1__StartReply **reply, struct err *e)
{
    uint8_t ticket[32];
    char token[65] = "";
    Cube__Node__V1__StartRequest req = CUBE__NODE__V1__START_REQUEST__INIT;
    ticket_derive(&p->m->seed, p->rec.id, p->rec.gen, ticket);
    if (p->spec->secure)
        token_envd(&p->m->seed, p->rec.id, token);
    req.spec = p->spec;
    req.gen = p->rec.gen;
    req.remaining_ms = p->spec->idle_ms > 0 ? p->spec->idle_ms : p->spec->timeout_ms;
    req.ticket = (ProtobufCBinaryData){.data = ticket, .len = sizeof ticket};
    req.envd_token = token;
    req.trace = (char *)p->trace;
    req.default_user = p->tpl->default_user;
    req.default_workdir = p->tpl->default_workdir;
    ProtobufCMessage *msg = NULL;
    int64_t begin = clock_mono_us();
    int rc =
        node_call(p->m, p->rec.node, "/cube.node.v1.Sandboxes/Start", &req.base,
                  &cube__node__v1__start_reply__descriptor, p->m->cfg.node_timeout_ms, p->trace, &msg, e);
    explicit_bzero(token, sizeof token);
    stats_node_start(rc == 0, clock_mono_us() - begin);
    *reply = (Cube__Node__V1__StartReply *)msg;
    return rc;
}

/* The started sandbox becomes `running`. When it was deleted meanwhile, the node drops it. */
static int finish(struct placement *p, const Cube__Node__V1__StartReply *reply, int64_t took_ms,
                  struct err *e)
{
    int64_t now = p->m->now_ms();
    int64_t timeout = p->spec->idle_ms > 0 ? p->spec->idle_ms : p->spec->timeout_ms;
    struct commit_result res;
    _cleanup_commit_ struct commit c;
    commit_begin(&c, p->m, p->rec.id, p->rec.rev, STATE_RUNNING, p->trace);
    commit_route(&c, p->spec, p->rec.gen);
    commit_set_int(&c, "started", now);
    commit_set_int(&c, "end", timeout > 0 ? now + timeout : 0);
    commit_set(&c, "envd", reply->envd_version);
    commit_set(&c, "isolation", reply->isolation);
    commit_event(&c, "node", "node %s started it in %" PRId64 " ms%s", p->rec.node, took_ms,
                 !reply->receipt             ? ""
                 : reply->receipt->was_ready ? " (from the pool of ready sandboxes)"
                 : reply->receipt->from_pool ? " (in a VM process that waited)"
                                             : "");
    commit_event(&c, "state", "running");
    if (commit_settle(&c, &p->rec, STATE_RUNNING, &res, e) == COMMIT_OK) {
        p->rec.state = STATE_RUNNING;
        p->rec.rev = res.rev;
        p->rec.created_ms = p->rec.started_ms = now;
        p->rec.end_ms = timeout > 0 ? now + timeout : 0;
        p->rec.auto_pause = p->spec->auto_pause;
        p->rec.idle_ms = p->spec->idle_ms;
        snprintf(p->rec.team, sizeof p->rec.team, "%s", p->spec->team_id);
        snprintf(p->rec.envd, sizeof p->rec.envd, "%s", reply->envd_version);
        snprintf(p->rec.isolation, sizeof p->rec.isolation, "%s", reply->isolation);
        return 0;
    }
    node_drop_later(p->m, p->rec.node, p->rec.id, p->rec.gen, "the create did not finish");
    if (res.outcome == COMMIT_FAILED)
        return err_wrap(e, "recording the started sandbox");
    return err_set(e, ERR_CONFLICT, "sandbox %s was deleted while it was being created", p->rec.id);
}

static void give_up(struct placement *p, const struct err *why)
{
    if (p->rec.state == STATE_NONE)
        return;
    struct commit_result res;
    struct err e = {0};
    _cleanup_commit_ struct commit c;
    commit_begin(&c, p->m, p->rec.id, p->rec.rev, STATE_FAILED, p->trace);
    commit_set(&c, "reason", why->msg);
    commit_event(&c, "state", "failed: %s", why->msg);
    if (commit_settle(&c, &p->rec, STATE_FAILED, &res, &e) == COMMIT_FAILED)
        log_line(LOG_WARN, &(struct log_about){.sandbox = p->rec.id, .err = &e},
                 "a failed create stays for the sweeper");
}

/* Whether another node may succeed where this one said no. */
static bool next_may_help(enum err_code code)
{
    return code != ERR_INVALID && code != ERR_NOT_FOUND && code != ERR_UNSUPPORTED && code != ERR_CANCELLED &&
           code != ERR_FORBIDDEN;
}

static void try_to_start(struct placement *p, bool *started, bool *over, struct err *e)
{
    Cube__Node__V1__StartReply *reply = NULL;
    int64_t begin = p->m->now_ms();
    struct err why = {0};
    p->attempts++;
    int rc = node_start(p, &reply, &why);
    if (rc == 0 && ops_reply_check(reply, p->rec.gen, &why) < 0) {
        cube__node__v1__start_reply__free_unpacked(reply, NULL);
        rc = -1;
    }
    if (rc == 0) {
        *over = true;
        *started = finish(p, reply, p->m->now_ms() - begin, e) == 0;
        cube__node__v1__start_reply__free_unpacked(reply, NULL);
        return;
    }
    p->last = why;
    log_line(LOG_WARN,
             &(struct log_about){.sandbox = p->rec.id, .gen = p->rec.gen, .trace = p->trace, .err = &why},
             "a node did not start a sandbox: %s", why.msg);
    if (why.code == ERR_DEADLINE || why.code == ERR_UNAVAILABLE || why.code == ERR_INTERNAL)
        node_drop_later(p->m, p->rec.node, p->rec.id, p->rec.gen, "placed elsewhere");
    if (!next_may_help(why.code)) {
        *over = true;
        *e = why;
        give_up(p, e);
    }
}

static int no_room(struct placement *p, const uint32_t rejected[SCHED_REASONS], struct err *e)
{
    uint32_t compatible = 0, best = 0;
    enum sched_reject most = SCHED_FITS;
    size_t total = 0;
    for (int i = 0; i < SCHED_REASONS; i++) {
        total += rejected[i];
        if (i == SCHED_SANDBOXES || i == SCHED_MEMORY || i == SCHED_CPU || i == SCHED_PRESSURE ||
            i == SCHED_EXCLUDED)
            compatible += rejected[i];
        if (i != SCHED_FITS && i != SCHED_EXCLUDED && rejected[i] > best) {
            best = rejected[i];
            most = (enum sched_reject)i;
        }
    }
    if (*p->tpl->node_id && !p->attempts && !p->refusals) {
        err_set(e, ERR_NO_COMPATIBLE_NODE,
                "Failed to place sandbox: snapshot %s lies on node %s, which takes nothing now",
                p->spec->template_id, p->tpl->node_id);
    } else if (p->attempts > 0) {
        err_set(e, ERR_CREATE_FAILED, "Failed to place sandbox: %d node%s tried, the last said: %.150s",
                p->attempts, p->attempts == 1 ? " was" : "s were", p->last.msg);
        if (p->last.code == ERR_CAPACITY || p->last.code == ERR_STORAGE_FULL ||
            p->last.code == ERR_UNAVAILABLE)
            e->code = p->last.code == ERR_UNAVAILABLE ? ERR_UNAVAILABLE : ERR_CAPACITY;
    } else if (total == 0) {
        err_set(e, ERR_NO_COMPATIBLE_NODE, "Failed to place sandbox: no node has joined the cluster");
    } else if (compatible == 0) {
        err_set(e, ERR_NO_COMPATIBLE_NODE, "Failed to place sandbox: none of %zu nodes fits (mostly: %s)",
                total, sched_reject_name(most));
    } else {
        const char *what = p->lacking[0] ? p->lacking : sched_reject_name(most);
        err_set(e, ERR_CAPACITY,
                "Failed to place sandbox: no node has enough %s (%" PRId64 " MiB memory, %" PRId64
                " vCPU asked)",
                what, p->ask.nominal, p->ask.cpu / 1000);
    }
    give_up(p, e);
    return -1;
}

/* Another master may have changed the fleet within the last poll: nobody is refused on an old view. */
static int look_again(struct placement *p, struct err *e)
{
    struct fleet *f = p->m->fleet;
    if (p->excluded) {
        p->refreshed = true;
        fleet_refresh(f);
    }
    bool *grown = realloc(p->excluded, (f->n + 1) * sizeof *grown);
    if (!grown)
        return err_set(e, ERR_UNAVAILABLE, "placing a sandbox: out of memory");
    for (size_t i = p->excluded_n; i < f->n; i++) /* a snapshot starts where it lies */
        grown[i] = *p->tpl->node_id && strcmp(p->tpl->node_id, f->nodes[i]->id) != 0;
    p->excluded = grown;
    p->excluded_n = f->n;
    return 0;
}

static int place(struct placement *p, struct err *e)
{
    struct fleet *f = p->m->fleet;
    if (look_again(p, e) < 0)
        return -1;
    struct sched_policy policy = fleet_policy(p->m);
    for (;;) {
        struct sched_choice choices[CANDIDATES];
        uint32_t rejected[SCHED_REASONS];
        uint64_t random;
        random_bytes(&random, sizeof random);
        size_t n = sched_pick(f->sched, p->excluded_n, &p->ask, &policy, p->excluded, random, choices,
                              CANDIDATES, rejected);
        if (n == 0 && !p->attempts && !p->refreshed) {
            if (look_again(p, e) < 0)
                return -1;
            continue;
        }
        if (n == 0 || p->attempts >= ATTEMPTS_MAX || p->refusals >= REFUSALS_MAX)
            return no_room(p, rejected, e);
        for (size_t i = 0; i < n; i++) {
            size_t at = choices[i].node;
            struct commit_result res;
            p->excluded[at] = true;
            enum commit_outcome o = reserve(p, f->nodes[at], &choices[i], &res, e);
            if (o == COMMIT_FULL || o == COMMIT_CLOSED) {
                p->refusals++;
                snprintf(p->lacking, sizeof p->lacking, "%s", o == COMMIT_FULL ? res.resource : "");
                continue;
            }
            if (o == COMMIT_IDEM)
                snprintf(p->idem_hit, sizeof p->idem_hit, "%s", res.text);
            if (o != COMMIT_OK)
                return -1;
            sched_node_account(&f->sched[at], &p->ask, 1); /* until the next poll reads it from Redis */
            bool started = false, over = false;
            try_to_start(p, &started, &over, e);
            if (over)
                return started ? 0 : -1;
            break; /* the fleet may have changed while the node was asked */
        }
    }
}

/* The same key again: the first request's sandbox is the answer, once it runs. */
static int idem_answer(struct master *m, const char *value, const char *expect, struct record *out,
                       struct err *e)
{
    const char *id = strchr(value, ' ');
    if (!id || strncmp(value, expect, (size_t)(id - value)) != 0)
        return err_set(e, ERR_INVALID, "the idempotency key was used before with another request");
    for (int i = 0; i < 300; i++) {
        if (op_load(m, id + 1, "", out, e) < 0)
            return -1;
        if (out->state != STATE_CREATING)
            break;
        record_free(out);
        route_event_wait(m, id + 1, 200);
    }
    if (out->state == STATE_CREATING || state_table[out->state].view == VIEW_GONE) {
        record_free(out);
        return err_set(e, ERR_CREATE_FAILED, "the create with this idempotency key did not succeed");
    }
    return 0;
}

static int idem_parse(const redisReply *r, void *out, struct err *e)
{
    if (r->type == REDIS_REPLY_STRING)
        snprintf(out, sizeof((struct placement *)0)->idem_hit, "%s", r->str);
    return 0;
}

/* Asked before anything can refuse: a retry of what was done must not fail for want of room or template. What
 * two do at the same time is decided by the committer. */
static int idem_look(struct placement *p, struct err *e)
{
    char name[360];
    snprintf(name, sizeof name, "%s:idem:%s", p->m->prefix, p->idem);
    return db_command(p->m, 2, (const char *[]){"GET", name}, idem_parse, p->idem_hit, e);
}

static int spec_check(struct placement *p, const Cube__Master__V1__CreateRequest *req, struct err *e)
{
    Cube__V1__SandboxSpec *s = p->spec;
    if (!s || !*s->team_id || strlen(s->team_id) > TEAM_ID_MAX)
        return err_set(e, ERR_INVALID, "the request names no team");
    if (!*s->template_id || strlen(s->template_id) > TEMPLATE_ID_MAX)
        return err_set(e, ERR_INVALID, "the request names no template");
    if (strlen(req->idempotency_key) > 255)
        return err_set(e, ERR_INVALID, "the idempotency key is longer than 255 bytes");
    if (s->timeout_ms < 0)
        return err_set(e, ERR_INVALID, "Timeout must be greater than 0");
    if (cube__v1__sandbox_spec__get_packed_size(s) > SPEC_BYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "metadata, variables and network of a sandbox exceed %u KiB",
                       SPEC_BYTES_MAX >> 10);
    for (size_t i = 0; i < s->n_metadata; i++)
        if (!*s->metadata[i]->key || strlen(s->metadata[i]->key) > 1024 ||
            strlen(s->metadata[i]->value) > 65536)
            return err_set(e, ERR_INVALID, "metadata keys are 1 to 1024 bytes, values at most 64 KiB");
    const char *idle = spec_metadata(s, "cube.idle");
    if (idle) {
        char *end;
        long seconds = strtol(idle, &end, 10);
        if (end == idle || *end || seconds < 1 || seconds > IDLE_MS_MAX / 1000)
            return err_set(e, ERR_INVALID, "metadata cube.idle must be seconds from 1 to 2592000");
        s->idle_ms = seconds * 1000;
    }
    return 0;
}

static void replace(char **field, const char *value)
{
    if (*field != protobuf_c_empty_string)
        free(*field);
    *field = strdup(value);
    if (!*field)
        abort();
}

static int template_apply(struct placement *p, Cube__Master__V1__Template *tpl, struct err *e)
{
    Cube__V1__SandboxSpec *s = p->spec;
    if (*tpl->status && strcmp(tpl->status, "ready") != 0)
        return err_set(e, ERR_INVALID, "template %s is not ready (it is %s)", s->template_id, tpl->status);
    if (!s->limits) {
        s->limits = malloc(sizeof *s->limits);
        if (!s->limits)
            abort();
        cube__v1__limits__init(s->limits);
    }
    if (tpl->limits) {
        s->limits->vcpus = s->limits->vcpus ? s->limits->vcpus : tpl->limits->vcpus;
        s->limits->memory_mib = s->limits->memory_mib ? s->limits->memory_mib : tpl->limits->memory_mib;
        s->limits->disk_mib = s->limits->disk_mib ? s->limits->disk_mib : tpl->limits->disk_mib;
    }
    if (!s->idle_ms)
        s->idle_ms = tpl->idle_ms;
    if (!s->limits->vcpus || !s->limits->memory_mib)
        return err_set(e, ERR_INVALID, "template %s says neither vCPUs nor memory", s->template_id);
    if (!*s->alias && tpl->n_aliases) {
        const char *slash = strrchr(tpl->aliases[0], '/');
        replace(&s->alias, slash ? slash + 1 : tpl->aliases[0]);
    }
    replace(&s->template_id, tpl->template_id);
    return 0;
}

int op_create(struct master *m, Cube__Master__V1__CreateRequest *req, const char *trace, struct record *out,
              struct err *e)
{
    struct placement p = {.m = m, .spec = req->spec, .trace = trace};
    *out = (struct record){0};
    if (m->cell == CELL_REDIS_AWAY)
        return err_set(e, ERR_UNAVAILABLE, "the control plane cannot reach its Redis; nothing was created");
    if (m->cell == CELL_RECOVERING) {
        err_set(e, ERR_UNAVAILABLE,
                "the control plane is recovering its records after a loss of data; nothing was created");
        return err_remedy(e, "try again in a few seconds");
    }
    if (spec_check(&p, req, e) < 0)
        return -1;
    if (*req->idempotency_key) {
        size_t n = cube__v1__sandbox_spec__get_packed_size(p.spec);
        _cleanup_free_ uint8_t *bytes = malloc(n + 1);
        if (!bytes)
            return err_set(e, ERR_UNAVAILABLE, "out of memory");
        cube__v1__sandbox_spec__pack(p.spec, bytes);
        sha256_hex(bytes, n, p.idem_value);
        snprintf(p.idem, sizeof p.idem, "%s:%s", p.spec->team_id, req->idempotency_key);
        if (idem_look(&p, e) < 0)
            return -1;
        if (p.idem_hit[0])
            return idem_answer(m, p.idem_hit, p.idem_value, out, e);
    }
    Cube__Master__V1__Template *tpl = NULL;
    if (catalog_template(m, p.spec->team_id, p.spec->template_id, &tpl, e) < 0)
        return -1;
    char id[SANDBOX_ID_LEN + 1];
    id_sandbox(id, m->cfg.cell[0]);
    replace(&p.spec->sandbox_id, id);
    if (p.idem[0])
        snprintf(p.idem_value + 64, sizeof p.idem_value - 64, " %s", id);
    p.tpl = tpl;
    struct inflight busy;
    inflight_begin(&busy, m, id);
    int rc = template_apply(&p, tpl, e) < 0 || ask_fill(&p, e) < 0 ? -1 : 0;
    if (rc == 0)
        rc = place(&p, e);
    inflight_end(&busy);
    cube__master__v1__template__free_unpacked(tpl, NULL);
    free(p.excluded);
    if (rc == 0) { /* what was just committed needs no second look */
        *out = p.rec;
        out->spec = ptr_steal(req->spec);
        return 0;
    }
    if (p.idem_hit[0])
        return idem_answer(m, p.idem_hit, p.idem_value, out, e);
    return -1;
}
