/* Owns the cell's life as this master sees it: the connection to Redis, its announcement, and what happens
 * when Redis comes back without its data. Invariant: creates are possible only while the cell is ready, and
 * it becomes ready only when the catalog is replayed and the known nodes have told what they hold (or the
 * time for that has passed). */
#include "master/cell.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/fleet.h"
#include "master/stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANNOUNCE_MS 1000
#define ANNOUNCE_TTL_MS 3000
#define RECOVER_POLL_MS 100

static struct loop_timer announce_timer;
static struct master *the_master;
static bool opening;
static unsigned breaks; /* of the connection to Redis */

struct meta {
    char state[16], journal[32], cell[8];
    int64_t epoch_ms, until_ms;
    bool created;
};

static int meta_parse(const redisReply *r, void *out, struct err *e)
{
    struct meta *m = out;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 7)
        return err_set(e, ERR_INTERNAL, "reading the cell's entry: unexpected answer");
    for (size_t i = 0; i < r->elements; i++)
        if (r->element[i]->type != REDIS_REPLY_STRING)
            return err_set(e, ERR_INTERNAL, "reading the cell's entry: unexpected answer");
    snprintf(m->state, sizeof m->state, "%s", r->element[0]->str);
    m->epoch_ms = strtoll(r->element[1]->str, NULL, 10);
    snprintf(m->journal, sizeof m->journal, "%s", r->element[2]->str);
    m->until_ms = strtoll(r->element[3]->str, NULL, 10);
    m->created = strcmp(r->element[4]->str, "1") == 0;
    snprintf(m->cell, sizeof m->cell, "%s", r->element[5]->str);
    return 0;
}

static int meta_call(struct master *m, const char *op, struct meta *out, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, op);
    db_arg_int(&a, m->now_ms());
    if (strcmp(op, "open") == 0) {
        db_arg(&a, m->cfg.cell);
        db_arg_int(&a, m->seed.version);
        db_arg(&a, journal_id(m->journal));
        db_arg_int(&a, m->cfg.recover_ms);
    } else if (strcmp(op, "journal") == 0) {
        db_arg(&a, journal_id(m->journal));
    }
    return db_eval(m, &script_meta, &a, meta_parse, out, e);
}

static int members_parse(const redisReply *r, void *out, struct err *e)
{
    *(unsigned *)out = r->type == REDIS_REPLY_ARRAY ? (unsigned)r->elements : 0;
    return 0;
}

static int announce(struct master *m, struct err *e)
{
    char address[160];
    const char *port = strrchr(m->cfg.listen, ':');
    if (*m->cfg.advertise)
        snprintf(address, sizeof address, "%s", m->cfg.advertise);
    else if (port && strcmp(port, ":0") == 0)
        snprintf(address, sizeof address, "%.*s:%d", (int)(port - m->cfg.listen), m->cfg.listen,
                 rpc_server_port(m->server));
    else
        snprintf(address, sizeof address, "%s", m->cfg.listen);
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "master");
    db_arg(&a, m->instance);
    db_arg(&a, address);
    db_arg_int(&a, m->now_ms());
    db_arg_int(&a, ANNOUNCE_TTL_MS);
    return db_eval(m, &script_announce, &a, members_parse, &m->masters_alive, e);
}

struct missing {
    struct master *m;
    unsigned count;
};

static void on_known_node(const char *node, void *data)
{
    struct missing *x = data;
    struct node *n = fleet_find(x->m->fleet, node);
    x->count += !n || n->full_ms < x->m->epoch_ms;
}

/* Waits until every node of the journal has reported in full to any master, or the time for it is over. */
static int recover(struct master *m, struct meta *meta, struct err *e)
{
    log_warn("Redis holds no data of this cell: recovering the catalog from its journal and the sandboxes "
             "from the nodes");
    links_reset("the cell is recovering");
    fleet_reset(m->fleet);
    if (journal_replay(m, e) < 0)
        return -1;
    while (m->now_ms() < meta->until_ms) {
        fleet_refresh(m->fleet);
        struct missing x = {.m = m};
        journal_nodes(m, on_known_node, &x);
        if (x.count == 0)
            break;
        fiber_sleep(RECOVER_POLL_MS);
        if (meta_call(m, "look", meta, e) < 0 || strcmp(meta->state, "ready") == 0 ||
            meta->epoch_ms != m->epoch_ms)
            return meta->epoch_ms == m->epoch_ms
                       ? 0
                       : err_set(e, ERR_UNAVAILABLE, "Redis lost its data once more");
    }
    return meta_call(m, "ready", meta, e);
}

static int journal_agree(struct master *m, struct meta *meta, struct err *e)
{
    if (strcmp(meta->journal, journal_id(m->journal)) == 0)
        return 0;
    /* Masters on several hosts need one journal (internal.md §3): two would each bring back half a catalog.
     */
    if (!journal_fresh(m->journal) || m->masters_alive > 1)
        return err_set(e, ERR_CONFLICT,
                       "this master's catalog journal is not the one of the cell (%s, the cell has %s)",
                       journal_id(m->journal), meta->journal);
    log_warn(
        "the catalog's journal is new while Redis holds a catalog: entries made before are only in Redis");
    return meta_call(m, "journal", meta, e);
}

