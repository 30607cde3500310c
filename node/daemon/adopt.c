/* Owns the start of the daemon after any end of it. Invariant: a running sandbox is taken over only when its
 * process is the same (pid and start time), says so itself, and its files are there; one that was in between
 * two states goes back to the last one that was whole. */
#include "node/daemon/adopt.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "node/daemon/guest.h"
#include "node/daemon/network.h"
#include "node/daemon/jailer.h"
#include "node/daemon/record.h"
#include "node/daemon/sandbox.h"

#include <fcntl.h>
#include <string.h>

#define GUEST_MS 5000
#define SWEEP_MS 30000

static void copy(char *to, size_t max, const char *from)
{
    snprintf(to, max, "%s", from);
}

static struct sandbox *from_record(struct node *n, const Cube__Node__V1__Record *r)
{
    struct sandbox *sb = sandbox_new(n, r->spec);
    sb->gen = r->gen;
    sb->state = r->state;
    sb->started_ms = r->started_ms;
    sb->ended_ms = r->ended_ms;
    if (r->deadline_boot_ms && strcmp(r->boot_id, n->boot_id) == 0)
        sb->deadline_boot_ms = r->deadline_boot_ms;
    else if (r->deadline_ms)
        sb->deadline_boot_ms = clock_boot_ms() + r->deadline_ms - clock_realtime_ms();
    copy(sb->reason, sizeof sb->reason, r->reason);
    copy(sb->snapshot_id, sizeof sb->snapshot_id, r->snapshot_id);
    copy(sb->source, sizeof sb->source, r->source);
    copy(sb->default_user, sizeof sb->default_user, r->default_user);
    copy(sb->default_workdir, sizeof sb->default_workdir, r->default_workdir);
    copy(sb->isolation, sizeof sb->isolation, r->isolation);
    copy(sb->envd_version, sizeof sb->envd_version, r->envd_version);
    sb->last_activity_ms = clock_realtime_ms();
    return sb;
}

/* The guest may be busy or frozen for a moment: its VM runs, so it is not given up for that. */
static void greet_guest(void *arg)
{
    struct sandbox *sb = arg;
    struct vm *vm = sb->vm;
    struct err e = {0};
    fiber_lock(&sb->op);
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    if (sb->vm != vm || !vm)
        return;
    sb->healthy = guest_open(vm, GUEST_MS, &e) == 0 && guest_thaw(vm, GUEST_MS, &e) == 0 &&
                  guest_subscribe(vm, &e) == 0;
    if (!sb->healthy)
        log_line(LOG_WARN, &(struct log_about){.sandbox = sb->id, .gen = sb->gen, .err = &e},
                 "the guest does not answer");
}

static bool take_over(struct sandbox *sb, const Cube__Node__V1__Record *r, struct err *e)
{
    struct node *n = sb->node;
    if (!*r->vm_name || strcmp(r->boot_id, n->boot_id) != 0) {
        err_set(e, ERR_NOT_FOUND, "the host was restarted");
        return false;
    }
    struct vm *vm = vm_adopt(n, r->vm_name, r->vm_pid, r->vm_start_time, r->vm_socket, r->tap, sb->id,
                             sb->gen, r->vmm_gen, e);
    if (!vm)
        return false;
    sb->vm = vm;
    vm->owner = sb;
    network_adopt(n, sb, vm);
    vm_set_frozen(vm, false, NULL); /* a pause or a snapshot that was not finished held it */
    sb->state = SB_STATE(RUNNING);
    if (vm->ended) /* before it had an owner to be told, perhaps */
        sandbox_on_vm_end(sb);
    fiber_spawn(greet_guest, sb);
    return true;
}

/* Its VM may end while its record is written: what follows from that waits for the lock. */
static void settle(struct node *n, const Cube__Node__V1__Record *r)
{
    struct sandbox *sb = from_record(n, r);
    struct err e = {0};
    fiber_lock(&sb->op);
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    char artifact[96];
    snprintf(artifact, sizeof artifact, "snap/%s", sb->snapshot_id);
    enum presence snapshot =
        sb->state == SB_STATE(PAUSING) && *sb->snapshot_id ? store_presence(&n->store, artifact) : MISSING;
    switch (sb->state) {
    case SB_STATE(RUNNING):
    case SB_STATE(PAUSING):
        if (snapshot == PRESENT) {
            sandbox_set_state(sb, SB_STATE(PAUSED), "", NULL); /* published; only the last word was missing */
        } else if (take_over(sb, r, &e)) {
            sandbox_set_state(sb, SB_STATE(RUNNING), "", NULL);
            log_line(LOG_INFO, &(struct log_about){.sandbox = sb->id, .gen = sb->gen}, "adopted %s, pid %u",
                     sb->vm->name, sb->vm->pid);
        } else if (snapshot == PRESENCE_UNKNOWN) { /* not to be given up for that */
            sandbox_set_state(sb, SB_STATE(PAUSED), "", NULL);
        } else {
            vm_unpublish(n, sb->id);
            sandbox_set_state(sb, SB_STATE(LOST), e.msg, NULL);
        }
        break;
    case SB_STATE(RESUMING):
        vm_unpublish(n, sb->id);
        sandbox_set_state(sb, *sb->snapshot_id ? SB_STATE(PAUSED) : SB_STATE(FAILED),
                          "the node was restarted meanwhile", NULL);
        break;
    case SB_STATE(CREATING):
        vm_unpublish(n, sb->id);
        sandbox_set_state(sb, SB_STATE(FAILED), "the node was restarted meanwhile", NULL);
        break;
    case SB_STATE(KILLING):
        vm_unpublish(n, sb->id);
        sandbox_set_state(sb, SB_STATE(KILLED), sb->reason, NULL);
        break;
    default:
        break; /* paused and ended ones have no VM */
    }
    if (sb->state == SB_STATE(RUNNING) || sb->state == SB_STATE(KILLED) || sb->state == SB_STATE(LOST))
        sandbox_drop_pause(sb); /* used up, or never published */
}

