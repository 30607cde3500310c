/* Owns the opening of artifacts for VMs. Invariant: what an image hands out was checked against its manifest:
 * sizes always, hashes once per file and process (content_verify), class and protocol before memory is used.
 */
#include "node/template/image.h"

#include "lib/base/cleanup.h"
#include "lib/net/crypto.h"
#include "lib/net/fiber.h"
#include "node/store/content.h"

#include <fcntl.h>
#include <string.h>

void image_init(struct image *img)
{
    *img = (struct image){
        .root = -1, .tools = -1, .kernel = -1, .state = -1, .memory = -1, .working_set = -1, .layer = -1};
    for (int i = 0; i < IMAGE_DELTAS; i++)
        img->deltas[i] = -1;
}

void image_close(struct image *img)
{
    int *all[] = {&img->root,      &img->tools,       &img->kernel,   &img->state,
                  &img->memory,    &img->working_set, &img->layer,    &img->deltas[0],
                  &img->deltas[1], &img->deltas[2],   &img->deltas[3]};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (*all[i] >= 0)
            close(*all[i]);
        *all[i] = -1;
    }
}

static int read_manifest(struct node *n, const char *artifact, struct manifest *out, struct err *e)
{
    char path[128];
    snprintf(path, sizeof path, "%s/manifest.json", artifact);
    _cleanup_free_ char *text = NULL;
    size_t len;
    if (file_read(n->store.fd, path, MANIFEST_MAX_BYTES, &text, &len, e) < 0)
        return e && e->code == ERR_NOT_FOUND && store_presence(&n->store, artifact) == PRESENT
                   ? err_set(e, ERR_INTERNAL, "%s is damaged: its manifest is missing", artifact)
                   : -1;
    return manifest_parse(text, len, artifact, out, e);
}

/* Opens a file that the manifest lists and checks it. */
static int open_checked(struct node *n, const char *artifact, const struct manifest *m, const char *name,
                        int *out, struct err *e)
{
    const struct manifest_file *f = manifest_find(m, name);
    if (!f)
        return err_set(e, ERR_INTERNAL, "%s has no file %s", artifact, name);
    _cleanup_close_ int fd = store_open_file(&n->store, artifact, name, e);
    if (fd < 0) {
        if (e->code == ERR_NOT_FOUND)
            e->code = ERR_INTERNAL; /* the artifact is there, a part of it is not: damage, not absence */
        return -1;
    }
    if (strcmp(name, "memory") == 0 && !content_known(fd, f->hash))
        content_warm(fd, false); /* it is read now anyhow */
    char what[160];
    snprintf(what, sizeof what, "%s/%s", artifact, name);
    if (content_verify(fd, what, f->size, f->hash, e) < 0)
        return -1;
    *out = fd_steal(&fd);
    return 0;
}

static int open_object(struct node *n, const char *dir, const char *hash, const char *name, int *out,
                       struct err *e)
{
    char artifact[96];
    struct manifest m;
    snprintf(artifact, sizeof artifact, "%s/%s", dir, hash);
    if (read_manifest(n, artifact, &m, e) < 0)
        return -1;
    return open_checked(n, artifact, &m, name, out, e);
}

static int open_common(struct node *n, struct image *img, struct err *e)
{
    if (open_object(n, "tools", img->manifest.tools, "tools.erofs", &img->tools, e) < 0 ||
        open_object(n, "kernel", img->manifest.kernel, "vmlinux", &img->kernel, e) < 0)
        return err_wrap(e, "opening %s", img->artifact);
    return 0;
}

static int open_memory(struct node *n, struct image *img, struct err *e)
{
    struct manifest *m = &img->manifest;
    if (manifest_check_class(m, &n->class, e) < 0 ||
        open_checked(n, img->artifact, m, "state", &img->state, e) < 0 ||
        open_checked(n, img->artifact, m, "memory", &img->memory, e) < 0 ||
        (manifest_find(m, "working-set") &&
         open_checked(n, img->artifact, m, "working-set", &img->working_set, e) < 0))
        return -1;
    for (int i = 0; i < IMAGE_DELTAS; i++) {
        char name[16];
        snprintf(name, sizeof name, "delta-%d", i);
        const struct manifest_file *f = manifest_find(m, name);
        if (!f)
            break;
        if (open_checked(n, img->artifact, m, name, &img->deltas[i], e) < 0)
            return -1;
        memcpy(img->delta_hash[i], f->hash, 65);
        img->delta_count = i + 1;
    }
    img->has_memory = true;
    return 0;
}

