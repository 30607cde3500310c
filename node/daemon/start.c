/* Owns the way of a sandbox into `running`: create, resume, start from a snapshot. Invariant: a step that
 * fails undoes all before it (the VM with its TAP, cgroup, sockets and files; a new sandbox ends as `failed`,
 * a paused one is paused again), and the sockets are published only after the guest confirmed its identity.
 */
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "node/daemon/capacity.h"
#include "node/daemon/eventlog.h"
#include "node/daemon/guest.h"
#include "node/daemon/network.h"
#include "node/daemon/ready.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/selftest.h"
#include "node/daemon/stats.h"
#include "node/daemon/vm_base.h"
#include "node/template/image.h"
#include "node/template/image_cache.h"

#include <string.h>

/* Work for a start that need not be waited for one after the other: it runs in a fiber of its own while the
 * start waits for the VMM or the guest. Joined before the start ends, whatever becomes of it. */
struct beside {
    bool spawned;
    int rc;
    struct fiber_event rules, done;
    struct err error;
};

struct start {
    struct node *node;
    const Cube__Node__V1__StartRequest *req;
    struct sandbox *sb;
    struct image image;
    bool restore, was_paused;
    struct vm *previous; /* of a rollback: what runs until the snapshot is sure, and goes on when it is not */
    uint64_t previous_gen;
    const char *snapshot_id;
    Cube__Node__V1__Receipt *receipt;
    struct beside host, hello;
    bool cancelled;
    int64_t began_us;
    struct err error; /* of work that ran on a worker thread */
};

static int check_request(const Cube__Node__V1__StartRequest *req, struct err *e)
{
    if (!req->spec || !id_sandbox_valid(req->spec->sandbox_id, strlen(req->spec->sandbox_id)))
        return err_set(e, ERR_INVALID, "the command names no valid sandbox ID");
    if (req->gen == 0)
        return err_set(e, ERR_INVALID, "generation 0 for %s", req->spec->sandbox_id);
    if (req->ticket.len != 32)
        return err_set(e, ERR_INVALID, "the ticket of %s has %zu bytes, not 32", req->spec->sandbox_id,
                       req->ticket.len);
    return 0;
}

static int check_generation(const struct sandbox *sb, uint64_t gen, struct err *e)
{
    return sb && gen <= sb->gen ? sandbox_stale(sb, gen, e) : 0;
}

static int check_state(const struct sandbox *sb, const struct start *s, struct err *e)
{
    const char *id = s->req->spec->sandbox_id;
    bool rollback = s->restore && *s->req->snapshot_id && sb && sb->state == SB_STATE(RUNNING);
    if (sb && sandbox_is_live(sb) && !rollback)
        return err_set(e, ERR_CONFLICT, "%s already runs here as gen=%llu", id, (unsigned long long)sb->gen);
    if (s->restore && !*s->req->snapshot_id && (!sb || sb->state != SB_STATE(PAUSED)))
        return err_set(e, ERR_NOT_FOUND, "%s is not paused on this node", id);
    if (!s->restore && sb && sb->state == SB_STATE(PAUSED))
        return err_set(e, ERR_CONFLICT, "%s is paused here", id);
    return 0;
}

static int open_image(void *arg)
{
    struct start *s = arg;
    if (s->snapshot_id)
        return image_open_snapshot(s->node, s->snapshot_id, !s->req->reboot, &s->image, &s->error);
    return image_open_template(s->node, s->sb->spec->template_id, s->node->cfg.snapshots, &s->image,
                               &s->error);
}

/* The sandbox's limits are its template's, unless the command asks for others: then its memory snapshot does
 * not fit and it boots. */
static int fit_limits(struct start *s, struct err *e)
{
    Cube__V1__Limits *l = s->sb->spec->limits;
    struct manifest *m = &s->image.manifest;
    if (!l || (l->vcpus == 0 && l->memory_mib == 0))
        return 0;
    bool same = (!l->vcpus || l->vcpus == m->vcpus) && (!l->memory_mib || l->memory_mib == m->memory_mib);
    if (!same && s->image.has_memory) {
        if (s->snapshot_id)
            return err_set(e, ERR_INVALID, "%s was made with %u vCPUs and %u MiB; it cannot change them",
                           s->snapshot_id, m->vcpus, m->memory_mib);
        image_close(&s->image);
        if (image_open_template(s->node, s->sb->spec->template_id, false, &s->image, e) < 0)
            return -1;
    }
    if (l->vcpus)
        m->vcpus = l->vcpus;
    if (l->memory_mib)
        m->memory_mib = l->memory_mib;
    return 0;
}

