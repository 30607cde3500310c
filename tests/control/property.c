/* Property test of the committer: random proposals of several committers with old and new views, against a
 * model written from contracts/internal.md, on a real Redis. Checks each answer, and at intervals every key
 * of the cell. Invariants: legal transitions only, rev grows by one per commit, gen never falls, no node and
 * no team above its limits, and route, index, deadline, operation, reservation and quota always say the same
 * as the record. Usage: control-property EVENTS [SECONDS [SEED]]. */
#include "lib/base/clock.h"
#include "proto/redis_scripts.h"
#include "proto/states.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 300 /* sandboxes that live at once */
#define NODES 5
#define TEAMS 3
#define COMMITTERS 6
#define BATCH 128
#define CHECK_EVERY 20000

struct sandbox {
    char id[24];
    enum sandbox_state state; /* NONE: not made yet */
    uint64_t gen, rev;
    int node, team, held; /* held: node + 1, 0 = none */
    int vcpus, nominal, memory;
    int64_t end, started;
    bool counted, op, unconfirmed;
};

struct view {
    uint64_t gen, rev;
    enum sandbox_state state;
};

static struct {
    int64_t cap_memory, cap_cpu, cap_count, memory, nominal, cpu, count;
    bool cordoned, ready;
} nodes[NODES];
static struct {
    int64_t max_sandboxes, max_vcpus, max_memory, sandboxes, vcpus, memory;
} teams[TEAMS];
static struct sandbox slots[SLOTS];
static struct view views[COMMITTERS][SLOTS];
static uint64_t rng, serial, moves_seen, outcomes[10];
static int64_t now_ms = 1700000000000;
static redisContext *redis;
static pid_t server;
static char sha[41];

struct proposal {
    int slot, committer, node;
    enum sandbox_state to; /* NONE: touch */
    uint64_t gen;          /* 0: not given */
    int64_t rev;           /* -1: any */
    bool force, unconfirmed, set_op, clear_op;
    int64_t end, now, memory; /* end -1: not given */
    char id[24];
};

static uint64_t rnd(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL property: ");
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    if (server > 0)
        kill(server, SIGKILL);
    exit(1);
}

static redisReply *ask(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = redisvCommand(redis, fmt, ap);
    va_end(ap);
    if (!r || r->type == REDIS_REPLY_ERROR)
        fail("redis: %s", r ? r->str : redis->errstr);
    return r;
}

static void slot_new(struct sandbox *s)
{
    *s = (struct sandbox){0};
    snprintf(s->id, sizeof s->id, "i0%019" PRIu64, ++serial);
    s->team = (int)rnd(TEAMS);
    s->vcpus = 1 + (int)rnd(4);
    s->nominal = 64 << rnd(4);
    s->memory = 32 + (int)rnd((uint64_t)s->nominal);
    size_t at = (size_t)(s - slots);
    for (int c = 0; c < COMMITTERS; c++)
        views[c][at] = (struct view){0};
}

static bool holds(enum sandbox_state s)
{
    return s == STATE_CREATING || s == STATE_RUNNING || s == STATE_PAUSING || s == STATE_RESUMING;
}

