/* Owns pauses and snapshots. Invariant: the sandbox counts as paused only when the snapshot is durable in the
 * store, and until then it can go on; when anything fails on the way (a full disk), it does go on. */
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/eventlog.h"
#include "node/daemon/guest.h"
#include "node/daemon/master_link.h"
#include "node/daemon/record.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/stats.h"
#include "node/daemon/vm_base.h"
#include "node/store/content.h"
#include "node/vmm/memfile.h"

#include <fcntl.h>
#include <string.h>

#define FREEZE_MS 3000
#define NEWEST "delta-new" /* in a draft only: what is about to be merged */

struct flush {
    struct node *node;
    char id[22];
    int rc;
    struct fiber_event done;
    struct err error;
};

struct saving {
    struct sandbox *sb;
    struct vm *vm;
    struct draft draft;
    struct manifest base, manifest;
    char artifact[96];
    bool memory, clone_layer, merge;
    int64_t began_us;
    int layer_from, layer_to;
    struct err error;
};

static int clone_layer(void *arg)
{
    struct saving *s = arg;
    return content_clone(s->layer_from, s->layer_to, &s->error);
}

static void describe(struct saving *s, const char *snapshot_id)
{
    struct manifest *o = &s->manifest;
    const struct manifest *b = &s->base;
    *o = (struct manifest){.kind = MANIFEST_SNAPSHOT,
                           .created_ms = clock_realtime_ms(),
                           .vcpus = b->vcpus,
                           .memory_mib = b->memory_mib,
                           .disk_mib = b->disk_mib,
                           .guest_protocol = GUEST_PROTOCOL,
                           .has_memory = s->memory,
                           .class = s->sb->node->class};
    snprintf(o->id, sizeof o->id, "%s", snapshot_id);
    snprintf(o->parent, sizeof o->parent, "%s", s->sb->spec->template_id);
    snprintf(o->sandbox, sizeof o->sandbox, "%s", s->sb->id);
    memcpy(o->kernel, b->kernel, sizeof o->kernel);
    memcpy(o->tools, b->tools, sizeof o->tools);
    snprintf(o->envd_version, sizeof o->envd_version, "%s", s->sb->envd_version);
    snprintf(o->default_user, sizeof o->default_user, "%s", s->sb->default_user);
    snprintf(o->default_workdir, sizeof o->default_workdir, "%s", s->sb->default_workdir);
    snprintf(s->artifact, sizeof s->artifact, "snap/%s", snapshot_id);
}

/* Number of deltas that the VM was restored with. */
static const char *const delta_names[IMAGE_DELTAS] = {"delta-0", "delta-1", "delta-2", "delta-3"};

static int base_deltas(const struct manifest *base)
{
    int n = 0;
    while (n < IMAGE_DELTAS && manifest_find(base, delta_names[n]))
        n++;
    return n;
}

/* Memory and state into the draft: everything when there is no base, else a delta on top of its chain; when
 * that would become too long, the whole chain is merged into one delta (before it is published, after the
 * guest's memory was written). */
static int save_memory(struct saving *s, struct err *e)
{
    int deltas = base_deltas(&s->base);
    bool delta = s->base.has_memory;
    s->merge = delta && deltas == IMAGE_DELTAS;
    const char *name = s->merge ? NEWEST : delta ? delta_names[deltas] : "memory";
    _cleanup_close_ int memory = draft_create(&s->draft, name, e);
    _cleanup_close_ int state = memory < 0 ? -1 : draft_create(&s->draft, "state", e);
    if (state < 0)
        return -1;
    Cube__Vmm__V1__SnapshotDone done;
    struct vm_snapshot snap = {.state = state, .memory = memory, .delta = delta};
    if (vm_snapshot(s->vm, &snap, &done, e) < 0)
        return -1;
    if (manifest_add(&s->manifest, "state", 0, NULL, e) < 0 ||
        manifest_add(&s->manifest, s->merge ? delta_names[0] : name, 0, NULL, e) < 0)
        return -1;
    if (!delta)
        return 0;
    if (vm_base_to_draft(s->vm, &s->base, "memory", &s->draft, &s->manifest, e) < 0)
        return -1;
    for (int i = 0; i < deltas && !s->merge; i++)
        if (vm_base_to_draft(s->vm, &s->base, delta_names[i], &s->draft, &s->manifest, e) < 0)
            return -1;
    if (manifest_find(&s->base, "working-set"))
        return vm_base_to_draft(s->vm, &s->base, "working-set", &s->draft, &s->manifest, e);
    return 0;
}

