/* Owns the shape of proposals to the committer and the reading of its answers. Invariant: the script is
 * called from here only, and every refusal becomes an error that says what stood against it. */
#include "master/commit.h"

#include "lib/base/ids.h"
#include "master/stats.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void commit_begin(struct commit *c, struct master *m, const char *id, uint64_t if_rev, enum sandbox_state to,
                  const char *trace)
{
    *c = (struct commit){.m = m};
    db_args_start(&c->args, m);
    db_arg(&c->args, id);
    commit_opt_int(c, "now", m->now_ms());
    db_arg(&c->args, "if_rev");
    if (if_rev == REV_ANY)
        db_arg(&c->args, "");
    else
        db_arg_int(&c->args, (int64_t)if_rev);
    commit_opt(c, "to", to ? state_table[to].name : "");
    if (trace && *trace)
        commit_opt(c, "trace", trace);
}

void commit_end(struct commit *c)
{
    db_args_end(&c->args);
    free(c->spec);
    c->spec = NULL;
}

#define REV_ARG 5 /* prefix, id, "now", value, "if_rev", value */

void commit_rev(struct commit *c, uint64_t rev)
{
    db_arg_int(&c->args, (int64_t)rev);
    c->args.argv[REV_ARG] = c->args.argv[--c->args.n];
    c->args.len[REV_ARG] = c->args.len[c->args.n];
}

void commit_opt(struct commit *c, const char *name, const char *value)
{
    db_arg(&c->args, name);
    db_arg(&c->args, value);
}

void commit_opt_int(struct commit *c, const char *name, int64_t value)
{
    db_arg(&c->args, name);
    db_arg_int(&c->args, value);
}

void commit_gen(struct commit *c, uint64_t gen)
{
    c->durable = true;
    commit_opt_int(c, "gen", (int64_t)gen);
}

void commit_own(struct commit *c)
{
    commit_opt(c, "owner", c->m->instance);
}

void commit_set(struct commit *c, const char *name, const char *value)
{
    db_arg_printf(&c->args, "=%s", name);
    db_arg(&c->args, value);
}

void commit_set_int(struct commit *c, const char *name, int64_t value)
{
    db_arg_printf(&c->args, "=%s", name);
    db_arg_int(&c->args, value);
}

void commit_event(struct commit *c, const char *kind, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    db_arg_printf(&c->args, "@%s", kind);
    db_arg(&c->args, text);
}

static void tag(struct commit *c, const char *text)
{
    db_arg(&c->args, "#");
    db_arg(&c->args, text);
}

void commit_spec(struct commit *c, const Cube__V1__SandboxSpec *spec)
{
    size_t n = cube__v1__sandbox_spec__get_packed_size(spec);
    c->spec = malloc(n + 1);
    if (!c->spec)
        abort();
    cube__v1__sandbox_spec__pack(spec, c->spec);
    db_arg(&c->args, "=spec");
    db_arg_bytes(&c->args, c->spec, n);
    commit_set(c, "team", spec->team_id);
    commit_set(c, "template", spec->template_id);
    commit_set_int(c, "vcpus", spec->limits->vcpus);
    commit_set_int(c, "mem", spec->limits->memory_mib);
    if (spec->auto_pause)
        commit_set(c, "auto_pause", "1");
    if (spec->idle_ms > 0)
        commit_set_int(c, "idle", spec->idle_ms);
    char text[512];
    snprintf(text, sizeof text, "team:%s", spec->team_id);
    tag(c, text);
    snprintf(text, sizeof text, "tpl:%s:%s", spec->team_id, spec->template_id);
    tag(c, text);
    for (size_t i = 0; i < spec->n_metadata; i++) {
        commit_tag_metadata(text, sizeof text, spec->team_id, spec->metadata[i]->key,
                            spec->metadata[i]->value);
        tag(c, text);
    }
}

/* The index of one metadata pair. Long pairs are named by their digest, so that keys stay short. */
void commit_tag_metadata(char *out, size_t size, const char *team, const char *key, const char *value)
{
    size_t n = strlen(key) + 1 + strlen(value);
    if (n <= 128) {
        snprintf(out, size, "meta:%s:%s=%s", team, key, value);
        return;
    }
    char *pair = malloc(n + 1), digest[65];
    if (!pair)
        abort();
    snprintf(pair, n + 1, "%s=%s", key, value);
    sha256_hex(pair, n, digest);
    free(pair);
    snprintf(out, size, "meta:%s:#%s", team, digest);
}

static void route(struct commit *c, const char *name, const char *value)
{
    db_arg_printf(&c->args, "~%s", name);
    db_arg(&c->args, value);
}

void commit_route(struct commit *c, const Cube__V1__SandboxSpec *spec, uint64_t gen)
{
    uint8_t ticket[32];
    char hex[65], token[65];
    ticket_derive(&c->m->seed, spec->sandbox_id, gen, ticket);
    hex_encode(ticket, sizeof ticket, hex);
    route(c, "ticket", hex);
    hex[0] = 0;
    if (spec->secure) {
        token_envd(&c->m->seed, spec->sandbox_id, token);
        sha256_hex(token, 64, hex);
    }
    route(c, "envd_sha256", hex);
    hex[0] = 0;
    if (spec->private_traffic) {
        token_traffic(&c->m->seed, spec->sandbox_id, token);
        sha256_hex(token, 64, hex);
    }
    route(c, "traffic_sha256", hex);
    route(c, "auto_resume", spec->auto_resume ? "1" : "0");
    route(c, "private", spec->private_traffic ? "1" : "0");
    route(c, "mask_host", spec->mask_request_host);
}