/* What the committer has to answer, and the change of the model when that is ok. */
static const char *expect(struct proposal *p)
{
    struct sandbox *s = &slots[p->slot];
    bool fresh = s->state == STATE_NONE;
    if (strcmp(p->id, s->id) != 0)
        return NULL; /* its sandbox was replaced within the batch */
    if (p->rev == 0 && !fresh)
        return "conflict";
    if (p->rev != 0 && fresh)
        return "missing";
    if (p->rev > 0 && (uint64_t)p->rev != s->rev)
        return "conflict";
    enum sandbox_state to = p->to ? p->to : s->state;
    int edge = p->to ? state_edges[s->state][p->to] : EDGE_PLAIN;
    if (edge == EDGE_NONE)
        return "illegal";
    uint64_t gen = p->gen ? p->gen : s->gen;
    if (gen < 1 || gen < s->gen || (edge == EDGE_GEN && gen <= s->gen) ||
        (edge == EDGE_PLAIN && !fresh && gen != s->gen))
        return "illegal";
    int node = p->node >= 0 ? p->node : s->node;
    int64_t memory = p->memory;
    bool creating = p->to == STATE_CREATING;
    if (holds(to) && !s->counted && !p->force) {
        __typeof__(teams[0]) *t = &teams[s->team];
        if ((t->max_sandboxes && t->sandboxes + 1 > t->max_sandboxes) ||
            (t->max_vcpus && t->vcpus + s->vcpus > t->max_vcpus) ||
            (t->max_memory && t->memory + s->nominal > t->max_memory))
            return "quota";
    }
    if (holds(to) && s->held != node + 1 && !p->force) {
        __typeof__(nodes[0]) *n = &nodes[node];
        if ((creating && n->cordoned) || !n->ready)
            return "closed";
        if (n->memory + memory > n->cap_memory || n->nominal + s->nominal > n->cap_memory * 2 ||
            n->cpu + s->vcpus * 1000 > n->cap_cpu * 2 || (n->cap_count && n->count + 1 > n->cap_count))
            return "full";
    }
    /* Accepted. */
    bool keeps = holds(to) || to == STATE_KILLING;
    if (s->held && (s->held != node + 1 || !keeps)) {
        __typeof__(nodes[0]) *n = &nodes[s->held - 1];
        n->memory -= s->memory;
        n->nominal -= s->nominal;
        n->cpu -= s->vcpus * 1000;
        n->count--;
        s->held = 0;
    }
    if (holds(to) && s->held != node + 1) {
        s->memory = (int)memory;
        nodes[node].memory += memory;
        nodes[node].nominal += s->nominal;
        nodes[node].cpu += s->vcpus * 1000;
        nodes[node].count++;
        s->held = node + 1;
    }
    if (holds(to) != s->counted) {
        int sign = holds(to) ? 1 : -1;
        teams[s->team].sandboxes += sign;
        teams[s->team].vcpus += sign * s->vcpus;
        teams[s->team].memory += sign * s->nominal;
        s->counted = holds(to);
    }
    if (p->to)
        s->op = false;
    if (p->set_op)
        s->op = true;
    if (p->clear_op)
        s->op = false;
    if (p->end >= 0)
        s->end = p->end;
    if (fresh || p->to == STATE_RUNNING)
        s->started = p->now;
    if (p->to && p->to != STATE_CREATING)
        moves_seen++;
    else if (!fresh && node != s->node)
        moves_seen++;
    if (p->to == STATE_KILLED)
        s->unconfirmed = p->unconfirmed;
    s->state = to;
    s->gen = gen;
    s->rev++;
    s->node = node;
    return "ok";
}

static void propose_what(struct proposal *p, struct sandbox *s)
{
    struct view *v = &views[p->committer][p->slot];
    p->node = p->end = -1;
    p->now = ++now_ms;
    p->memory = s->memory;
    snprintf(p->id, sizeof p->id, "%s", s->id);
    if (!v->rev) { /* this committer never saw it: it makes it, or acts blindly */
        p->to = rnd(10) ? STATE_CREATING : (enum sandbox_state)(1 + rnd(STATE_COUNT - 1));
        p->rev = rnd(20) ? 0 : -1;
        p->gen = rnd(30) ? 1 : rnd(3);
        p->node = (int)rnd(NODES);
        p->force = p->to == STATE_RUNNING;
        p->end = p->now + (int64_t)rnd(1000000);
        return;
    }
    p->rev = rnd(10) ? (int64_t)v->rev : rnd(2) ? -1 : (int64_t)rnd(v->rev + 2);
    if (rnd(4) == 0) { /* a touch: deadline or operation */
        p->end = rnd(8) ? p->now + (int64_t)rnd(1000000) : 0;
        p->set_op = v->state == STATE_RUNNING && rnd(4) == 0;
        p->clear_op = !p->set_op && rnd(6) == 0;
        return;
    }
    do
        p->to = (enum sandbox_state)(1 + rnd(STATE_COUNT - 1));
    while (state_edges[v->state][p->to] == EDGE_NONE && rnd(12));
    int edge = state_edges[v->state][p->to];
    p->gen = edge == EDGE_GEN ? v->gen + 1 + (rnd(20) ? 0 : rnd(5)) : rnd(10) == 0 ? v->gen + rnd(2) : 0;
    if (rnd(40) == 0)
        p->gen = rnd(v->gen + 2);
    if (p->to == STATE_CREATING)
        p->node = (int)rnd(NODES);
    p->force = edge == EDGE_ADOPT || (p->to == STATE_RUNNING && v->state == STATE_PAUSED);
    if (p->to == STATE_RUNNING || p->to == STATE_PAUSED)
        p->end = p->now + (int64_t)rnd(1000000);
    p->unconfirmed = p->to == STATE_KILLED && rnd(3) == 0;
}