/* A pause takes the layer as it is: nobody writes to it any more. A snapshot takes a copy. */
static int save_layer(struct saving *s, struct err *e)
{
    if (manifest_add(&s->manifest, "layer", 0, NULL, e) < 0)
        return -1;
    if (!s->clone_layer)
        return linkat(s->vm->file_dir, "layer", s->draft.fd, "layer", 0) < 0
                   ? err_sys(e, ERR_INTERNAL, "keeping the disk of %s", s->sb->id)
                   : 0;
    _cleanup_close_ int from = vm_layer_open(s->vm, e);
    _cleanup_close_ int to = from < 0 ? -1 : draft_create(&s->draft, "layer", e);
    if (to < 0)
        return -1;
    s->layer_from = from;
    s->layer_to = to;
    if (fiber_offload(clone_layer, s) == 0)
        return 0;
    *e = s->error;
    return err_wrap(e, "copying the disk of %s", s->sb->id);
}

/* The record says "pausing, into this snapshot" durably before the snapshot appears, and whoever reads that
 * later looks whether it did: so the pause is durable the moment the snapshot is. It is flushed while the
 * guest's memory is written. */
static int flush_record(void *arg)
{
    struct flush *f = arg;
    return record_flush(f->node, f->id, &f->error);
}

static void run_flush(void *arg)
{
    struct flush *f = arg;
    f->rc = fiber_offload(flush_record, f);
    fiber_event_set(&f->done);
}

static int merge_chain(struct saving *s, struct err *e)
{
    int fds[IMAGE_DELTAS + 1];
    int opened = 0, rc = 0;
    for (int i = 0; i <= IMAGE_DELTAS && rc == 0; i++) {
        char path[32];
        snprintf(path, sizeof path, "base/delta-%d", i);
        fds[i] = i < IMAGE_DELTAS ? openat(s->vm->file_dir, path, O_RDONLY | O_CLOEXEC)
                                  : openat(s->draft.fd, NEWEST, O_RDONLY | O_CLOEXEC);
        rc = fds[i] < 0 ? err_sys(e, ERR_INTERNAL, "opening the memory deltas of %s", s->sb->id) : 0;
        opened += rc == 0;
    }
    _cleanup_close_ int out = rc < 0 ? -1 : draft_create(&s->draft, delta_names[0], e);
    if (out >= 0)
        rc = memfile_merge(fds, IMAGE_DELTAS + 1, (uint64_t)s->base.memory_mib << 20, out, e);
    for (int i = 0; i < opened; i++)
        close(fds[i]);
    if (out < 0 || rc < 0)
        return -1;
    return unlinkat(s->draft.fd, NEWEST, 0) < 0 ? err_sys(e, ERR_INTERNAL, "removing a merged delta") : 0;
}

static int merge_and_publish(void *arg)
{
    struct saving *s = arg;
    if (s->merge && merge_chain(s, &s->error) < 0)
        return -1;
    return draft_publish(&s->draft, &s->manifest, s->artifact, &s->error);
}

static int write_all(struct saving *s, struct err *e)
{
    if (vm_base_to_draft(s->vm, &s->base, "root.ext4", &s->draft, &s->manifest, e) < 0)
        return -1;
    if (s->memory) {
        if (save_memory(s, e) < 0)
            return -1;
    } else if (vm_set_frozen(s->vm, true, e) < 0) {
        return -1;
    }
    return save_layer(s, e);
}

static int make_durable(struct saving *s, struct err *e)
{
    if (fiber_offload(merge_and_publish, s) == 0)
        return 0;
    *e = s->error;
    return -1;
}

static void go_on(struct saving *s)
{
    struct err e = {0};
    if (vm_set_frozen(s->vm, false, &e) < 0 || guest_thaw(s->vm, FREEZE_MS, &e) < 0)
        log_line(LOG_WARN, &(struct log_about){.sandbox = s->sb->id, .gen = s->sb->gen, .err = &e},
                 "waking the guest again");
}

