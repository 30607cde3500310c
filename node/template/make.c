/* Owns the making of class snapshots. Invariant: no user code ever ran in the guest whose memory becomes a
 * template, and it never had an identity: it boots, envd becomes healthy, user processes are frozen, memory
 * is written. */
#include "node/template/make.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/guest.h"
#include "node/store/content.h"
#include "node/template/catalog.h"
#include "node/template/image.h"

#include <fcntl.h>
#include <string.h>

#define SETTLE_MS 4000
#define SETTLE_STEP_MS 100

struct making {
    struct node *node;
    struct image image;
    struct draft draft;
    struct manifest manifest;
    char artifact[160];
    struct err error;
};

static int open_template(void *arg)
{
    struct making *m = arg;
    return image_open_template(m->node, m->manifest.parent, false, &m->image, &m->error);
}

enum presence make_presence(struct node *n, const char *template_id, struct err *e)
{
    struct manifest m;
    char name[32], artifact[96];
    if (image_template_manifest(n, template_id, &m, e) < 0)
        return PRESENCE_UNKNOWN;
    class_snapshot_name(&m, &n->class, name);
    snprintf(artifact, sizeof artifact, "tpl/%s/%s", template_id, name);
    enum presence p = store_presence(&n->store, artifact);
    if (p == PRESENCE_UNKNOWN)
        err_set(e, ERR_UNAVAILABLE, "the store cannot say whether %s is there", artifact);
    return p;
}

static int publish(void *arg)
{
    struct making *m = arg;
    if (draft_publish(&m->draft, &m->manifest, m->artifact, &m->error) < 0)
        return -1;
    _cleanup_close_ int memory = store_open_file(&m->node->store, m->artifact, "memory", NULL);
    if (memory >= 0) /* its pages are charged to the VM that wrote them, which is gone */
        content_warm(memory, true);
    return 0;
}

/* Linux reports memory that it freed two seconds later, and dirties about 1 MiB of its page structures at its
 * first report: here, or in every clone. */
static void settle(struct vm *vm)
{
    uint64_t before = 0;
    for (int64_t waited = 0, same = 0; waited < SETTLE_MS && same < 3 * SETTLE_STEP_MS;
         waited += SETTLE_STEP_MS) {
        Cube__Vmm__V1__Stats stats;
        fiber_sleep(SETTLE_STEP_MS);
        if (vm_stats(vm, &stats, NULL) < 0)
            return;
        same = stats.reported_free_bytes && stats.reported_free_bytes == before ? same + SETTLE_STEP_MS : 0;
        before = stats.reported_free_bytes;
    }
}

/* Boots, and leaves state, memory and layer in the draft. */
static int run_guest(struct making *m, struct vm *vm, struct err *e)
{
    struct node *n = m->node;
    _cleanup_close_ int memory = draft_create(&m->draft, "memory", e);
    _cleanup_close_ int state = memory < 0 ? -1 : draft_create(&m->draft, "state", e);
    _cleanup_close_ int layer = state < 0 ? -1 : vm_layer_open(vm, e);
    if (layer < 0)
        return -1;
    struct vm_image image;
    image_to_vm(&m->image, layer, &image); /* RAM is anonymous: written at the end, in huge pages */
    if (vm_boot(vm, "", 0, &image, e) < 0 || guest_open(vm, n->cfg.boot_timeout_ms, e) < 0 ||
        guest_wait_healthy(vm, n->cfg.boot_timeout_ms, e) < 0 || guest_rehearse(vm, e) < 0 ||
        guest_freeze(vm, n->cfg.boot_timeout_ms, e) < 0)
        return -1;
    settle(vm);
    Cube__Vmm__V1__SnapshotDone done;
    struct vm_snapshot snap = {.state = state, .memory = memory};
    if (vm_snapshot(vm, &snap, &done, e) < 0)
        return -1;
    snprintf(m->manifest.envd_version, sizeof m->manifest.envd_version, "%s", vm->envd_version);
    catalog_set_envd_version(n->templates, vm->envd_version);
    if (linkat(vm->file_dir, "layer", m->draft.fd, "layer", 0) < 0)
        return err_sys(e, ERR_INTERNAL, "keeping the disk layer");
    return 0;
}

/* The first use of the snapshot, before anybody depends on it: it must restore and answer, and what it
 * touches on the way is the working set that later clones get mapped at once. */