static void send_proposal(const struct proposal *p)
{
    const struct sandbox *s = &slots[p->slot];
    const char *argv[80];
    static char text[80][40];
    int n = 0, t = 0;
#define PUT(x) (argv[n++] = (x))
#define NUM(x) (snprintf(text[t], sizeof text[t], "%" PRId64, (int64_t)(x)), PUT(text[t++]))
    PUT("EVALSHA"), PUT(sha), PUT("0"), PUT("{c0}"), PUT(p->id);
    PUT("now"), NUM(p->now);
    PUT("if_rev");
    if (p->rev < 0)
        PUT("");
    else
        NUM(p->rev);
    PUT("to"), PUT(p->to ? state_table[p->to].name : "");
    if (p->gen)
        PUT("gen"), NUM(p->gen);
    snprintf(text[t], sizeof text[t], "m%d", p->committer);
    PUT("owner"), PUT(text[t++]);
    PUT("ratio_mem"), PUT("2000"), PUT("ratio_cpu"), PUT("2000"), PUT("mem"), NUM(p->memory);
    if (p->force)
        PUT("force"), PUT("1");
    if (p->node >= 0) {
        snprintf(text[t], sizeof text[t], "n%d", p->node);
        PUT("=node"), PUT(text[t++]);
    }
    if (p->end >= 0)
        PUT("=end"), NUM(p->end);
    if (p->set_op)
        PUT("=op"), PUT("snapshot");
    if (p->clear_op)
        PUT("=op"), PUT("");
    if (p->to == STATE_RUNNING)
        PUT("=started"), NUM(p->now);
    if (p->to == STATE_KILLED)
        PUT("=unconfirmed"), PUT(p->unconfirmed ? "1" : "");
    if (p->rev == 0) {
        snprintf(text[t], sizeof text[t], "t%d", s->team);
        PUT("=team"), PUT(text[t]);
        snprintf(text[t + 1], sizeof text[t + 1], "team:t%d", s->team);
        PUT("#"), PUT(text[t + 1]);
        snprintf(text[t + 2], sizeof text[t + 2], "meta:t%d:v=%d", s->team, s->vcpus);
        PUT("#"), PUT(text[t + 2]);
        t += 3;
        PUT("=vcpus"), NUM(s->vcpus);
        PUT("=mem"), NUM(s->nominal);
        if (p->to != STATE_RUNNING)
            PUT("=started"), NUM(p->now);
    }
    PUT("~ticket"), PUT("00"), PUT("@state"), PUT("x");
    redisAppendCommandArgv(redis, n, argv, NULL);
}

