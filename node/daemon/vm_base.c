/* Owns the links of a VM to its base. Invariant: a linked file is immutable and was verified when the image
 * was opened, so its hash is taken over from the manifest and never computed again. */
#include "node/daemon/vm_base.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static bool belongs(const char *name)
{
    return strcmp(name, "root.ext4") == 0 || strcmp(name, "memory") == 0 ||
           strcmp(name, "working-set") == 0 || strncmp(name, "delta-", 6) == 0;
}

static int link_file(struct vm *vm, const struct image *img, const char *name, struct err *e)
{
    char from[160], to[64];
    snprintf(from, sizeof from, "%s/%s", img->artifact, name);
    snprintf(to, sizeof to, "base/%s", name);
    if (linkat(vm->node->store.fd, from, vm->file_dir, to, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "linking %s for %s", from, vm->name);
    return 0;
}

int vm_base_link(struct vm *vm, const struct image *img, struct err *e)
{
    if (mkdirat(vm->file_dir, "base", 0700) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making the base directory of %s", vm->name);
    for (unsigned i = 0; i < img->manifest.file_count; i++) {
        const char *name = img->manifest.files[i].name;
        bool memory = strcmp(name, "root.ext4") != 0;
        if (belongs(name) && (!memory || img->has_memory) && link_file(vm, img, name, e) < 0)
            return -1;
    }
    return link_file(vm, img, "manifest.json", e);
}

int vm_base_manifest(struct vm *vm, struct manifest *out, struct err *e)
{
    _cleanup_free_ char *text = NULL;
    size_t n;
    if (file_read(vm->file_dir, "base/manifest.json", MANIFEST_MAX_BYTES, &text, &n, e) < 0 ||
        manifest_parse(text, n, vm->name, out, e) < 0)
        return -1;
    struct stat st;
    out->has_memory =
        fstatat(vm->file_dir, "base/memory", &st, AT_SYMLINK_NOFOLLOW) == 0; /* not when it was booted */
    return 0;
}

int vm_base_to_draft(struct vm *vm, const struct manifest *base, const char *name, struct draft *d,
                     struct manifest *m, struct err *e)
{
    const struct manifest_file *f = manifest_find(base, name);
    char from[64];
    snprintf(from, sizeof from, "base/%s", name);
    if (!f)
        return err_set(e, ERR_INTERNAL, "the base of %s has no %s", vm->name, name);
    if (linkat(vm->file_dir, from, d->fd, name, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "linking %s of %s", name, vm->name);
    return manifest_add(m, name, f->size, f->hash, e);
}
