/* Owns the translation of sandboxes into what masters read. Invariant: a transient state is reported as the
 * stable one that the node would fall back to, because only masters own transitions; a sandbox that ended by
 * itself is in every report until a master has confirmed it by a Kill. */
#include "node/daemon/report.h"

#include "lib/base/clock.h"
#include "node/daemon/capacity.h"
#include "node/daemon/network.h"
#include "node/daemon/selftest.h"
#include "node/template/catalog.h"

struct filling {
    bool only_changed;
    size_t count;
    Cube__Master__V1__NodeSandbox **list;
};

static int64_t wall_deadline(const struct sandbox *sb)
{
    return sb->deadline_boot_ms ? clock_realtime_ms() + sb->deadline_boot_ms - clock_boot_ms() : 0;
}

static void add(struct sandbox *sb, void *data)
{
    struct filling *f = data;
    if (f->only_changed && !sb->changed && !(sandbox_is_over(sb) && !sb->settled))
        return;
    if (sb->state == SB_STATE(CREATING) || sb->state == SB_STATE(KILLING))
        return; /* the answer to the command says it */
    Cube__Master__V1__NodeSandbox *m = calloc(1, sizeof *m);
    f->list = realloc(f->list, (f->count + 1) * sizeof *f->list);
    if (!m || !f->list)
        abort();
    cube__master__v1__node_sandbox__init(m);
    m->spec = sb->spec;
    m->gen = sb->gen;
    m->state = sb->state == SB_STATE(PAUSING)    ? SB_STATE(RUNNING)
               : sb->state == SB_STATE(RESUMING) ? SB_STATE(PAUSED)
                                                 : sb->state;
    m->end_ms = sandbox_is_live(sb) ? wall_deadline(sb) : sb->ended_ms;
    m->reason = sb->reason;
    m->started_ms = sb->started_ms;
    m->snapshot_id = sb->snapshot_id;
    m->healthy = sb->healthy;
    m->last_activity_ms = sb->last_activity_ms;
    m->open_streams = sb->open_streams;
    m->cpu_milli = sb->cpu_milli;
    m->guest_oom_kills = sb->oom_kills;
    m->memory_rss_mib = sb->rss_mib;
    m->last_answer_ms = sb->last_answer_ms;
    m->awake = (char *)sb->awake;
    m->filesystem_only = sb->filesystem_only;
    m->envd_version = sb->envd_version;
    m->isolation = sb->isolation;
    sb->changed = false;
    f->list[f->count++] = m;
}

void report_sandboxes(struct node *n, bool only_changed, size_t *count, Cube__Master__V1__NodeSandbox ***list)
{
    struct filling f = {.only_changed = only_changed};
    sandbox_each(n, add, &f);
    *count = f.count;
    *list = f.list;
}

void report_sandboxes_free(size_t count, Cube__Master__V1__NodeSandbox **list)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

void report_fill(struct node *n, bool full, struct report *out)
{
    *out = (struct report){0};
    cube__master__v1__node_report__init(&out->message);
    capacity_fill(n, &out->capacity);
    out->message.capacity = &out->capacity;
    out->message.full = full;
    out->message.pressure = capacity_pressure(n);
    out->message.unfit = *selftest_unfit() || *network_fault();
    out->message.templates = catalog_ids(n->templates, &out->message.n_templates);
    report_sandboxes(n, !full, &out->message.n_sandboxes, &out->message.sandboxes);
}

void report_free(struct report *r)
{
    report_sandboxes_free(r->message.n_sandboxes, r->message.sandboxes);
    r->message.sandboxes = NULL;
    r->message.n_sandboxes = 0;
}