static int try_out(struct making *m, struct vm *vm, struct err *e)
{
    struct node *n = m->node;
    struct image img = m->image;
    img.manifest = m->manifest;
    img.has_memory = true;
    _cleanup_close_ int memory = openat(m->draft.fd, "memory", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int state = openat(m->draft.fd, "state", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int from = openat(m->draft.fd, "layer", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int layer = vm_layer_open(vm, e);
    _cleanup_close_ int set = draft_create(&m->draft, "working-set", e);
    if (memory < 0 || state < 0 || from < 0 || layer < 0 || set < 0 || content_clone(from, layer, e) < 0)
        return e->code ? -1 : err_sys(e, ERR_INTERNAL, "opening the new snapshot");
    img.memory = memory;
    img.state = state;
    struct vm_image image;
    image_to_vm(&img, layer, &image);
    Cube__V1__SandboxSpec spec = CUBE__V1__SANDBOX_SPEC__INIT;
    Cube__Node__V1__Receipt receipt = CUBE__NODE__V1__RECEIPT__INIT;
    spec.template_id = m->manifest.parent;
    struct guest_identity id = {.sandbox_id = "i00000000000000000000",
                                .envd_token = "",
                                .default_user = m->manifest.default_user,
                                .default_workdir = m->manifest.default_workdir,
                                .spec = &spec,
                                .gen = 1,
                                .replace_envs = true};
    if (vm_restore(vm, "", 0, &image, e) < 0 || guest_open(vm, n->cfg.restore_timeout_ms, e) < 0 ||
        guest_identify(vm, &id, &receipt, e) < 0 ||
        guest_wait_healthy(vm, n->cfg.restore_timeout_ms, e) < 0 || vm_working_set(vm, set, e) < 0)
        return err_wrap(e, "trying the new snapshot");
    return manifest_add(&m->manifest, "working-set", 0, NULL, e);
}

static int in_a_vm(struct making *m, int (*work)(struct making *m, struct vm *vm, struct err *e),
                   struct err *e)
{
    struct vm *vm = vm_make(m->node, e);
    if (!vm)
        return -1;
    int rc = work(m, vm, e);
    if (rc < 0) {
        char tail[600];
        vm_console_tail(vm, tail, sizeof tail);
        log_line(LOG_WARN, &(struct log_about){.err = e}, "the guest of template %s failed; console: %s",
                 m->manifest.parent, tail);
    }
    vm_destroy(vm);
    return rc;
}

static int describe(struct making *m, struct err *e)
{
    const struct manifest *t = &m->image.manifest;
    struct manifest *o = &m->manifest;
    o->kind = MANIFEST_CLASS_SNAPSHOT;
    class_snapshot_name(t, &m->node->class, o->id);
    snprintf(m->artifact, sizeof m->artifact, "tpl/%s/%s", o->parent, o->id);
    o->created_ms = clock_realtime_ms();
    o->vcpus = t->vcpus;
    o->memory_mib = t->memory_mib;
    o->disk_mib = t->disk_mib;
    memcpy(o->kernel, t->kernel, sizeof o->kernel);
    memcpy(o->tools, t->tools, sizeof o->tools);
    memcpy(o->default_user, t->default_user, sizeof o->default_user);
    memcpy(o->default_workdir, t->default_workdir, sizeof o->default_workdir);
    o->guest_protocol = GUEST_PROTOCOL;
    o->has_memory = true;
    o->class = m->node->class;
    const struct manifest_file *root = manifest_find(t, "root.ext4");
    return manifest_add(o, "state", 0, NULL, e) < 0 || manifest_add(o, "memory", 0, NULL, e) < 0 ||
                   manifest_add(o, "layer", 0, NULL, e) < 0 ||
                   manifest_add(o, "root.ext4", root->size, root->hash, e) < 0
               ? -1
               : 0;
}

static int make(struct making *m, struct err *e)
{
    struct node *n = m->node;
    if (fiber_offload(open_template, m) < 0) {
        *e = m->error;
        return -1;
    }
    if (describe(m, e) < 0 || draft_open(&n->store, &m->draft, e) < 0)
        return -1;
    char root[128];
    snprintf(root, sizeof root, "%s/root.ext4", m->image.artifact);
    if (linkat(n->store.fd, root, m->draft.fd, "root.ext4", 0) < 0)
        return err_sys(e, ERR_INTERNAL, "linking %s", root);
    if (in_a_vm(m, run_guest, e) < 0 || in_a_vm(m, try_out, e) < 0)
        return -1;
    if (fiber_offload(publish, m) == 0)
        return 0;
    *e = m->error;
    return -1;
}

int make_snapshot(struct node *n, const char *template_id, struct err *e)
{
    int64_t began = clock_mono_us();
    struct making m = {.node = n, .draft.fd = -1};
    snprintf(m.manifest.parent, sizeof m.manifest.parent, "%s", template_id);
    image_init(&m.image);
    int rc = make(&m, e);
    image_close(&m.image);
    draft_drop(&m.draft);
    if (rc == 0)
        log_info("template %s: snapshot %s made in %lld ms", template_id, m.manifest.id,
                 (long long)(clock_mono_us() - began) / 1000);
    return rc;
}
