/* Owns the restored VMs without an identity. Invariant: nothing of a user ever ran in one, and each is given
 * away at most once; one whose template changed or that waited too long is ended, never handed out. */
#include "node/daemon/ready.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/capacity.h"
#include "node/daemon/guest.h"
#include "node/daemon/jailer.h"
#include "node/daemon/vm_base.h"
#include "node/template/image.h"
#include "node/template/image_cache.h"

#include <string.h>

#define ENTRIES_MAX 512
#define DEMANDS_MAX 64
#define RECENT_MS 10000
#define IDLE_STEP_MS 500
#define RETRY_MS 5000
#define BEHIND_MS 1000 /* how long it is filled behind starts that need the same cores */
#define STEP_MS 5

struct entry {
    struct vm *vm;
    char template_id[48], artifact[96];
    struct manifest manifest;
};

struct demand {
    char template_id[48];
    int64_t last_ms, window_ms;
    unsigned in_window, before; /* creates in this window and the one before */
};

struct ready_pool {
    struct node *node;
    struct entry *entry[ENTRIES_MAX];
    unsigned count;
    struct demand demand[DEMANDS_MAX];
    struct fiber_event *wake;
    int64_t failed_ms;
};

static struct demand *demand_of(struct ready_pool *p, const char *template_id, bool make)
{
    struct demand *oldest = &p->demand[0];
    for (unsigned i = 0; i < DEMANDS_MAX; i++) {
        if (strcmp(p->demand[i].template_id, template_id) == 0)
            return &p->demand[i];
        if (p->demand[i].last_ms < oldest->last_ms)
            oldest = &p->demand[i];
    }
    if (!make)
        return NULL;
    *oldest = (struct demand){.window_ms = clock_boot_ms()};
    snprintf(oldest->template_id, sizeof oldest->template_id, "%s", template_id);
    return oldest;
}

static void note_demand(struct ready_pool *p, const char *template_id)
{
    struct demand *d = demand_of(p, template_id, true);
    int64_t now = clock_boot_ms();
    if (now - d->window_ms >= RECENT_MS) {
        d->before = now - d->window_ms < 2 * RECENT_MS ? d->in_window : 0;
        d->in_window = 0;
        d->window_ms = now;
    }
    d->in_window++;
    d->last_ms = now;
}

static unsigned wanted(const struct ready_pool *p, const struct demand *d)
{
    if (!d->template_id[0] || clock_boot_ms() - d->last_ms > p->node->cfg.ready_ttl_ms)
        return 0;
    unsigned n = 1 + (d->in_window > d->before ? d->in_window : d->before);
    return n < (unsigned)p->node->cfg.ready_pool ? n : (unsigned)p->node->cfg.ready_pool;
}

static unsigned have(const struct ready_pool *p, const char *template_id)
{
    unsigned n = 0;
    for (unsigned i = 0; i < p->count; i++)
        n += strcmp(p->entry[i]->template_id, template_id) == 0;
    return n;
}

static struct entry *take_at(struct ready_pool *p, unsigned i)
{
    struct entry *en = p->entry[i];
    p->entry[i] = p->entry[--p->count];
    return en;
}

/* Whether a restore today would use the same snapshot. */
static bool current(struct node *n, const struct entry *en)
{
    struct manifest m;
    char name[32], artifact[96];
    if (image_template_manifest(n, en->template_id, &m, NULL) < 0)
        return false;
    class_snapshot_name(&m, &n->class, name);
    snprintf(artifact, sizeof artifact, "tpl/%s/%s", en->template_id, name);
    return strcmp(artifact, en->artifact) == 0;
}

static void destroy(void *arg)
{
    vm_destroy(arg);
}

static void drop(struct entry *en)
{
    struct vm *vm = en->vm;
    free(en);
    fiber_spawn(destroy, vm);
}

struct vm *ready_take(struct node *n, const char *template_id, struct manifest *manifest, char artifact[96])
{
    struct ready_pool *p = n->ready_pool;
    if (!p || n->cfg.ready_pool == 0)
        return NULL;
    note_demand(p, template_id);
    if (p->wake)
        fiber_event_set(p->wake);
    for (unsigned i = 0; i < p->count; i++) {
        if (strcmp(p->entry[i]->template_id, template_id) != 0)
            continue;
        struct entry *en = take_at(p, i);
        if (!current(n, en)) {
            drop(en);
            return NULL;
        }
        struct vm *vm = en->vm;
        *manifest = en->manifest;
        snprintf(artifact, 96, "%s", en->artifact);
        free(en);
        return vm;
    }
    return NULL;
}