static int prepare_layer(struct start *s, struct vm *vm, int *out, struct err *e)
{
    _cleanup_close_ int fd = vm_layer_open(vm, e);
    if (fd < 0)
        return -1;
    if (s->image.layer >= 0 && vm_layer_copy(s->image.layer, fd, e) < 0)
        return err_wrap(e, "copying the disk of %s", s->sb->id);
    *out = fd_steal(&fd);
    return 0;
}

/* What the host keeps of the new VM: network rules first (the guest may not send before they are set), then
 * the record and the place where its sockets will be published. */
static void run_records(void *arg)
{
    struct start *s = arg;
    struct beside *b = &s->host;
    struct sandbox *sb = s->sb;
    if (b->rc == 0)
        b->rc = sandbox_set_state(sb, sb->state, "", &b->error);
    if (b->rc == 0)
        b->rc = vm_publish_prepare(sb->vm, sb->id, s->req->ticket.data, &b->error);
    fiber_event_set(&b->done);
}

static void run_host_side(void *arg)
{
    struct start *s = arg;
    struct beside *b = &s->host;
    b->rc = network_attach(s->node, s->sb, s->sb->vm, &b->error);
    fiber_event_set(&b->rules);
    fiber_spawn(run_records, s); /* behind whoever waited for the rules */
}

/* The connection waits in the VMM's listener, so the guest finds the greeting as soon as it runs. */
static void run_hello(void *arg)
{
    struct start *s = arg;
    struct beside *b = &s->hello;
    struct vm *vm = s->sb->vm;
    b->rc = s->cancelled || guest_connect(vm, &b->error) < 0
                ? -1
                : guest_hello(vm, s->node->cfg.restore_timeout_ms, &b->error);
    fiber_event_set(&b->done);
}

static void spawn_beside(struct start *s, struct beside *b, void (*run)(void *arg))
{
    b->spawned = true;
    fiber_spawn(run, s);
}

static void join(struct beside *b)
{
    if (b->spawned)
        fiber_event_wait(&b->done, -1);
}

static int start_guest(struct start *s, struct vm *vm, struct err *e)
{
    struct node *n = s->node;
    _cleanup_close_ int layer = -1;
    if (prepare_layer(s, vm, &layer, e) < 0)
        return -1;
    struct vm_image image;
    image_to_vm(&s->image, layer, &image);
    if (!s->image.has_memory)
        return vm_boot(vm, s->sb->id, s->sb->gen, &image, e) < 0 ||
                       guest_open(vm, n->cfg.boot_timeout_ms, e) < 0
                   ? -1
                   : guest_wait_healthy(vm, n->cfg.boot_timeout_ms, e);
    spawn_beside(s, &s->hello, run_hello);
    return vm_restore(vm, s->sb->id, s->sb->gen, &image, e);
}

static int identify(struct start *s, struct vm *vm, struct err *e)
{
    const struct manifest *m = &s->image.manifest;
    struct sandbox *sb = s->sb;
    const char *user = *s->req->default_user ? s->req->default_user
                       : *sb->default_user   ? sb->default_user
                                             : m->default_user;
    const char *dir = *s->req->default_workdir ? s->req->default_workdir
                      : *sb->default_workdir   ? sb->default_workdir
                                               : m->default_workdir;
    struct guest_identity id = {.sandbox_id = sb->id,
                                .envd_token = s->req->envd_token,
                                .default_user = user,
                                .default_workdir = dir,
                                .spec = sb->spec,
                                .gen = sb->gen,
                                .replace_envs = true};
    if (guest_identify(vm, &id, s->receipt, e) < 0)
        return -1;
    if (user != sb->default_user)
        snprintf(sb->default_user, sizeof sb->default_user, "%s", user);
    if (dir != sb->default_workdir)
        snprintf(sb->default_workdir, sizeof sb->default_workdir, "%s", dir);
    return 0;
}

/* Greeting and identity are on their way together. A greeting that got lost (the guest was not listening) is
 * said again, and the identity with it. */
static int meet(struct start *s, struct vm *vm, struct err *e)
{
    if (!s->hello.spawned)
        return identify(s, vm, e);
    int rc = vm->guest ? identify(s, vm, e) : -1;
    join(&s->hello);
    if (vm->ended)
        return err_set(e, ERR_UNAVAILABLE, "%s ended while it started: %s", s->sb->id, vm->end_reason);
    if (rc == 0 && s->hello.rc == 0)
        return 0;
    *e = (struct err){0};
    return guest_open(vm, s->node->cfg.restore_timeout_ms, e) < 0 ? -1 : identify(s, vm, e);
}