struct names {
    char **name;
    size_t count;
};

static void names_of(int dir, struct names *out)
{
    *out = (struct names){0};
    struct store here = {.fd = dir, .path = NULL};
    store_list(&here, ".", &out->name, &out->count, NULL);
}

static void sweep_jailer(struct node *n)
{
    struct peer_reply reply _cleanup_reply_ = {0};
    const Cube__Jailer__V1__Listed *list;
    struct err e = {0};
    if (jailer_list(n->jailer, &reply, &list, &e) < 0)
        return;
    for (size_t i = 0; i < list->n_vms; i++) {
        const char *name = list->vms[i]->name;
        if (vm_find(name))
            continue;
        log_warn("removing VM process %s, which no sandbox owns", name);
        jailer_kill(n->jailer, name, NULL);
        jailer_forget(n->jailer, name, NULL);
    }
}

/* By the jailer's records: they are there before a TAP is, and stay when it went with the last who had it
 * open. */
static void sweep_taps(struct node *n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/jailer/tap", n->cfg.run_dir);
    int fd = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    struct names taps;
    if (fd < 0)
        return;
    names_of(fd, &taps);
    close(fd);
    size_t prefix = strlen(n->tap_prefix);
    for (size_t i = 0; i < taps.count; i++)
        if (strncmp(taps.name[i], n->tap_prefix, prefix) == 0 && taps.name[i][prefix] == '-' &&
            !vm_find_tap(taps.name[i])) {
            log_warn("removing TAP %s, which no sandbox owns", taps.name[i]);
            jailer_drop_tap(n->jailer, taps.name[i], NULL);
        }
    store_names_free(taps.name, taps.count);
}

static void sweep_dirs(int dir)
{
    struct names all;
    names_of(dir, &all);
    for (size_t i = 0; i < all.count; i++)
        if (!vm_find(all.name[i]))
            tree_remove(dir, all.name[i], NULL);
    store_names_free(all.name, all.count);
}

void sweep(struct node *n)
{
    sweep_jailer(n);
    sweep_taps(n);
    sweep_dirs(n->vms_fd);
    sweep_dirs(n->warm_fd);
}

static void sweeper(void *arg)
{
    struct node *n = arg;
    while (!n->stopping) {
        fiber_sleep(SWEEP_MS);
        if (n->ready && jailer_connected(n->jailer) && !n->stopping)
            sweep(n);
    }
}

void sweep_start(struct node *n)
{
    fiber_spawn(sweeper, n);
}

/* Directories below <run>/sb whose sandbox has no VM: the relay must not find them. */
static void sweep_published(struct node *n)
{
    struct names all;
    names_of(n->sb_fd, &all);
    for (size_t i = 0; i < all.count; i++) {
        struct sandbox *sb = sandbox_find(n, all.name[i]);
        if (!sb || !sb->vm)
            tree_remove(n->sb_fd, all.name[i], NULL);
    }
    store_names_free(all.name, all.count);
}

void adopt_all(struct node *n)
{
    struct names ids;
    names_of(n->sandboxes_fd, &ids);
    for (size_t i = 0; i < ids.count; i++) {
        struct err why = {0};
        Cube__Node__V1__Record *r = NULL;
        bool valid = id_sandbox_valid(ids.name[i], strlen(ids.name[i]));
        if (valid)
            record_tidy(n, ids.name[i]);
        if (!valid || record_load(n, ids.name[i], &r, &why) < 0) {
            /* Kept for an operator to look at, but out of the way; its VM, if any, is an orphan now. */
            if (why.code != ERR_NOT_FOUND)
                log_fail(&why, "the record of %s cannot be used", ids.name[i]);
            continue;
        }
        settle(n, r);
        cube__node__v1__record__free_unpacked(r, NULL);
    }
    store_names_free(ids.name, ids.count);
    sweep_published(n);
    network_settle(n);
    sweep(n);
    store_sweep(&n->store);
}