static void snapshot_name(const char *wanted, char out[64])
{
    if (*wanted)
        snprintf(out, 64, "%s", wanted);
    else
        id_random(out, 20);
}

static int check(struct sandbox *sb, const char *id, uint64_t gen, const char *snapshot_id, struct err *e)
{
    if (!sb || sandbox_is_over(sb))
        return err_set(e, ERR_NOT_FOUND, "no sandbox %s on this node", id);
    if (gen && gen != sb->gen)
        return sandbox_stale(sb, gen, e);
    size_t n = strlen(snapshot_id);
    if (n >= 48 || strspn(snapshot_id, "abcdefghijklmnopqrstuvwxyz0123456789-") != n)
        return err_set(e, ERR_INVALID, "'%s' is no snapshot ID", snapshot_id);
    return 0;
}

static int saving_open(struct saving *s, const char *snapshot_id, bool filesystem_only, struct err *e)
{
    s->vm = s->sb->vm;
    s->memory = !filesystem_only;
    s->began_us = clock_mono_us();
    if (vm_base_manifest(s->vm, &s->base, e) < 0)
        return -1;
    describe(s, snapshot_id);
    return draft_open(&s->sb->node->store, &s->draft, e);
}

/* The last word. It is paused even when the disk takes no more: the record on it names the snapshot, and that
 * is there. What replaces that record is flushed as well, or a crash of the host could leave neither. */
static void settle_paused(struct sandbox *sb)
{
    struct flush f = {.node = sb->node};
    snprintf(f.id, sizeof f.id, "%s", sb->id);
    if (sandbox_set_state(sb, SB_STATE(PAUSED), "", &f.error) < 0) {
        sandbox_enter(sb, SB_STATE(PAUSED));
        master_link_changed(sb);
    } else if (fiber_offload(flush_record, &f) == 0) {
        return;
    }
    log_line(LOG_WARN, &(struct log_about){.sandbox = sb->id, .gen = sb->gen, .err = &f.error},
             "the record of the pause");
}

int sandbox_pause(struct node *n, const Cube__Node__V1__PauseRequest *req, Cube__Node__V1__PauseReply *out,
                  char snapshot_id[64], struct err *e)
{
    struct sandbox *sb = sandbox_find(n, req->sandbox_id);
    if (check(sb, req->sandbox_id, req->gen, req->snapshot_id, e) < 0)
        return -1;
    fiber_lock(&sb->op);
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    if (check(sb, req->sandbox_id, req->gen, req->snapshot_id, e) < 0)
        return -1;
    if (sb->state == SB_STATE(PAUSED)) { /* asked again, after an answer that got lost */
        snprintf(snapshot_id, 64, "%s", sb->snapshot_id);
        return 0;
    }
    if (sb->state != SB_STATE(RUNNING) || sb->vm->ended)
        return err_set(e, ERR_CONFLICT, "%s is not running", sb->id);
    struct saving s = {.sb = sb, .draft.fd = -1};
    snapshot_name(req->snapshot_id, snapshot_id);
    char artifact[96];
    snprintf(artifact, sizeof artifact, "snap/%s", snapshot_id);
    if (store_presence(&n->store, artifact) != MISSING) /* publishing would keep what is there */
        return err_set(e, ERR_CONFLICT, "there is a snapshot %s already", snapshot_id);
    if (saving_open(&s, snapshot_id, req->filesystem_only, e) < 0)
        return -1;
    snprintf(sb->snapshot_id, sizeof sb->snapshot_id, "%s", snapshot_id);
    int rc = sandbox_set_state(sb, SB_STATE(PAUSING), "", e);
    if (rc == 0) {
        struct err why = {0};
        struct flush flush = {.node = n};
        snprintf(flush.id, sizeof flush.id, "%s", sb->id);
        fiber_spawn(run_flush, &flush);
        out->guest_unresponsive = guest_freeze(s.vm, FREEZE_MS, &why) < 0;
        rc = write_all(&s, e);
        out->frozen_us = clock_mono_us() - s.began_us;
        fiber_event_wait(&flush.done, -1);
        if (rc == 0 && flush.rc < 0) {
            *e = flush.error;
            rc = -1;
        }
        if (rc == 0)
            rc = make_durable(&s, e);
        out->durable_us = clock_mono_us() - s.began_us;
    }
    draft_drop(&s.draft);
    stats_pause(rc == 0, out->frozen_us, out->durable_us);
    if (rc < 0) {
        sb->snapshot_id[0] = 0;
        if (!s.vm->ended && !sb->kill_wanted)
            go_on(&s);
        sandbox_set_state(sb, SB_STATE(RUNNING), "", NULL);
        if (s.vm->ended)
            sandbox_on_vm_end(sb);
        return err_wrap(e, "pausing %s", sb->id);
    }
    vm_unpublish(n, sb->id);
    sb->vm = NULL;
    sb->filesystem_only = req->filesystem_only;
    settle_paused(sb);
    vm_retire(s.vm);
    return 0;
}