static void read_answer(struct proposal *p)
{
    redisReply *r;
    if (redisGetReply(redis, (void **)&r) != REDIS_OK || r->type != REDIS_REPLY_ARRAY || r->elements < 1)
        fail("%s: %s", p->id, r && r->type == REDIS_REPLY_ERROR ? r->str : "no answer");
    struct sandbox *s = &slots[p->slot];
    struct sandbox before = *s;
    const char *want = expect(p), *got = r->element[0]->str;
    static const char *const names[] = {"ok",     "missing", "conflict", "illegal",   "full",
                                        "closed", "quota",   "idem",     "recovering"};
    for (int i = 0; i < 9; i++)
        if (strcmp(got, names[i]) == 0)
            outcomes[i]++;
    if (want && strcmp(want, got) != 0)
        fail("%s %s gen %" PRIu64 " rev %" PRIu64 " → %s (gen %" PRIu64 ", if_rev %" PRId64
             "): wanted %s, got %s %s",
             s->id, state_table[before.state].name, before.gen, before.rev, state_table[p->to].name, p->gen,
             p->rev, want, got, r->elements > 1 ? r->element[1]->str : "");
    struct view *v = &views[p->committer][p->slot];
    if (want && (strcmp(got, "ok") == 0 || strcmp(got, "conflict") == 0)) {
        v->gen = strtoull(r->element[2]->str, NULL, 10);
        v->rev = strtoull(r->element[3]->str, NULL, 10);
        v->state = s->state;
        if (v->gen != s->gen || v->rev != s->rev ||
            strcmp(r->element[1]->str, state_table[s->state].name) != 0)
            fail("%s: answered %s gen %" PRIu64 " rev %" PRIu64 ", the model has %s %" PRIu64 " %" PRIu64,
                 s->id, r->element[1]->str, v->gen, v->rev, state_table[s->state].name, s->gen, s->rev);
        if (s->gen < before.gen || (strcmp(got, "ok") == 0 && s->rev != before.rev + 1))
            fail("%s: gen or rev went wrong", s->id);
    }
    freeReplyObject(r);
}

static void check_int(const char *what, const char *id, int64_t got, int64_t want)
{
    if (got != want)
        fail("%s of %s is %" PRId64 ", the model has %" PRId64, what, id, got, want);
}

static int64_t as_int(redisReply *r)
{
    int64_t v = r->type == REDIS_REPLY_INTEGER ? r->integer : r->str ? strtoll(r->str, NULL, 10) : 0;
    freeReplyObject(r);
    return v;
}

static void check_sandbox(const struct sandbox *s)
{
    if (s->state == STATE_NONE) {
        check_int("existence", s->id,
                  as_int(ask("EXISTS {c0}:sb:%s {c0}:rt:%s {c0}:tl:%s", s->id, s->id, s->id)), 0);
        return;
    }
    const char *id = s->id;
    bool routed = state_table[s->state].view != VIEW_GONE && s->state != STATE_CREATING;
    check_int("rev", id, as_int(ask("HGET {c0}:sb:%s rev", id)), (int64_t)s->rev);
    check_int("gen", id, as_int(ask("HGET {c0}:sb:%s gen", id)), (int64_t)s->gen);
    check_int("end", id, as_int(ask("HGET {c0}:sb:%s end", id)), s->end);
    redisReply *r = ask("HGET {c0}:sb:%s state", id);
    if (strcmp(r->str, state_table[s->state].name) != 0)
        fail("%s is %s, the model has %s", id, r->str, state_table[s->state].name);
    freeReplyObject(r);
    check_int("route", id, as_int(ask("EXISTS {c0}:rt:%s", id)), routed);
    if (routed)
        check_int("gen of the route", id, as_int(ask("HGET {c0}:rt:%s gen", id)), (int64_t)s->gen);
    int64_t due = s->state == STATE_RUNNING ? s->end : 0;
    check_int("deadline", id, as_int(ask("ZSCORE {c0}:dl:%s %s", id + 20, id)), due);
    r = ask("ZSCORE {c0}:op %s", id);
    check_int("operation", id, r->type == REDIS_REPLY_STRING, state_table[s->state].transient || s->op);
    freeReplyObject(r);
    r = ask("HGET {c0}:res:n%d %s", s->node, id);
    check_int("reservation", id, r->type == REDIS_REPLY_STRING, s->held == s->node + 1);
    freeReplyObject(r);
    char member[64];
    snprintf(member, sizeof member, "%013" PRId64 "%.21s", INT64_C(9999999999999) - s->started, id);
    for (int v = VIEW_RUNNING; v <= VIEW_PAUSED; v++) {
        const char *view = v == VIEW_RUNNING ? "running" : "paused";
        r = ask("ZSCORE {c0}:ix:team:t%d:%s %s", s->team, view, member);
        check_int("index", id, r->type == REDIS_REPLY_STRING, state_table[s->state].view == v);
        freeReplyObject(r);
        r = ask("ZSCORE {c0}:ix:meta:t%d:v=%d:%s %s", s->team, s->vcpus, view, member);
        check_int("metadata index", id, r->type == REDIS_REPLY_STRING, state_table[s->state].view == v);
        freeReplyObject(r);
    }
    bool on_node = s->state != STATE_FAILED && !(s->state == STATE_KILLED && !s->unconfirmed);
    check_int("place among the node's", id, as_int(ask("SISMEMBER {c0}:ix:node:n%d %s", s->node, id)),
              on_node);
    bool tomb = s->state == STATE_KILLED && s->unconfirmed,
         ttl = state_table[s->state].view == VIEW_GONE && s->state != STATE_KILLING && !tomb;
    check_int("tombstone", id, as_int(ask("SISMEMBER {c0}:tomb:n%d %s", s->node, id)), tomb);
    check_int("expiry", id, as_int(ask("PTTL {c0}:sb:%s", id)) > 0, ttl);
    if (as_int(ask("LLEN {c0}:tl:%s", id)) > 100)
        fail("the timeline of %s is longer than 100", id);
}