static bool valid_id(const char *id)
{
    size_t n = strlen(id);
    return n > 0 && n < 48 && strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static int open_snapshot(struct node *n, bool want_memory, struct image *out, struct err *e)
{
    const struct manifest *m = &out->manifest;
    return open_checked(n, out->artifact, m, "root.ext4", &out->root, e) < 0 ||
                   open_checked(n, out->artifact, m, "layer", &out->layer, e) < 0 ||
                   (want_memory && m->has_memory && open_memory(n, out, e) < 0) || open_common(n, out, e) < 0
               ? -1
               : 0;
}

int image_template_manifest(struct node *n, const char *template_id, struct manifest *out, struct err *e)
{
    char artifact[96];
    if (!valid_id(template_id))
        return err_set(e, ERR_INVALID, "'%s' is no template ID", template_id);
    snprintf(artifact, sizeof artifact, "tpl/%s", template_id);
    return read_manifest(n, artifact, out, e);
}

static int open_template(struct node *n, const char *template_id, bool want_memory, struct image *out,
                         struct err *e)
{
    snprintf(out->artifact, sizeof out->artifact, "tpl/%s", template_id);
    if (read_manifest(n, out->artifact, &out->manifest, e) < 0) {
        if (e->code == ERR_NOT_FOUND)
            return err_set(e, ERR_NOT_FOUND, "no template %s on this node", template_id);
        return -1;
    }
    if (want_memory && n->class.kvm_kind[0]) {
        char snap[32], artifact[96];
        class_snapshot_name(&out->manifest, &n->class, snap);
        snprintf(artifact, sizeof artifact, "tpl/%s/%s", template_id, snap);
        struct manifest m;
        if (read_manifest(n, artifact, &m, e) == 0) {
            snprintf(out->artifact, sizeof out->artifact, "%s", artifact);
            out->manifest = m;
            return open_snapshot(n, true, out, e);
        }
        if (e->code != ERR_NOT_FOUND)
            return -1;
        *e = (struct err){0}; /* not made yet: it boots */
    }
    return open_checked(n, out->artifact, &out->manifest, "root.ext4", &out->root, e) < 0
               ? -1
               : open_common(n, out, e);
}

int image_open_template(struct node *n, const char *template_id, bool want_memory, struct image *out,
                        struct err *e)
{
    image_init(out);
    if (!valid_id(template_id))
        return err_set(e, ERR_INVALID, "'%s' is no template ID", template_id);
    if (open_template(n, template_id, want_memory, out, e) == 0)
        return 0;
    image_close(out);
    return -1;
}

struct opening {
    struct node *node;
    const char *template_id;
    bool want_memory;
    struct image *image;
    struct err error;
};

static int open_in_worker(void *arg)
{
    struct opening *o = arg;
    return image_open_template(o->node, o->template_id, o->want_memory, o->image, &o->error);
}

int image_load_template(struct node *n, const char *template_id, bool want_memory, struct image *out,
                        struct err *e)
{
    struct opening o = {.node = n, .template_id = template_id, .want_memory = want_memory, .image = out};
    if (fiber_offload(open_in_worker, &o) == 0)
        return 0;
    *e = o.error;
    return -1;
}

int image_open_snapshot(struct node *n, const char *snapshot_id, bool want_memory, struct image *out,
                        struct err *e)
{
    image_init(out);
    if (!valid_id(snapshot_id))
        return err_set(e, ERR_INVALID, "'%s' is no snapshot ID", snapshot_id);
    snprintf(out->artifact, sizeof out->artifact, "snap/%s", snapshot_id);
    if (read_manifest(n, out->artifact, &out->manifest, e) < 0) {
        if (e->code == ERR_NOT_FOUND)
            return err_set(e, ERR_NOT_FOUND, "no snapshot %s on this node", snapshot_id);
        return -1;
    }
    if (open_snapshot(n, want_memory, out, e) == 0)
        return 0;
    image_close(out);
    return -1;
}

void image_to_vm(const struct image *img, int layer, struct vm_image *out)
{
    *out = (struct vm_image){.root = img->root,
                             .tools = img->tools,
                             .layer = layer,
                             .kernel = img->kernel,
                             .memory = -1,
                             .state = img->state,
                             .working_set = img->working_set,
                             .vcpus = img->manifest.vcpus,
                             .memory_mib = img->manifest.memory_mib,
                             .disk_bytes = (uint64_t)img->manifest.disk_mib << 20,
                             .cmdline = IMAGE_CMDLINE};
    const struct manifest_file *root = manifest_find(&img->manifest, "root.ext4");
    if (root)
        snprintf(out->root_name, sizeof out->root_name, "%.48s", root->hash);
    if (!img->has_memory)
        return;
    out->memory = img->memory;
    out->delta_count = img->delta_count;
    for (int i = 0; i < img->delta_count; i++)
        out->deltas[i] = img->deltas[i];
}

void class_snapshot_name(const struct manifest *t, const struct node_class *c, char out[32])
{
    char text[512], hex[65];
    int n =
        snprintf(text, sizeof text, "%s|%s|%u|%s|%s|%u|%u|%u|%d", c->kvm_kind, c->cpu_features,
                 c->device_layout, t->kernel, t->tools, t->vcpus, t->memory_mib, t->disk_mib, GUEST_PROTOCOL);
    sha256_hex(text, (size_t)n, hex);
    snprintf(out, 32, "snap-%.16s", hex);
}
