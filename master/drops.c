/* Owns the deletion of snapshots' files on the nodes where they lie. Invariant: what has left the catalog, or
 * never came into it, is in Redis' list of what to delete until its node has done it; the journal keeps what
 * a node could not be told, for when Redis loses its data. */
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "master/catalog.h"
#include "master/journal.h"
#include "master/ops.h"
#include "proto/node.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MS 30000
#define CALLS_MAX 64 /* of the sweep, at a time */

struct drop {
    struct master *m;
    bool again;
    char node[NODE_ID_MAX + 1], id[TEMPLATE_ID_MAX + 1];
};

static unsigned calls; /* of the sweep, under way */

int drops_note(struct master *m, const char *node, const char *id, int64_t at, struct err *e)
{
    int64_t done;
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "drop");
    db_arg(&a, node);
    db_arg(&a, id);
    db_arg_int(&a, at);
    return db_eval(m, &script_catalog, &a, catalog_int_parse, &done, e);
}

void drops_done(struct master *m, const char *node, const char *id)
{
    struct err e = {0};
    int64_t done;
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "dropped");
    db_arg(&a, node);
    db_arg(&a, id);
    if (db_eval(m, &script_catalog, &a, catalog_int_parse, &done, &e) < 0)
        log_fail(&e, "noting the deletion of snapshot %s", id); /* it is deleted once more, then */
}

static void remember(const struct drop *d, const char *kind)
{
    struct err e = {0};
    char line[NODE_ID_MAX + TEMPLATE_ID_MAX + 2];
    int n = snprintf(line, sizeof line, "%s %s", d->node, d->id);
    if (journal_append(d->m->journal, kind, line, (size_t)n, &e) < 0)
        log_fail(&e, "remembering the deletion of snapshot %s", d->id);
}

static void drop(const struct drop *d)
{
    Cube__Node__V1__DeleteSnapshotRequest q = CUBE__NODE__V1__DELETE_SNAPSHOT_REQUEST__INIT;
    struct err e = {0}, none = {0};
    q.snapshot_id = (char *)d->id;
    if (node_call(d->m, d->node, "/cube.node.v1.Sandboxes/DeleteSnapshot", &q.base,
                  &cube__node__v1__kill_reply__descriptor, CALL_MS, NULL, NULL, &e) == 0) {
        drops_done(d->m, d->node, d->id);
        if (d->again)
            remember(d, "undrop");
        return;
    }
    log_line(LOG_WARN, &(struct log_about){.err = &e}, "deleting snapshot %s: %s; it is tried again", d->id,
             e.msg);
    /* Due as soon as the node reports; one that has answered is asked again in a minute. */
    if (!d->again || e.code == ERR_UNAVAILABLE)
        drops_note(d->m, d->node, d->id, d->m->now_ms(), &none);
    if (!d->again)
        remember(d, "drop");
}

static void drop_fiber(void *arg)
{
    struct drop *d = arg;
    drop(d);
    calls -= d->again;
    free(d);
}

static void drop_later(struct master *m, const char *node, const char *id, bool again)
{
    struct drop *d = calloc(1, sizeof *d);
    if (!d)
        abort();
    d->m = m;
    d->again = again;
    snprintf(d->node, sizeof d->node, "%s", node);
    snprintf(d->id, sizeof d->id, "%s", id);
    calls += again;
    fiber_spawn(drop_fiber, d);
}

void snapshot_drop_later(struct master *m, const char *node, const char *id)
{
    drop_later(m, node, id, false);
}

static int due(const redisReply *r, void *data, struct err *e)
{
    if (r->type != REDIS_REPLY_ARRAY)
        return err_set(e, ERR_INTERNAL, "reading the snapshots to delete: unexpected answer");
    for (size_t i = 0; i + 1 < r->elements; i += 2)
        drop_later(data, r->element[i]->str, r->element[i + 1]->str, true);
    return 0;
}

void drops_sweep(struct master *m)
{
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    if (calls >= CALLS_MAX)
        return;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "drops");
    db_arg_int(&a, m->now_ms());
    if (db_eval(m, &script_catalog, &a, due, m, &e) < 0 && e.code != ERR_UNAVAILABLE)
        log_fail(&e, "looking for snapshots to delete");
}