int sandbox_snapshot(struct node *n, const Cube__Node__V1__SnapshotRequest *req, char snapshot_id[64],
                     int64_t *frozen_us, struct err *e)
{
    struct sandbox *sb = sandbox_find(n, req->sandbox_id);
    if (check(sb, req->sandbox_id, req->gen, req->snapshot_id, e) < 0)
        return -1;
    fiber_lock(&sb->op);
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    if (check(sb, req->sandbox_id, req->gen, req->snapshot_id, e) < 0)
        return -1;
    snapshot_name(req->snapshot_id, snapshot_id);
    char artifact[96];
    snprintf(artifact, sizeof artifact, "snap/%s", snapshot_id);
    if (store_presence(&n->store, artifact) == PRESENT)
        return 0; /* asked again */
    if (sb->state != SB_STATE(RUNNING) || sb->vm->ended)
        return err_set(e, ERR_CONFLICT, "%s is not running", sb->id);
    struct saving s = {.sb = sb, .draft.fd = -1, .clone_layer = true};
    if (saving_open(&s, snapshot_id, req->filesystem_only, e) < 0)
        return -1;
    struct err why = {0};
    if (guest_freeze(s.vm, FREEZE_MS, &why) < 0)
        log_line(LOG_WARN, &(struct log_about){.sandbox = sb->id, .gen = sb->gen, .err = &why},
                 "snapshot of a guest that does not answer");
    int rc = write_all(&s, e);
    if (!s.vm->ended)
        go_on(&s);
    *frozen_us = clock_mono_us() - s.began_us;
    if (rc == 0)
        rc = make_durable(&s, e);
    draft_drop(&s.draft);
    stats_snapshot(rc == 0);
    if (s.vm->ended)
        sandbox_on_vm_end(sb);
    return rc < 0 ? err_wrap(e, "snapshotting %s", sb->id) : 0;
}

struct removal {
    struct node *node;
    char artifact[96];
    struct err error;
};

static int remove_it(void *arg)
{
    struct removal *r = arg;
    return store_remove(&r->node->store, r->artifact, &r->error);
}

static void find_user(struct sandbox *sb, void *data)
{
    const char **id = data;
    bool needs =
        sb->state == SB_STATE(PAUSED) || sb->state == SB_STATE(PAUSING) || sb->state == SB_STATE(RESUMING);
    if (needs && *id && strcmp(sb->snapshot_id, *id) == 0)
        *id = NULL;
}

int snapshot_delete(struct node *n, const char *snapshot_id, bool *existed, struct err *e)
{
    struct removal r = {.node = n};
    size_t len = strlen(snapshot_id);
    if (len == 0 || len >= 48 || strspn(snapshot_id, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
        return err_set(e, ERR_INVALID, "'%s' is no snapshot ID", snapshot_id);
    const char *id = snapshot_id;
    sandbox_each(n, find_user, &id);
    if (!id)
        return err_set(e, ERR_CONFLICT, "a paused sandbox needs snapshot %s", snapshot_id);
    snprintf(r.artifact, sizeof r.artifact, "snap/%s", snapshot_id);
    *existed = store_presence(&n->store, r.artifact) == PRESENT;
    if (fiber_offload(remove_it, &r) == 0)
        return 0;
    *e = r.error;
    return -1;
}