static int prepare(struct vm *vm, const struct image *img, struct err *e)
{
    _cleanup_close_ int layer = vm_layer_open(vm, e);
    if (layer < 0 || vm_layer_copy(img->layer, layer, e) < 0 || vm_base_link(vm, img, e) < 0)
        return -1;
    struct vm_image image;
    image_to_vm(img, layer, &image);
    return vm_restore(vm, "", 0, &image, e) < 0 ? -1 : guest_open(vm, vm->node->cfg.restore_timeout_ms, e);
}

static int add_one(struct ready_pool *p, const char *template_id, struct err *e)
{
    struct image img;
    if (image_cache_get(p->node, template_id, &img) < 0) {
        if (image_load_template(p->node, template_id, true, &img, e) < 0)
            return -1;
        image_cache_put(p->node, template_id, &img);
    }
    struct entry *en = calloc(1, sizeof *en);
    if (!en)
        abort();
    int rc = img.has_memory ? 0 : err_set(e, ERR_UNAVAILABLE, "template %s has no snapshot yet", template_id);
    en->vm = rc < 0 ? NULL : vm_acquire(p->node, e);
    if (!en->vm || prepare(en->vm, &img, e) < 0 || guest_rehearse(en->vm, e) < 0 ||
        (en->vm->ended && err_set(e, ERR_UNAVAILABLE, "%s ended: %s", en->vm->name, en->vm->end_reason)) ||
        p->count == ENTRIES_MAX || p->node->stopping) {
        vm_destroy(en->vm);
        free(en);
        image_close(&img);
        return -1;
    }
    snprintf(en->template_id, sizeof en->template_id, "%s", template_id);
    memcpy(en->artifact, img.artifact, sizeof en->artifact);
    en->manifest = img.manifest;
    image_close(&img);
    p->entry[p->count++] = en;
    return 0;
}

static void shrink(struct ready_pool *p)
{
    for (unsigned i = 0; i < p->count;) {
        const struct demand *d = demand_of(p, p->entry[i]->template_id, false);
        unsigned want = d ? wanted(p, d) : 0;
        if (want == 0 || capacity_pressure(p->node))
            drop(take_at(p, i));
        else
            i++;
    }
}

static void keep_ready(void *arg)
{
    struct ready_pool *p = arg;
    struct node *n = p->node;
    while (!n->stopping) {
        bool added = false;
        bool may = n->ready && jailer_connected(n->jailer) && !capacity_pressure(n) &&
                   clock_boot_ms() - p->failed_ms > RETRY_MS;
        for (unsigned i = 0; may && i < DEMANDS_MAX && !n->stopping; i++) {
            char id[48];
            snprintf(id, sizeof id, "%s", p->demand[i].template_id);
            if (have(p, id) >= wanted(p, &p->demand[i]))
                continue;
            struct err e = {0};
            for (int waited = 0; n->starting > 0 && waited < BEHIND_MS; waited += STEP_MS)
                fiber_sleep(STEP_MS);
            if (add_one(p, id, &e) == 0) {
                added = true;
            } else {
                p->failed_ms = clock_boot_ms();
                log_fail(&e, "making a ready sandbox of %s", id);
                break;
            }
        }
        if (added)
            continue;
        shrink(p);
        struct fiber_event wake = {0};
        p->wake = &wake;
        fiber_event_wait(&wake, IDLE_STEP_MS);
        p->wake = NULL;
    }
}

struct ready_pool *ready_new(struct node *n)
{
    struct ready_pool *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->node = n;
    p->failed_ms = -RETRY_MS;
    n->ready_pool = p;
    if (n->cfg.ready_pool > 0)
        fiber_spawn(keep_ready, p);
    return p;
}

unsigned ready_size(const struct ready_pool *p)
{
    return p->count;
}

bool ready_on_vm_end(struct node *n, struct vm *vm)
{
    struct ready_pool *p = n->ready_pool;
    for (unsigned i = 0; p && i < p->count; i++)
        if (p->entry[i]->vm == vm) {
            log_warn("ready sandbox %s ended: %s", vm->name, vm->end_reason);
            drop(take_at(p, i));
            return true;
        }
    return false;
}

void ready_drain(struct node *n)
{
    struct ready_pool *p = n->ready_pool;
    while (p && p->count) {
        struct entry *en = take_at(p, 0);
        vm_destroy(en->vm);
        free(en);
    }
}