static int given_up(struct start *s, struct err *e)
{
    return s->sb->kill_wanted ? err_set(e, ERR_CONFLICT, "%s was deleted while it started", s->sb->id) : 0;
}

/* A rollback: the VM of the generation before goes once it is sure that the snapshot is whole. */
static void end_previous(struct sandbox *sb)
{
    struct vm *old = sb->vm;
    if (!old)
        return;
    vm_unpublish(sb->node, sb->id);
    sb->vm = NULL;
    vm_destroy(old);
}

/* A guest that was restored ahead of need; only for a plain create. */
static int take_ready(struct start *s)
{
    struct sandbox *sb = s->sb;
    const Cube__V1__Limits *l = sb->spec->limits;
    if (s->snapshot_id || s->restore || (l && (l->vcpus || l->memory_mib)))
        return -1;
    struct vm *vm = ready_take(s->node, sb->spec->template_id, &s->image.manifest, s->image.artifact);
    if (!vm)
        return -1;
    sb->vm = vm;
    vm->owner = sb;
    s->receipt->from_pool = s->receipt->was_ready = true;
    spawn_beside(s, &s->host, run_host_side);
    return 0;
}

static int make_guest(struct start *s, struct err *e)
{
    struct sandbox *sb = s->sb;
    const char *template_id = s->snapshot_id ? NULL : sb->spec->template_id;
    if (!template_id || image_cache_get(s->node, template_id, &s->image) < 0) {
        if (fiber_offload(open_image, s) < 0) {
            *e = s->error;
            return -1;
        }
        if (template_id)
            image_cache_put(s->node, template_id, &s->image);
    }
    if (fit_limits(s, e) < 0 || given_up(s, e) < 0)
        return -1;
    end_previous(sb);
    struct vm *vm = vm_acquire(s->node, e);
    if (!vm)
        return -1;
    sb->vm = vm;
    vm->owner = sb;
    s->receipt->from_pool = vm->pooled;
    spawn_beside(s, &s->host, run_host_side);
    return given_up(s, e) < 0 || vm_base_link(vm, &s->image, e) < 0 || start_guest(s, vm, e) < 0 ? -1 : 0;
}

/* Events are remembered by the guest until somebody subscribes, so this need not hold up the answer. */
static void subscribe(void *arg)
{
    struct vm *vm = arg;
    struct err e = {0};
    if (guest_subscribe(vm, &e) < 0 && !vm->ended)
        log_fail(&e, "subscribing to the events of %s", vm->name);
    vm->users--;
}

/* From here on user code may run: not before the network's rules are set. */
static int give_identity(struct start *s, struct err *e)
{
    fiber_event_wait(&s->host.rules, -1);
    if (s->host.rc < 0) {
        *e = s->host.error;
        return -1;
    }
    if (given_up(s, e) < 0 || meet(s, s->sb->vm, e) < 0)
        return -1;
    join(&s->host);
    if (s->host.rc < 0) {
        *e = s->host.error;
        return -1;
    }
    return given_up(s, e);
}

static int bring_up(struct start *s, struct err *e)
{
    struct sandbox *sb = s->sb;
    s->began_us = clock_mono_us();
    if (take_ready(s) < 0 && make_guest(s, e) < 0)
        return -1;
    struct vm *vm = sb->vm;
    s->receipt->vmm_us = clock_mono_us() - s->began_us;
    if (give_identity(s, e) < 0 || vm_publish(vm, sb->id, sb->gen, e) < 0)
        return -1;
    snprintf(sb->source, sizeof sb->source, "%s", s->image.artifact);
    snprintf(sb->envd_version, sizeof sb->envd_version, "%s", vm->envd_version);
    snprintf(sb->isolation, sizeof sb->isolation, "%s", vm->kvm_kind);
    sb->started_ms = clock_realtime_ms();
    sb->last_activity_ms = sb->started_ms;
    sb->healthy = true;
    sandbox_set_deadline(sb, s->req->remaining_ms);
    if (vm->ended)
        return err_set(e, ERR_UNAVAILABLE, "%s ended while it started: %s", sb->id, vm->end_reason);
    s->receipt->total_us = clock_mono_us() - s->began_us;
    vm->users++;
    fiber_spawn(subscribe, vm);
    return sandbox_set_state(sb, SB_STATE(RUNNING), "", e);
}