static void check_all(void)
{
    int64_t count[TEAMS][2] = {{0}};
    for (int i = 0; i < SLOTS; i++) {
        check_sandbox(&slots[i]);
        int view = state_table[slots[i].state].view;
        if (view)
            count[slots[i].team][view - 1]++;
    }
    for (int n = 0; n < NODES; n++) {
        char name[8];
        snprintf(name, sizeof name, "n%d", n);
        check_int("reserved memory", name, as_int(ask("HGET {c0}:node:%s r_mem", name)), nodes[n].memory);
        check_int("reserved nominal", name, as_int(ask("HGET {c0}:node:%s r_nominal", name)),
                  nodes[n].nominal);
        check_int("reserved CPU", name, as_int(ask("HGET {c0}:node:%s r_cpu", name)), nodes[n].cpu);
        check_int("count", name, as_int(ask("HGET {c0}:node:%s r_count", name)), nodes[n].count);
        check_int("reservations", name, as_int(ask("HLEN {c0}:res:%s", name)), nodes[n].count);
    }
    for (int t = 0; t < TEAMS; t++) {
        char name[8];
        snprintf(name, sizeof name, "t%d", t);
        check_int("used sandboxes", name, as_int(ask("HGET {c0}:use:%s sandboxes", name)),
                  teams[t].sandboxes);
        check_int("used vCPUs", name, as_int(ask("HGET {c0}:use:%s vcpus", name)), teams[t].vcpus);
        check_int("used memory", name, as_int(ask("HGET {c0}:use:%s memory_mib", name)), teams[t].memory);
        check_int("indexed running", name, as_int(ask("ZCARD {c0}:ix:team:%s:running", name)), count[t][0]);
        check_int("indexed paused", name, as_int(ask("ZCARD {c0}:ix:team:%s:paused", name)), count[t][1]);
    }
    redisReply *r = ask("XINFO STREAM {c0}:ev");
    for (size_t i = 0; i + 1 < r->elements; i += 2)
        if (strcmp(r->element[i]->str, "entries-added") == 0 &&
            (uint64_t)r->element[i + 1]->integer != moves_seen)
            fail("the stream got %lld events, the model counts %" PRIu64, r->element[i + 1]->integer,
                 moves_seen);
    freeReplyObject(r);
}

/* Ended sandboxes make room for new ones; their keys go, so that a million events fit into memory. */
static void replace_ended(void)
{
    for (int i = 0; i < SLOTS; i++) {
        struct sandbox *s = &slots[i];
        if ((s->state == STATE_KILLED || s->state == STATE_FAILED || s->state == STATE_LOST) && rnd(6) == 0) {
            if (s->state != STATE_KILLED && rnd(2))
                continue;
            freeReplyObject(ask("DEL {c0}:sb:%s {c0}:tl:%s", s->id, s->id));
            freeReplyObject(ask("SREM {c0}:ix:node:n%d %s", s->node, s->id));
            freeReplyObject(ask("SREM {c0}:tomb:n%d %s", s->node, s->id));
            slot_new(s);
        }
    }
}

