/* Owns the end of the snapshots that forks make. Invariant: one is there as long as a sandbox that was made
 * from it runs or is paused, and not for ever after that, whoever died meanwhile. */
#include "lib/base/log.h"
#include "master/cell.h"
#include "master/catalog.h"
#include "master/ops.h"

#include <string.h>

void forks_done(struct master *m, const char *snapshot)
{
    struct err e = {0};
    int64_t done;
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "forked");
    db_arg(&a, snapshot);
    db_arg_int(&a, m->now_ms());
    if (db_eval(m, &script_catalog, &a, catalog_int_parse, &done, &e) < 0)
        log_fail(&e, "noting the end of the fork of snapshot %s", snapshot); /* ten minutes later, then */
}

/* Redis has forgotten them, whoever wants one gets 404 from now on. */
static int unforked(const redisReply *r, void *data, struct err *e)
{
    struct master *m = data;
    (void)e;
    for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i < r->elements; i++) {
        const redisReply *pb = r->element[i];
        Cube__Master__V1__Template *t =
            pb->type == REDIS_REPLY_STRING
                ? cube__master__v1__template__unpack(NULL, pb->len, (const uint8_t *)pb->str)
                : NULL;
        if (!t)
            continue;
        struct err why = {0};
        if (journal_append(m->journal, "untemplate", t->template_id, strlen(t->template_id), &why) < 0)
            log_fail(&why, "noting the end of snapshot %s", t->template_id);
        snapshot_drop_later(m, t->node_id, t->template_id);
        cube__master__v1__template__free_unpacked(t, NULL);
    }
    return 0;
}

void forks_sweep(struct master *m)
{
    struct err e = {0};
    _cleanup_db_args_ struct db_args a;
    db_args_start(&a, m);
    db_arg(&a, "force");
    db_arg(&a, "unfork");
    db_arg_int(&a, m->now_ms());
    if (db_eval(m, &script_catalog, &a, unforked, m, &e) < 0 && e.code != ERR_UNAVAILABLE)
        log_fail(&e, "looking for forks' snapshots that nobody needs");
}