/* What a failed guest last said is the best hint that there is. */
static void log_console(struct sandbox *sb)
{
    char tail[600];
    if (!sb->vm)
        return;
    vm_console_tail(sb->vm, tail, sizeof tail);
    if (*tail)
        eventlog_add(sb->log, clock_realtime_ms(), "error", tail);
}

static void undo(struct start *s, const struct err *why)
{
    struct sandbox *sb = s->sb;
    struct vm *vm = sb->vm;
    if (vm && vm == s->previous) { /* nothing has happened to it */
        sb->gen = s->previous_gen;
        sandbox_enter(sb, SB_STATE(RUNNING));
        sandbox_set_state(sb, SB_STATE(RUNNING), "", NULL);
        if (vm->ended)
            sandbox_on_vm_end(sb);
        return;
    }
    log_console(sb);
    if (vm) { /* whoever still asks the guest gets an answer now */
        peer_free(vm->guest);
        vm->guest = NULL;
    }
    s->cancelled = true;
    join(&s->hello);
    join(&s->host);
    vm_unpublish(s->node, sb->id);
    sb->vm = NULL;
    vm_destroy(vm);
    sandbox_set_state(sb, s->was_paused ? SB_STATE(PAUSED) : SB_STATE(FAILED), why->msg, NULL);
}

/* A create may name a snapshot as its template. */
static const char *source_snapshot(struct node *n, const Cube__Node__V1__StartRequest *req, bool restore,
                                   const struct sandbox *sb)
{
    char artifact[160];
    if (*req->snapshot_id)
        return req->snapshot_id;
    if (restore)
        return sb->snapshot_id;
    snprintf(artifact, sizeof artifact, "tpl/%.64s", req->spec->template_id);
    if (store_presence(&n->store, artifact) != MISSING)
        return NULL;
    snprintf(artifact, sizeof artifact, "snap/%.64s", req->spec->template_id);
    return !strchr(req->spec->template_id, '/') && store_presence(&n->store, artifact) == PRESENT
               ? req->spec->template_id
               : NULL;
}

int sandbox_start(struct node *n, const Cube__Node__V1__StartRequest *req, bool restore,
                  Cube__Node__V1__Receipt *receipt, struct sandbox **out, struct err *e)
{
    struct start s = {.node = n, .req = req, .restore = restore, .receipt = receipt};
    image_init(&s.image);
    if (check_request(req, e) < 0 || selftest_admit(n, e) < 0 || network_admit(e) < 0)
        return -1;
    struct sandbox *sb = sandbox_find(n, req->spec->sandbox_id);
    if (check_generation(sb, req->gen, e) < 0 || check_state(sb, &s, e) < 0 || capacity_admit(n, sb, e) < 0)
        return -1;
    bool known = sb != NULL;
    if (!known)
        sb = sandbox_new(n, req->spec);
    fiber_lock(&sb->op);
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    if (check_generation(sb, req->gen, e) < 0 || check_state(sb, &s, e) < 0 ||
        (known && capacity_admit(n, sb, e) < 0)) /* others may have started while this one waited */
        return -1;
    if (known) /* only now: a command that is refused changes nothing */
        sandbox_set_spec(sb, req->spec);
    s.sb = sb;
    s.snapshot_id = source_snapshot(n, req, restore, sb);
    s.was_paused = sb->state == SB_STATE(PAUSED);
    s.previous = sb->vm;
    s.previous_gen = sb->gen;
    sb->gen = req->gen;
    sb->kill_wanted = false;
    sb->settled = false;
    sandbox_enter(sb, restore ? SB_STATE(RESUMING) : SB_STATE(CREATING));
    n->starting++;
    int rc = bring_up(&s, e);
    n->starting--;
    if (rc < 0) {
        log_line(LOG_WARN,
                 &(struct log_about){.sandbox = sb->id, .gen = sb->gen, .trace = req->trace, .err = e},
                 "start failed");
        undo(&s, e);
    } else {
        sandbox_drop_pause(sb); /* used up, whether the command named it or not */
    }
    image_close(&s.image);
    stats_start(restore, receipt->from_pool, rc == 0, receipt->total_us);
    if (rc == 0) {
        log_line(LOG_INFO, &(struct log_about){.sandbox = sb->id, .gen = sb->gen, .trace = req->trace},
                 "%s in %lld us", restore ? "restored" : "started", (long long)receipt->total_us);
        stats_start_parts(receipt->vmm_us, receipt->init_us);
    }
    *out = sb;
    return rc;
}