static void change_world(void)
{
    int n = (int)rnd(NODES);
    nodes[n].cordoned = rnd(4) == 0;
    nodes[n].ready = rnd(6) != 0;
    freeReplyObject(ask("HSET {c0}:node:n%d cordoned %d status %s", n, nodes[n].cordoned,
                        nodes[n].ready ? "ready" : "unhealthy"));
}

static void set_up(void)
{
    freeReplyObject(ask("HSET {c0}:meta state ready"));
    for (int n = 0; n < NODES; n++) {
        nodes[n].cap_memory = 11000;
        nodes[n].cap_cpu = 90000;
        nodes[n].cap_count = n == 0 ? 20 : 0;
        nodes[n].ready = true;
        freeReplyObject(ask("HSET {c0}:node:n%d cap_mem %lld cap_cpu %lld cap_count %lld status ready relay "
                            "r r_mem 0 r_nominal 0 r_cpu 0 r_count 0",
                            n, (long long)nodes[n].cap_memory, (long long)nodes[n].cap_cpu,
                            (long long)nodes[n].cap_count));
    }
    teams[1].max_sandboxes = 40;
    teams[2].max_vcpus = 120;
    teams[2].max_memory = 20000;
    for (int t = 0; t < TEAMS; t++) {
        freeReplyObject(ask("HSET {c0}:team:t%d max_sandboxes %lld max_vcpus %lld max_memory_mib %lld", t,
                            (long long)teams[t].max_sandboxes, (long long)teams[t].max_vcpus,
                            (long long)teams[t].max_memory));
        freeReplyObject(ask("HSET {c0}:use:t%d sandboxes 0 vcpus 0 memory_mib 0", t));
    }
    redisReply *r = ask("SCRIPT LOAD %s", script_commit.text);
    snprintf(sha, sizeof sha, "%s", r->str);
    freeReplyObject(r);
    for (int i = 0; i < SLOTS; i++)
        slot_new(&slots[i]);
}

static void redis_start(char *dir, char *path)
{
    snprintf(path, 100, "%s/redis.sock", dir);
    server = fork();
    if (server == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--save", "",
               "--appendonly", "no", "--dir", dir, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 6000; i++) {
        redis = redisConnectUnix(path);
        if (redis && !redis->err)
            return;
        if (redis)
            redisFree(redis);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail("redis-server did not start");
}

int main(int argc, char **argv)
{
    uint64_t events = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000,
             seconds = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, done = 0,
             seed = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)time(NULL);
    int64_t end_us = clock_mono_us() + (int64_t)seconds * 1000000;
    char dir[] = "/tmp/control-property-XXXXXX", path[128];
    static struct proposal batch[BATCH];
    rng = seed * 2654435761u + 88172645463325252u;
    if (!mkdtemp(dir))
        fail("no temporary directory");
    redis_start(dir, path);
    set_up();
    for (uint64_t checked = 0; done < events && (!seconds || clock_mono_us() < end_us); done += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            batch[i] = (struct proposal){.slot = (int)rnd(SLOTS), .committer = (int)rnd(COMMITTERS)};
            propose_what(&batch[i], &slots[batch[i].slot]);
            send_proposal(&batch[i]);
        }
        for (int i = 0; i < BATCH; i++)
            read_answer(&batch[i]);
        if (rnd(8) == 0)
            change_world();
        replace_ended();
        if (done - checked >= CHECK_EVERY) {
            check_all();
            checked = done;
        }
    }
    check_all();
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    unlink(path);
    rmdir(dir);
    printf("PASS property: %" PRIu64 " random proposals of %d committers on %" PRIu64
           " sandboxes agree with the model (seed %" PRIu64 "; ok %" PRIu64 ", missing %" PRIu64
           ", conflict %" PRIu64 ", illegal %" PRIu64 ", full %" PRIu64 ", closed %" PRIu64 ", quota %" PRIu64
           ")\n",
           done, COMMITTERS, serial, seed, outcomes[0], outcomes[1], outcomes[2], outcomes[3], outcomes[4],
           outcomes[5], outcomes[6]);
    return 0;
}