void commit_reserve(struct commit *c, int64_t memory_mib, const struct sched_policy *p)
{
    commit_opt_int(c, "mem", memory_mib);
    commit_opt_int(c, "ratio_mem", p->ratio_memory);
    commit_opt_int(c, "ratio_cpu", p->ratio_cpu);
}

static const char *word(const redisReply *r, size_t i)
{
    if (i >= r->elements || r->element[i]->type != REDIS_REPLY_STRING)
        return "";
    return r->element[i]->str;
}

static int64_t number(const redisReply *r, size_t i)
{
    return strtoll(word(r, i), NULL, 10);
}

static void quota_error(const struct commit_result *out, struct err *e)
{
    if (strcmp(out->resource, "blocked") == 0)
        err_set(e, ERR_FORBIDDEN, "the team is blocked");
    else if (strcmp(out->resource, "creates") == 0)
        err_set(e, ERR_RATE_LIMITED, "create rate of the team exceeded (%" PRId64 " per second)", out->have);
    else if (strcmp(out->resource, "sandboxes") == 0)
        err_set(e, ERR_RATE_LIMITED,
                "you have reached the maximum number of concurrent E2B sandboxes (%" PRId64
                "); kill or pause some, or ask for a higher limit",
                out->have);
    else
        err_set(e, ERR_RATE_LIMITED,
                "the team's limit of %s is reached (limit %" PRId64 " %s, in use %" PRId64 ")", out->resource,
                out->have, strcmp(out->resource, "memory") == 0 ? "MiB" : "vCPUs", out->need);
}

static int commit_parse(const redisReply *r, void *data, struct err *e)
{
    struct commit_result *out = data;
    static const char *const names[] = {
        [COMMIT_OK] = "ok",           [COMMIT_MISSING] = "missing", [COMMIT_CONFLICT] = "conflict",
        [COMMIT_ILLEGAL] = "illegal", [COMMIT_FULL] = "full",       [COMMIT_CLOSED] = "closed",
        [COMMIT_QUOTA] = "quota",     [COMMIT_IDEM] = "idem",       [COMMIT_RECOVERING] = "recovering",
    };
    const char *what = r->type == REDIS_REPLY_ARRAY ? word(r, 0) : "";
    out->outcome = COMMIT_FAILED;
    for (int i = 0; i < COMMIT_FAILED; i++)
        if (strcmp(names[i], what) == 0)
            out->outcome = (enum commit_outcome)i;
    switch (out->outcome) {
    case COMMIT_OK:
    case COMMIT_CONFLICT:
        out->state = state_parse(word(r, 1), strlen(word(r, 1)));
        out->gen = (uint64_t)number(r, 2);
        out->rev = (uint64_t)number(r, 3);
        if (out->outcome == COMMIT_CONFLICT)
            err_set(e, ERR_CONFLICT, "the sandbox changed meanwhile (it is %s)",
                    state_table[out->state].name);
        break;
    case COMMIT_MISSING:
        err_set(e, ERR_NOT_FOUND, "sandbox not found");
        break;
    case COMMIT_ILLEGAL:
        out->state = state_parse(word(r, 1), strcspn(word(r, 1), " "));
        err_set(e, ERR_CONFLICT, "the sandbox is %s and cannot become %s", word(r, 1), word(r, 2));
        break;
    case COMMIT_FULL:
    case COMMIT_QUOTA:
        snprintf(out->resource, sizeof out->resource, "%s", word(r, 1));
        out->have = number(r, 2);
        out->need = number(r, 3);
        out->retry_ms = number(r, 4);
        if (out->outcome == COMMIT_QUOTA)
            quota_error(out, e);
        else
            err_set(e, ERR_CAPACITY, "not enough %s on the node (%" PRId64 " free, %" PRId64 " needed)",
                    out->resource, out->have, out->need);
        break;
    case COMMIT_CLOSED:
    case COMMIT_IDEM:
        snprintf(out->text, sizeof out->text, "%s", word(r, 1));
        err_set(e, ERR_CAPACITY, "the node takes nothing now: %s", out->text);
        break;
    case COMMIT_RECOVERING:
        err_set(e, ERR_UNAVAILABLE, "the control plane is recovering its records after a loss of data");
        err_remedy(e, "try again in a few seconds");
        break;
    case COMMIT_FAILED:
        return err_set(e, ERR_INTERNAL, "reading the committer's answer: unknown outcome");
    }
    return 0;
}

enum commit_outcome commit_run(struct commit *c, struct commit_result *out, struct err *e)
{
    *out = (struct commit_result){.outcome = COMMIT_FAILED};
    int (*eval)(struct master *, struct redis_script *, struct db_args *,
                int (*)(const redisReply *, void *, struct err *), void *, struct err *) =
        c->durable ? db_eval_durable : db_eval;
    if (eval(c->m, &script_commit, &c->args, commit_parse, out, e) < 0)
        out->outcome = COMMIT_FAILED;
    stats_commit(out->outcome);
    return out->outcome;
}
