/* Owns the ways out of `running`: a kill that was asked for, and a VM that ended by itself. Invariant:
 * whichever comes first, the guest runs no more and cannot be reached before the sandbox counts as over; what
 * is left of its VM stays listed, so that it goes in any case; and a second kill finds nothing to do. */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "node/daemon/jailer.h"
#include "node/daemon/record.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/stats.h"

#include <string.h>

struct dropped {
    struct node *node;
    char away[STORE_AWAY_LEN];
    struct err error;
};

static int remove_rest(void *arg)
{
    struct dropped *d = arg;
    return tree_remove(d->node->store.fd, d->away, &d->error);
}

static void drop(void *arg)
{
    struct dropped *d = arg;
    if (fiber_offload(remove_rest, d) < 0)
        log_fail(&d->error, "removing %s", d->away);
    free(d);
}

/* The record names the snapshot until it is out of sight: a node that ends in between does this again. */
void sandbox_drop_pause(struct sandbox *sb)
{
    char artifact[96];
    if (!*sb->snapshot_id)
        return;
    struct dropped *d = calloc(1, sizeof *d);
    if (!d)
        abort();
    d->node = sb->node;
    snprintf(artifact, sizeof artifact, "snap/%s", sb->snapshot_id);
    if (store_hide(&sb->node->store, artifact, d->away, &d->error) < 0) {
        log_fail(&d->error, "the pause of %s is used up", sb->id);
        free(d);
        return;
    }
    sb->snapshot_id[0] = 0;
    sandbox_save(sb, false, NULL);
    if (*d->away)
        fiber_spawn(drop, d);
    else
        free(d);
}

static void take_down(struct sandbox *sb)
{
    vm_unpublish(sb->node, sb->id);
    struct vm *vm = sb->vm;
    sb->vm = NULL;
    vm_retire(vm);
    sandbox_drop_pause(sb);
}

/* A command for a sandbox that never was here leaves a tombstone, so that a late Start of the same generation
 * is refused. */
static int bury_unknown(struct node *n, const char *id, uint64_t gen, struct err *e)
{
    Cube__V1__SandboxSpec spec = CUBE__V1__SANDBOX_SPEC__INIT;
    spec.sandbox_id = (char *)id;
    struct sandbox *sb = sandbox_new(n, &spec);
    sb->gen = gen;
    return sandbox_set_state(sb, SB_STATE(KILLED), "killed before it started", e);
}

static int check_generation(const struct sandbox *sb, uint64_t gen, struct err *e)
{
    return gen && gen < sb->gen ? sandbox_stale(sb, gen, e) : 0;
}

int sandbox_kill(struct node *n, const char *id, uint64_t gen, const char *reason, bool *existed,
                 struct err *e)
{
    *existed = false;
    struct sandbox *sb = sandbox_find(n, id);
    if (!sb)
        return gen ? bury_unknown(n, id, gen, e) : 0;
    if (check_generation(sb, gen, e) < 0)
        return -1;
    if (sandbox_is_over(sb)) {
        if (gen > sb->gen) {
            sb->gen = gen;
            return sandbox_save(sb, false, e);
        }
        return 0;
    }
    sb->kill_wanted = true;
    sb->users++;
    if (!fiber_lock_idle(&sb->op) && sb->vm && sb->vm->pid)
        jailer_kill(n->jailer, sb->vm->name, NULL); /* ends what the running operation waits for */
    fiber_lock(&sb->op);
    sb->users--;
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    if (check_generation(sb, gen, e) < 0) /* a start that waited before us made a VM that is not meant */
        return -1;
    if (sandbox_is_over(sb)) { /* the operation before us ended it, or another kill did */
        *existed = sb->state != SB_STATE(KILLED);
        return sb->state == SB_STATE(KILLED) ? 0 : sandbox_set_state(sb, SB_STATE(KILLED), reason, e);
    }
    *existed = true;
    stats_kill();
    sandbox_set_state(sb, SB_STATE(KILLING), reason, NULL); /* on a full disk the kill goes on all the same */
    take_down(sb);
    if (gen > sb->gen)
        sb->gen = gen;
    return sandbox_set_state(sb, SB_STATE(KILLED), reason, e);
}

static void vm_ended(void *arg)
{
    struct sandbox *sb = arg;
    fiber_lock(&sb->op);
    struct fiber_lock *held _cleanup_unlock_ = &sb->op;
    if (!sb->vm || !sb->vm->ended || sb->state != SB_STATE(RUNNING))
        return; /* a kill or a pause was quicker */
    char reason[200], tail[600];
    snprintf(reason, sizeof reason, "%s", sb->vm->end_reason);
    bool wanted = strstr(reason, "guest shutdown") == reason || strstr(reason, "guest reset") == reason;
    vm_console_tail(sb->vm, tail, sizeof tail);
    if (!wanted)
        log_line(LOG_WARN, &(struct log_about){.sandbox = sb->id, .gen = sb->gen}, "%s; console: %s", reason,
                 tail);
    stats_lost();
    take_down(sb);
    sandbox_set_state(sb, wanted ? SB_STATE(KILLED) : SB_STATE(FAILED), reason, NULL);
}

void sandbox_on_vm_end(struct sandbox *sb)
{
    fiber_spawn(vm_ended, sb);
}
