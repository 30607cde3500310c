/* Owns the list of templates and the fiber that completes them. Invariant: one snapshot is made at a time,
 * and a template whose snapshot failed is tried again only after RETRY_MS, so a broken one cannot keep the
 * host busy. */
#include "node/template/catalog.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/jailer.h"
#include "node/daemon/master_link.h"
#include "node/daemon/selftest.h"
#include "node/template/image.h"
#include "node/template/make.h"

#include <string.h>

#define RESCAN_MS 2000
#define RETRY_MS 60000
#define FAILED_MAX 64

struct templates {
    struct node *node;
    char **id;
    size_t count;
    char **listed; /* those of `id` that masters are told of */
    size_t listed_count;
    bool *usable; /* per id: its snapshot is there and was read once, or it will have none */
    char envd_version[16];
    struct {
        char id[48];
        int64_t at_ms;
    } failed[FAILED_MAX]; /* ring of the last failures */
    unsigned next_failed;
};

struct templates *catalog_new(struct node *n)
{
    struct templates *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    t->node = n;
    n->templates = t;
    catalog_rescan(n);
    return t;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool catalog_usable(const struct templates *t, const char *id)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->id[i], id) == 0)
            return t->usable[i];
    return false;
}

static void relist(struct templates *t)
{
    t->listed_count = 0;
    for (size_t i = 0; i < t->count; i++)
        if (t->usable[i])
            t->listed[t->listed_count++] = t->id[i];
}

static void set_usable(struct node *n, const char *id)
{
    struct templates *t = n->templates;
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->id[i], id) == 0 && !t->usable[i]) {
            t->usable[i] = true;
            relist(t);
            master_link_poke(n);
        }
}

bool catalog_rescan(struct node *n)
{
    struct templates *t = n->templates;
    char **id;
    size_t count;
    if (store_list(&n->store, "tpl", &id, &count, NULL) < 0)
        return false; /* unknown is not missing */
    qsort(id, count, sizeof *id, by_name);
    bool same = count == t->count;
    for (size_t i = 0; same && i < count; i++)
        same = strcmp(id[i], t->id[i]) == 0;
    if (same) {
        store_names_free(id, count);
        return false;
    }
    bool *usable = calloc(count + 1, sizeof *usable);
    char **listed = calloc(count + 1, sizeof *listed);
    if (!usable || !listed)
        abort();
    for (size_t i = 0; i < count; i++)
        usable[i] = catalog_usable(t, id[i]);
    store_names_free(t->id, t->count);
    free(t->usable);
    free(t->listed);
    t->id = id;
    t->count = count;
    t->usable = usable;
    t->listed = listed;
    relist(t);
    return true;
}

char **catalog_ids(const struct templates *t, size_t *count)
{
    *count = t->listed_count;
    return t->listed;
}

const char *catalog_envd_version(const struct templates *t)
{
    return t->envd_version;
}

void catalog_set_envd_version(struct templates *t, const char *version)
{
    snprintf(t->envd_version, sizeof t->envd_version, "%s", version);
}

static bool failed_lately(const struct templates *t, const char *id)
{
    for (unsigned i = 0; i < FAILED_MAX; i++)
        if (strcmp(t->failed[i].id, id) == 0 && clock_boot_ms() - t->failed[i].at_ms < RETRY_MS)
            return true;
    return false;
}

static void note_failure(struct templates *t, const char *id)
{
    unsigned i = t->next_failed++ % FAILED_MAX;
    snprintf(t->failed[i].id, sizeof t->failed[i].id, "%s", id);
    t->failed[i].at_ms = clock_boot_ms();
}

struct reading {
    struct node *node;
    const char *id;
    struct err error;
};

/* Reads and checks every file once, so that no create pays for it; also fills the page cache, from this
 * process's cgroup. */
static int read_through(void *arg)
{
    struct reading *r = arg;
    struct image img;
    if (image_open_template(r->node, r->id, r->node->cfg.snapshots, &img, &r->error) < 0)
        return -1;
    image_close(&img);
    return 0;
}

static void make_usable(struct node *n, const char *id)
{
    struct reading r = {.node = n, .id = id};
    if (catalog_usable(n->templates, id))
        return;
    if (fiber_offload(read_through, &r) < 0) {
        log_fail(&r.error, "template %s cannot be used", id);
        note_failure(n->templates, id);
        return;
    }
    set_usable(n, id);
}

static void complete(struct node *n)
{
    struct templates *t = n->templates;
    for (size_t i = 0; i < t->count && !n->stopping; i++) {
        char id[48];
        snprintf(id, sizeof id, "%s", t->id[i]);
        if (failed_lately(t, id))
            continue;
        struct err e = {0};
        if (selftest_template(n, id, &e) < 0) {
            log_fail(&e, "template %s is not offered", id);
            note_failure(t, id);
            master_link_poke(n);
            continue;
        }
        enum presence p = n->cfg.snapshots ? make_presence(n, id, &e) : PRESENT;
        if (p == PRESENT || (p == MISSING && make_snapshot(n, id, &e) == 0)) {
            make_usable(n, id);
            continue;
        }
        log_fail(&e, "making the snapshot of template %s; its sandboxes boot", id);
        note_failure(t, id);
        set_usable(n, id);
    }
}

static void keep_complete(void *arg)
{
    struct node *n = arg;
    while (!n->stopping) {
        if (n->ready && catalog_rescan(n))
            master_link_poke(n);
        if (n->ready && n->class.kvm_kind[0] && jailer_connected(n->jailer))
            complete(n);
        fiber_sleep(RESCAN_MS);
    }
}

void catalog_start(struct node *n)
{
    fiber_spawn(keep_complete, n);
}