static int open_cell(struct master *m, struct err *e)
{
    struct meta meta = {0};
    unsigned before = breaks;
    if (announce(m, e) < 0 || meta_call(m, "open", &meta, e) < 0)
        return -1;
    if (strcmp(meta.cell, m->cfg.cell) != 0)
        return err_set(e, ERR_CONFLICT, "this Redis belongs to cell %s, not %s", meta.cell, m->cfg.cell);
    if (journal_agree(m, &meta, e) < 0)
        return -1;
    bool was_open = m->epoch_ms != 0, lost = was_open && m->epoch_ms != meta.epoch_ms;
    m->epoch_ms = meta.epoch_ms;
    m->recovering_until_ms = meta.until_ms;
    if (lost || strcmp(meta.state, "recovering") == 0) {
        m->cell = CELL_RECOVERING;
        if (recover(m, &meta, e) < 0)
            return -1;
        log_info("the cell is ready");
    } else if (was_open) {
        /* A primary that died may have taken its last writes along: what nodes hold is compared at once. */
        links_reset("Redis was away");
    }
    fleet_refresh(m->fleet);
    if (breaks != before) /* what was found out is of another Redis, perhaps */
        return err_set(e, ERR_UNAVAILABLE, "Redis went away meanwhile");
    m->cell = CELL_READY;
    rpc_server_set_serving(m->server, true);
    return 0;
}

static void open_fiber(void *arg)
{
    struct master *m = arg;
    while (redis_connected(m->redis)) {
        struct err e = {0};
        if (open_cell(m, &e) == 0)
            break;
        log_fail(&e, "opening the cell: %s", e.msg);
        if (e.code == ERR_CONFLICT)
            exit(1);
        fiber_sleep(500);
    }
    opening = false;
}

static void open_begin(struct master *m)
{
    if (opening)
        return;
    opening = true;
    fiber_spawn(open_fiber, m);
}

static void on_redis_state(bool connected, void *data)
{
    struct master *m = data;
    if (connected) {
        open_begin(m);
    } else {
        breaks++;
        m->cell = CELL_REDIS_AWAY;
        rpc_server_set_serving(m->server, false);
        log_warn("Redis is away: running sandboxes go on, changes wait for it");
    }
}

static int replication_parse(const redisReply *r, void *out, struct err *e)
{
    const char *at = r->type == REDIS_REPLY_STRING ? strstr(r->str, "connected_slaves:") : NULL;
    *(unsigned *)out = at ? (unsigned)strtoul(at + 17, NULL, 10) : 0;
    return 0;
}

/* Tells that this master lives, and notices when the data went away under a connection that stayed. */
static void announce_fiber(void *arg)
{
    struct master *m = arg;
    struct meta meta = {0};
    struct err e = {0};
    stats_cell(m->cell);
    if (redis_connected(m->redis) &&
        db_command(m, 2, (const char *[]){"INFO", "replication"}, replication_parse, &m->replicas, &e) < 0)
        m->replicas = 0;
    if (redis_connected(m->redis) && announce(m, &e) == 0 && !opening &&
        meta_call(m, "look", &meta, &e) == 0 &&
        (m->cell != CELL_READY || strcmp(meta.state, "ready") != 0 || meta.epoch_ms != m->epoch_ms)) {
        m->cell = CELL_RECOVERING;
        open_begin(m);
    }
    loop_timer_start(m->loop, &announce_timer, ANNOUNCE_MS);
}

static void on_announce(struct loop_timer *t)
{
    (void)t;
    fiber_spawn(announce_fiber, the_master);
}

static void on_event(const char *id, const redisReply *fields, void *data)
{
    (void)id;
    for (size_t i = 0; i + 1 < fields->elements; i += 2)
        if (strcmp(fields->element[i]->str, "id") == 0)
            route_event_seen(data, fields->element[i + 1]->str);
}

static void on_gap(void *data)
{
    (void)data; /* waiters look again by themselves twice a second */
}

static int full_reported(struct master *m, const char *node, struct err *e)
{
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, node);
    db_arg_int(&a, m->now_ms());
    return db_eval(m, &script_node_full, &a, NULL, NULL, e);
}

void cell_node_reported(struct master *m, const char *node)
{
    struct err e = {0};
    if (full_reported(m, node, &e) < 0)
        log_line(LOG_WARN, &(struct log_about){.err = &e}, "noting the full report of node %s", node);
}

static int password_read(const char *path, char out[256], struct err *e)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f || !fgets(out, 256, f))
        return err_sys(e, ERR_INVALID, "reading the Redis password file %s", path);
    out[strcspn(out, "\r\n")] = 0;
    return 0;
}

int cell_start(struct master *m, struct err *e)
{
    static char password[256];
    struct redis_config rc = {.address = m->cfg.redis, .user = *m->cfg.redis_user ? m->cfg.redis_user : NULL};
    if (*m->cfg.redis_password_file) {
        if (password_read(m->cfg.redis_password_file, password, e) < 0)
            return -1;
        rc.password = password;
    }
    char stream[24];
    snprintf(stream, sizeof stream, "%s:ev", m->prefix);
    the_master = m;
    m->redis = redis_new(m->loop, &rc);
    m->redis_durable = redis_new(m->loop, &rc);
    m->events = redis_stream_follow(m->loop, &rc, stream, "$", on_event, on_gap, m);
    if (!m->redis || !m->redis_durable || !m->events)
        return err_set(e, ERR_INVALID, "connecting to Redis at \"%s\": the address is not understood",
                       m->cfg.redis);
    redis_on_state(m->redis, on_redis_state, m);
    if (redis_connected(m->redis))
        open_begin(m);
    announce_timer.fire = on_announce;
    loop_timer_start(m->loop, &announce_timer, ANNOUNCE_MS);
    return 0;
}
